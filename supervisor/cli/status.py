"""`mcp-nursery status`: where each server stands, as a running host says, or as they do when they are started."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final

import trio
from attrs import evolve, frozen

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.control.client import ControlClient
from mcp_nursery.supervisor.preload import AHEAD
from mcp_nursery.supervisor.status import ServerStatus

from .hosts import HostOptions, find_host, hosts_of
from .output import safe_line, send_line, stdout_is_terminal, warn, write_json, write_line
from .runtime import Options, load, run_async
from .settling import Look, News, Tell, settle
from .statuses import HEADERS, counts, documents, error_of, row, worked, worst_first

_LOOK: Final = 0.25
"""Seconds between two looks at a host elsewhere."""
_BREATH: Final = 0.03
"""Seconds between two looks at servers here, however much happens."""


@frozen
class StatusOptions:
    """What `status` can be told besides."""

    attach: bool | None
    """Whether a running host is asked; None: the one that supervises these servers, if there is one."""
    host: str | None
    """What the host is called by that is asked."""
    timeout: float
    """Seconds to wait for servers that are connecting."""


def show_status(options: Options, wanted: StatusOptions) -> int:
    """Show each server as it settles. Fails if none of them works."""
    attached = wanted.attach or wanted.host is not None
    config = None if attached else load(options)
    show = partial(_show, options, wanted.timeout)

    async def look() -> Sequence[ServerStatus]:
        if config is None:
            return await _attached(await find_host(HostOptions(wanted.host)), show)
        asked = None if options.trust or wanted.attach is False else await _supervising(config)
        return await (_started(config, show) if asked is None else _attached(asked, show))

    statuses = run_async(look)
    if options.as_json:
        write_json({"servers": documents(statuses)})
    return worked(statuses)


async def _supervising(config: Config) -> ControlClient | None:
    """The running host that supervises these servers; of several the first."""
    hosts = await hosts_of(config)
    if not hosts:
        return None
    first, *others = hosts
    more = f"; so do {', '.join(host.name for host in others)}: see --host" if others else ""
    warn(f"host {first.name} runs them ({first.program} in {first.folder}){more}; --no-attach starts others")
    return ControlClient(first.name)


# -- where they stand -------------------------------------------------------------------------------------------------


_Show = Callable[[Look, News], Awaitable[Sequence[ServerStatus]]]


async def _attached(host: ControlClient, show: _Show) -> Sequence[ServerStatus]:
    return await show(host.status, partial(trio.sleep, _LOOK))


async def _started(config: Config, show: _Show) -> Sequence[ServerStatus]:
    AHEAD.set(False)  # nothing is called
    async with open_supervisor(config, gate=0.0) as supervisor, supervisor.events() as events:

        async def look() -> Sequence[ServerStatus]:
            return supervisor.status()

        async def news() -> None:
            await events.receive()
            await trio.sleep(_BREATH)

        return await show(look, news)


# -- what is shown ----------------------------------------------------------------------------------------------------


async def _show(options: Options, timeout: float, look: Look, news: News) -> Sequence[ServerStatus]:
    """Show them, but as JSON: that is one document, in the end."""
    on_terminal = stdout_is_terminal()
    async with _view(as_json=options.as_json, on_terminal=on_terminal) as tell:
        statuses = await settle(look, news, tell, timeout)
    late = [_late(status, timeout) for status in statuses]
    if on_terminal and not options.as_json:
        _print(late)
    elif not options.as_json:
        for status in late:
            if status.state is ServerState.CONNECTING:
                await _print_row(row(status))
    return statuses


def _view(*, as_json: bool, on_terminal: bool) -> AbstractAsyncContextManager[Tell]:
    if as_json:
        return _nothing()
    return _live_table() if on_terminal else _lines()


@asynccontextmanager
async def _nothing() -> AsyncGenerator[Tell]:
    async def tell(_new: Sequence[ServerStatus], _all: Sequence[ServerStatus]) -> None:
        pass

    yield tell


@asynccontextmanager
async def _lines() -> AsyncGenerator[Tell]:
    """A line of each server that has settled."""

    async def tell(new: Sequence[ServerStatus], _all: Sequence[ServerStatus]) -> None:
        for status in new:
            await _print_row(row(status))

    await _print_row(HEADERS)
    yield tell


@asynccontextmanager
async def _live_table() -> AsyncGenerator[Tell]:
    """A table of those that there is room for, as long as somebody is waited for."""
    from rich.live import Live

    from .status_table import StatusTable
    from .tables import terminal

    with Live(console=terminal(), auto_refresh=False, transient=True) as live:

        async def tell(_new: Sequence[ServerStatus], everyone: Sequence[ServerStatus]) -> None:
            live.update(StatusTable(worst_first(everyone), title=counts(everyone)), refresh=True)

        yield tell


def _late(status: ServerStatus, timeout: float) -> ServerStatus:
    if status.state is not ServerState.CONNECTING:
        return status
    before = f"; before that: {status.error}" if status.error else ""
    return evolve(status, error=f"still connecting after {timeout:g} s{before}")


async def _print_row(cells: Sequence[object]) -> None:
    await send_line("\t".join(safe_line(cell) for cell in cells))


def _print(statuses: Sequence[ServerStatus]) -> None:
    """All of them; then why some do not work, and how many do, which stands above the next prompt."""
    from .status_table import StatusTable
    from .tables import terminal

    terminal().print(StatusTable(statuses, whole=True))
    for status in statuses:
        if error := error_of(status):
            write_line(f"{safe_line(status.name)}: {error}")
    write_line(counts(statuses))
