"""`mcp-nursery run`: supervise until Ctrl-C."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor import Supervisor, open_supervisor
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.status import ServerStatus

from .failures import OK
from .output import stdout_is_terminal, warn
from .runtime import Interrupted, Options, load, run_async
from .watching import draw, print_events


def run(options: Options) -> int:
    """Keep the servers running and show how they do. Ctrl-C is its normal end."""
    config = load(options)

    async def supervise() -> None:
        await _supervise(config, as_json=options.as_json)

    try:
        run_async(supervise)
    except (Interrupted, KeyboardInterrupt):
        return OK
    return OK


async def _supervise(config: Config, *, as_json: bool) -> None:
    async with _opened(config) as supervisor:

        async def look() -> Sequence[ServerStatus]:
            return supervisor.status()

        if stdout_is_terminal() and not as_json:
            await draw(look)
        else:
            async with supervisor.events() as events:
                await print_events(events, as_json=as_json)


@asynccontextmanager
async def _opened(config: Config) -> AsyncGenerator[Supervisor]:
    """The servers, with a control socket if there can be one."""
    async with AsyncExitStack() as stack:
        try:
            supervisor = await stack.enter_async_context(open_supervisor(config, gate=0.0, control=True))
        except ConfigError as error:
            if error.field != "control":
                raise
            warn(f"warning: {error}")
            supervisor = await stack.enter_async_context(open_supervisor(config, gate=0.0))
        yield supervisor
