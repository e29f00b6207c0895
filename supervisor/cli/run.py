"""`mcp-nursery run`: supervise until Ctrl-C."""

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import trio

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.supervisor import Supervisor, open_supervisor
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.preload import freeze_loaded
from mcp_nursery.supervisor.watch import reload_or_log

from .failures import OK
from .output import warn
from .runtime import Interrupted, Options, load, run_async
from .watching import OwnHost, watch


def run(options: Options) -> int:
    """Keep the servers running and show how they do. `q` and Ctrl-C are its normal end; at SIGHUP files are read
    again."""
    freeze_loaded()
    config = load(options)
    hang_up, hang_ups = trio.open_memory_channel[None](1)

    async def supervise() -> None:
        async with _opened(config) as supervisor, run_alongside(lambda: _reload_at(hang_ups, supervisor)):
            await watch(OwnHost(supervisor), "mcp-nursery run", as_json=options.as_json)

    def hung_up() -> None:
        with suppress(trio.WouldBlock):  # one is about to be seen
            hang_up.send_nowait(None)

    try:
        run_async(supervise, hung_up)
    except (Interrupted, KeyboardInterrupt):
        return OK
    return OK


async def _reload_at(signals: AsyncIterable[None], supervisor: Supervisor) -> None:
    async for _ in signals:
        await reload_or_log(supervisor)


@asynccontextmanager
async def _opened(config: Config) -> AsyncGenerator[Supervisor]:
    """The servers, with a control socket if there can be one."""
    async with AsyncExitStack() as stack:
        try:
            supervisor = await stack.enter_async_context(open_supervisor(config, gate=0.0, watch=True, control=True))
        except ConfigError as error:
            if error.field != "control":
                raise
            warn(f"warning: {error}")
            supervisor = await stack.enter_async_context(open_supervisor(config, gate=0.0, watch=True))
        yield supervisor
