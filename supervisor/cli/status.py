"""`mcp-nursery status`: the state of each server, as a running host reports it or after a start here."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, TypeAlias

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.records import evolve
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.control.client import ControlClient
from mcp_nursery.supervisor.preload import AHEAD
from mcp_nursery.supervisor.status import ServerStatus

from .output import safe_line, send_line, stdout_is_terminal, warn, write_json, write_line
from .running_hosts import find_host, hosts_of
from .runtime import Options, load, run_async
from .statuses import HEADERS, counts, documents, error_of, row, still_doing, worked, worst_first

_POLL: Final = 0.25
"""Seconds between two requests to a running host, and at most between two looks at servers here."""
_SHORTEST: Final = 0.03
"""Seconds between two checks of servers here, however much happens."""

Look: TypeAlias = Callable[[], Awaitable[Sequence[ServerStatus]]]
Wait: TypeAlias = Callable[[], Awaitable[object]]
ReportStatuses: TypeAlias = Callable[[Sequence[ServerStatus], Sequence[ServerStatus]], Awaitable[None]]
Show: TypeAlias = Callable[[Look, Wait], Awaitable[Sequence[ServerStatus]]]


def status(options: Options, *, attach: bool | None, host: str | None, timeout: float, strict: bool) -> int:
    """Show each server as it settles, for `timeout` seconds at most. Fails if none of them works, or, with `strict`, if
    one does not. With `attach`, the running host of that name is asked; if it is False, the servers are started; None:
    the host that supervises them is asked, if there is one."""
    config = None if attach or host is not None else load(options)
    show = partial(_show, options, timeout)

    async def look() -> Sequence[ServerStatus]:
        if config is None:
            return await _show_host(await find_host(host), show)
        found = None if options.trust or attach is False else await _supervising(config)
        return await (_show_started(options, config, show) if found is None else _show_host(found, show))

    statuses = run_async(look)
    if options.as_json:
        write_json({"servers": documents(statuses)})
    return worked(statuses, strict=strict)


async def _supervising(config: Config) -> ControlClient | None:
    """The running host that supervises these servers; of several the first."""
    hosts = await hosts_of(config)
    if not hosts:
        return None
    first, *others = hosts
    more = f"; so do {', '.join(host.name for host in others)}: see --host" if others else ""
    warn(f"host {first.name} supervises them ({first.program} in {first.folder}){more}; --no-attach starts them here")
    return ControlClient(first.name)


async def _show_host(host: ControlClient, show: Show) -> Sequence[ServerStatus]:
    return await show(host.status, partial(trio.sleep, _POLL))


async def _show_started(options: Options, config: Config, show: Show) -> Sequence[ServerStatus]:
    AHEAD.set(False)  # nothing is called
    async with open_supervisor(config, state=options.state, gate=0.0) as supervisor, supervisor.events() as events:

        async def look() -> Sequence[ServerStatus]:
            return supervisor.status()

        async def wait() -> None:
            with trio.move_on_after(_POLL):
                await events.receive()
            await trio.sleep(_SHORTEST)

        return await show(look, wait)


async def settle(look: Look, wait: Wait, report: ReportStatuses, within: float) -> Sequence[ServerStatus]:
    """Wait until no server is connecting for the first time, or for `within` seconds at most, and return the statuses.
    A server that has failed and is being started again has the status in which it failed.

    `look` returns all statuses now, and `wait` when it is time to look again. `report` is called with the servers that
    have settled since its last call, and with all servers.
    """
    deadline = trio.current_time() + within
    settled: dict[str, ServerStatus] = {}
    while True:
        statuses = await look()
        now = [status for status in statuses if status.state is not ServerState.CONNECTING]
        new = [status for status in now if status.name not in settled]
        settled |= {status.name: status for status in now}
        statuses = [settled.get(status.name, status) for status in statuses]
        await report(new, statuses)
        if all(status.name in settled for status in statuses):
            return statuses
        with trio.move_on_at(deadline) as waiting:
            await wait()
        if waiting.cancelled_caught:  # what a command that installs has written is no event
            return [settled.get(status.name, status) for status in await look()]


# -- output -----------------------------------------------------------------------------------------------------------


async def _show(options: Options, timeout: float, look: Look, wait: Wait) -> Sequence[ServerStatus]:
    """Show servers as they settle. With `--json`, nothing is shown: one document follows at the end."""
    on_terminal = stdout_is_terminal()
    async with _view(as_json=options.as_json, on_terminal=on_terminal) as report:
        statuses = await settle(look, wait, report, timeout)
    late = [_late(status, timeout) for status in statuses]
    if on_terminal and not options.as_json:
        _print(late)
    elif not options.as_json:
        for status in late:
            if status.state is ServerState.CONNECTING:
                await _print_row(row(status))
    return statuses


def _view(*, as_json: bool, on_terminal: bool) -> AbstractAsyncContextManager[ReportStatuses]:
    if as_json:
        return _nothing()
    return _live_table() if on_terminal else _lines()


@asynccontextmanager
async def _nothing() -> AsyncGenerator[ReportStatuses]:
    async def report(_new: Sequence[ServerStatus], _all: Sequence[ServerStatus]) -> None:
        pass

    yield report


@asynccontextmanager
async def _lines() -> AsyncGenerator[ReportStatuses]:
    """A report with a line for each server that has settled."""

    async def report(new: Sequence[ServerStatus], _all: Sequence[ServerStatus]) -> None:
        for status in new:
            await _print_row(row(status))

    await _print_row(HEADERS)
    yield report


@asynccontextmanager
async def _live_table() -> AsyncGenerator[ReportStatuses]:
    """A report as a live table of as many servers as there is room for, until all have settled."""
    from rich.live import Live

    from .tables import StatusTable, terminal

    with Live(console=terminal(), auto_refresh=False, transient=True) as live:

        async def report(_new: Sequence[ServerStatus], everyone: Sequence[ServerStatus]) -> None:
            live.update(StatusTable(worst_first(everyone), title=counts(everyone)), refresh=True)

        yield report


def _late(status: ServerStatus, timeout: float) -> ServerStatus:
    if status.state is not ServerState.CONNECTING:
        return status
    before = f"; before that: {status.error}" if status.error else ""
    return evolve(status, error=f"{still_doing(status, timeout)}{before}", installing=None)


async def _print_row(cells: Sequence[object]) -> None:
    await send_line("\t".join(safe_line(cell) for cell in cells))


def _print(statuses: Sequence[ServerStatus]) -> None:
    """Print all servers, then the errors of those that do not work, and last the counts, just above the next prompt."""
    from .tables import StatusTable, terminal

    terminal().print(StatusTable(statuses, whole=True))
    for status in statuses:
        if error := error_of(status):
            write_line(f"{safe_line(status.name)}: {error}")
    write_line(counts(statuses))
