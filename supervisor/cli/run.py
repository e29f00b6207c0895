"""`mcp-nursery run`: supervise until Ctrl-C."""

from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import trio

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.supervisor import Supervisor, open_supervisor
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.status import ServerStatus
from mcp_nursery.supervisor.watch import reload_or_log

from .failures import OK
from .output import stdout_is_terminal, warn
from .runtime import Interrupted, Options, load, run_async
from .watching import draw, print_events


def run(options: Options) -> int:
    """Keep the servers running and show how they do. Ctrl-C is its normal end; at SIGHUP files are read again."""
    config = load(options)
    hang_up, hang_ups = trio.open_memory_channel[None](1)

    async def supervise() -> None:
        async with _opened(config) as supervisor, run_alongside(lambda: _reload_at(hang_ups, supervisor)):
            await _show(supervisor, as_json=options.as_json)

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


async def _show(supervisor: Supervisor, *, as_json: bool) -> None:
    async def look() -> Sequence[ServerStatus]:
        return supervisor.status()

    async def medians() -> Mapping[str, float]:
        seen = supervisor.statistics().by_server.items()
        return {name: one.latency.p50 for name, one in seen if one.latency is not None}

    if stdout_is_terminal() and not as_json:
        await draw(look, medians)
    else:
        async with supervisor.events() as events:
            await print_events(events, as_json=as_json)


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
