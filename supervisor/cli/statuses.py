"""Statuses of servers as JSON, as counts and as rows. Shared by `status`, `run` and `demo`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import asdict

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.status import BreakerStatus, ServerStatus

from .failures import NOT_APPROVED, OK, UNAVAILABLE
from .output import safe_line

HEADERS = ("SERVER", "STATE", "TRY", "RETRY IN", "UP", "TOOLS", "PID", "CALLS", "ERROR")

_TROUBLE = (ServerState.FAILED, ServerState.BLOCKED, ServerState.NEEDS_AUTH, ServerState.WAITING)
"""States that somebody may want to do something about, the worst first."""
_COUNTED = (*_TROUBLE, ServerState.CONNECTING, ServerState.IDLE, ServerState.STOPPED, ServerState.DISABLED)

GOOD = frozenset({ServerState.CONNECTED})
"""What its tools can be called in."""
_OFF = frozenset({ServerState.DISABLED, ServerState.STOPPED, ServerState.IDLE})
"""On purpose."""


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
        status.state.value,
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


def error_of(status: ServerStatus) -> str | None:
    """Why the server's tools cannot be called, one line; None if they can, or if it is off on purpose."""
    if status.state in GOOD | _OFF:
        return None
    return safe_line(status.error or f"the server is {status.state}")


def errors_of(statuses: Iterable[ServerStatus]) -> dict[str, str]:
    """Why nothing of some servers can be used, by their names."""
    return {status.name: error for status in statuses if (error := error_of(status))}


def worked(statuses: Iterable[ServerStatus]) -> int:
    """The exit code of a command that started them all: 0 if one of them works, or none was to."""
    wanted = [status.state for status in statuses if status.state not in _OFF]
    if not wanted or not GOOD.isdisjoint(wanted):
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
