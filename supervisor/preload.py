"""What a supervisor and the first connect of each kind need, loaded at one time: `import mcp` alone takes most of a
second, and no loop is to stand still for it. What every text is searched with is compiled at the same time.

Who imports `open_supervisor` where programs import, before any loop runs, has loaded it all. Who does so in a running
loop has it loaded in a thread, before the gate's clock starts.
"""

from contextlib import suppress
from functools import cache
from importlib import import_module

import trio

_NEEDED = (
    "mcp_nursery.supervisor.supervisor",
    "mcp_nursery.actors.session.connection",
    "mcp_nursery.actors.transports.docker_gateway",
    "mcp_nursery.actors.transports.in_process",
    "mcp_nursery.actors.transports.sse",
    "mcp_nursery.actors.transports.stdio",
    "mcp_nursery.actors.transports.streamable_http",
    "mcp_nursery.actors.transports.websocket",
    "httpcore2",  # by httpx2, when its first client is made
)


_BACKEND = "anyio._backends._trio"
"""What anyio imports when its first task group is made. Its own affair, which it may call otherwise."""


@cache
def load() -> None:
    """Load it now, once a process."""
    for name in _NEEDED:
        import_module(name)
    with suppress(ModuleNotFoundError):
        import_module(_BACKEND)
    from .security.injection import prepare

    prepare()


def load_unless_in_loop() -> None:
    """Load it now, if no loop of Trio's runs in this thread."""
    if not trio.lowlevel.in_trio_run():
        load()


async def loaded() -> None:
    """Have it loaded."""
    if not load.cache_info().currsize:
        await trio.to_thread.run_sync(load)
