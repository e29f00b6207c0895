"""Statuses of servers as JSON, as counts and as rows. Shared by `status`, `run` and `demo`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import asdict, frozen
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.status import BreakerStatus, ServerStatus

from .failures import NOT_APPROVED, OK, UNAVAILABLE
from .output import safe_line

HEADERS = ("SERVER", "STATE", "TRY", "RETRY IN", "UP", "TOOLS", "PID", "CALLS", "ERROR")

_SECONDARY = ("TRY", "RETRY IN", "PID", "CALLS")
"""Columns that a terminal of 80 characters has no room for."""
_TERTIARY = ("UP",)
"""Nor one of 60."""

_TROUBLE = (ServerState.FAILED, ServerState.BLOCKED, ServerState.NEEDS_AUTH, ServerState.WAITING)
"""States that somebody may want to do something about, the worst first."""
_COUNTED = (*_TROUBLE, ServerState.CONNECTING, ServerState.IDLE, ServerState.STOPPED, ServerState.DISABLED)

_GOOD = frozenset({ServerState.CONNECTED})
_OFF = frozenset({ServerState.DISABLED, ServerState.STOPPED, ServerState.IDLE})
"""On purpose."""
_BAD = frozenset({ServerState.FAILED, ServerState.BLOCKED})
_PASSING = frozenset({ServerState.CONNECTING, ServerState.WAITING, ServerState.NEEDS_AUTH})


def documents(statuses: Iterable[ServerStatus]) -> list[dict[str, Any]]:
    """The statuses as JSON."""
    return [
        {**asdict(status), "state": status.state.value, "instances": documents(status.instances)} for status in statuses
    ]


def counts(statuses: Sequence[ServerStatus]) -> str:
    """How many there are of each state: `2 of 5 connected, 1 failed, 2 idle`."""
    states = Counter(status.state for status in statuses)
    others = [f"{states[state]} {state}" for state in _COUNTED if states[state]]
    return ", ".join([f"{states[ServerState.CONNECTED]} of {len(statuses)} connected", *others])


def worst_first(statuses: Sequence[ServerStatus]) -> list[ServerStatus]:
    """Those in trouble first; for the rest in the order in which they came."""
    return sorted(statuses, key=_calmness)


def _calmness(status: ServerStatus) -> int:
    if status.state is ServerState.CONNECTING and status.error:  # a new try: it would leave its place for a moment
        return _TROUBLE.index(ServerState.WAITING)
    if status.state in _TROUBLE:
        return _TROUBLE.index(status.state)
    return len(_TROUBLE) if status.breaker is not None else len(_TROUBLE) + 1


def row(status: ServerStatus, median: float | None = None) -> tuple[object, ...]:
    """One server as cells under `HEADERS`; `median`: seconds that half of its calls took at most, if that is known."""
    return (
        f"{status.name} +{len(status.instances)}" if status.instances else status.name,
        Text(status.state.value, style=_style(status.state)),
        f"{status.attempt}/{status.max_attempts}" if _is_trying(status) else None,
        None if status.retry_in is None else f"{status.retry_in:.1f} s",
        None if status.uptime is None else duration(status.uptime),
        status.tool_count,
        status.pid,
        _calls(status, median),
        status.error if status.breaker is None else _refusing(status.breaker),
    )


def _is_trying(status: ServerStatus) -> bool:
    """Whether the number of its start says something: it is to be tried again, or is being."""
    return status.state is ServerState.WAITING or (status.state is ServerState.CONNECTING and status.attempt > 1)


@frozen
class StatusTable:
    """The statuses for a terminal of any size: a line a server, cells cut, columns left out where there is no room."""

    statuses: Sequence[ServerStatus]
    whole: bool = False
    """Whether all servers are shown, even if they are more than there are lines."""
    title: str = ""
    """A line above it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it in the room there is."""
        room = len(self.statuses) if self.whole else max(console.size.height - _FRAME - bool(self.title), 1)
        if self.title:
            yield Text(self.title, no_wrap=True, overflow="ellipsis")
        yield from table_lines(self.statuses[:room], options.max_width, {})
        if len(self.statuses) > room:
            yield Text(f"… and {len(self.statuses) - room} more", style="dim")


_FRAME = 3
"""Lines of a live table that are no servers: the header, what says that there are more, and the cursor's."""
_GAP = 2
"""Characters between two columns."""
_WIDE, _MIDDLE = 140, 80
"""Characters of a line that all columns have room in, and most."""


def table_lines(statuses: Sequence[ServerStatus], width: int, medians: Mapping[str, float]) -> list[Text]:
    """The header and a line a server, none wider than this; what there is no room for is left out or cut."""
    shown = [row(status, medians.get(status.name)) for status in statuses]
    rows = [{header: _text(cell) for header, cell in zip(HEADERS, cells, strict=True)} for cells in shown]
    left_out: tuple[str, ...] = () if width >= _WIDE else (*_SECONDARY, *(_TERTIARY if width < _MIDDLE else ()))
    if left_out:
        for cells in rows:  # when it is tried again is said in any case
            cells["STATE"] = Text(" ").join(cell for cell in (cells["STATE"], cells["RETRY IN"]) if cell)
    if not any(cells["TRY"] for cells in rows):
        left_out = (*left_out, "TRY")
    headers = [header for header in HEADERS if header not in left_out]
    lines = [Text() for _ in (headers, *rows)]
    for header in headers:
        column = [Text(header, style="bold"), *(cells[header] for cells in rows)]
        for cell in column:
            cell.truncate(width // 4 if header == headers[0] else width, overflow="ellipsis")
        broadest = max(cell.cell_len for cell in column) + _GAP
        for line, cell in zip(lines, column, strict=True):
            line.append_text(cell).append(" " * (broadest - cell.cell_len))
    for line in lines:
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
    return lines


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text(safe_line(cell))


def error_of(status: ServerStatus) -> str | None:
    """Why the server's tools cannot be called, one line; None if they can, or if it is off on purpose."""
    if status.state in _GOOD | _OFF:
        return None
    return safe_line(status.error or f"the server is {status.state}")


def errors_of(statuses: Iterable[ServerStatus]) -> dict[str, str]:
    """Why nothing of some servers can be used, by their names."""
    return {status.name: error for status in statuses if (error := error_of(status))}


def worked(statuses: Iterable[ServerStatus]) -> int:
    """The exit code of a command that started them all: 0 if one of them works, or none was to."""
    wanted = [status.state for status in statuses if status.state not in _OFF]
    if not wanted or not _GOOD.isdisjoint(wanted):
        return OK
    return NOT_APPROVED if set(wanted) == {ServerState.BLOCKED} else UNAVAILABLE


def duration(seconds: float) -> str:
    """`4 s`, `3 min 20 s`, `2 h 5 min`."""
    minutes, rest = divmod(int(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _calls(status: ServerStatus, median: float | None) -> str:
    calls = status.calls
    failed = f", {calls.failed} failed" if calls.failed else ""
    running = f", {calls.in_flight} running" if calls.in_flight else ""
    took = "" if median is None else f", p50 {_milliseconds(median)}"
    return f"{calls.done}{failed}{running}{took}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _refusing(breaker: BreakerStatus) -> str:
    return f"circuit breaker {breaker.state.replace('_', ' ')}, a try in {breaker.retry_in:.1f} s"


def _style(state: ServerState) -> str:
    if state in _GOOD:
        return "green"
    if state in _BAD:
        return "red"
    return "yellow" if state in _PASSING else "dim"
