"""Statuses of servers as JSON and as rows. Shared by `status`, `run` and `demo`."""

from collections.abc import Iterable
from typing import Any

from attrs import asdict
from rich.table import Table
from rich.text import Text

from mcp_nursery.actors.messages import ServerState
from mcp_nursery.supervisor import ServerStatus

from .failures import NOT_APPROVED, OK, UNAVAILABLE
from .output import safe_line, table

HEADERS = ("SERVER", "STATE", "TRY", "RETRY IN", "UP", "TOOLS", "PID", "CALLS", "ERROR")

_GOOD = frozenset({ServerState.CONNECTED})
_OFF = frozenset({ServerState.DISABLED, ServerState.STOPPED, ServerState.IDLE})
"""On purpose."""
_BAD = frozenset({ServerState.FAILED, ServerState.BLOCKED})
_PASSING = frozenset({ServerState.CONNECTING, ServerState.WAITING, ServerState.NEEDS_AUTH})


def documents(statuses: Iterable[ServerStatus]) -> list[dict[str, Any]]:
    """The statuses as JSON."""
    return [{**asdict(status), "state": status.state.value} for status in statuses]


def row(status: ServerStatus) -> tuple[object, ...]:
    """One server as cells under `HEADERS`."""
    return (
        status.name,
        Text(status.state.value, style=_style(status.state)),
        f"{status.attempt}/{status.max_attempts}",
        None if status.retry_in is None else f"{status.retry_in:.1f} s",
        None if status.uptime is None else duration(status.uptime),
        status.tool_count,
        status.pid,
        _calls(status),
        status.error,
    )


def status_table(statuses: Iterable[ServerStatus]) -> Table:
    """The statuses as a table for a terminal."""
    return table(HEADERS, map(row, statuses))


def error_of(status: ServerStatus) -> str | None:
    """Why the server's tools cannot be called, one line; None if they can, or if it is off on purpose."""
    if status.state in _GOOD | _OFF:
        return None
    return safe_line(status.error or f"the server is {status.state}")


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


def _calls(status: ServerStatus) -> str:
    calls = status.calls
    failed = f", {calls.failed} failed" if calls.failed else ""
    running = f", {calls.in_flight} running" if calls.in_flight else ""
    return f"{calls.done}{failed}{running}"


def _style(state: ServerState) -> str:
    if state in _GOOD:
        return "green"
    if state in _BAD:
        return "red"
    return "yellow" if state in _PASSING else "dim"
