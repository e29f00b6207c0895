"""Statuses and events for people and programs: as JSON, as counts, as cells of a table, as lines."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.records import asdict
from mcp_nursery.supervisor.events import (
    BreakerChanged,
    DefinitionsChanged,
    Event,
    InjectionSuspected,
    Lagged,
    PromptsChanged,
    Reloaded,
    ReloadFailed,
    ResourcesChanged,
    ResourceUpdated,
    ServerRemoved,
    SkillsChanged,
    SnapshotEvent,
    StateChanged,
    TaskChanged,
    ToolsChanged,
)
from mcp_nursery.supervisor.status import BreakerStatus, ServerStatus

from .failures import NOT_APPROVED, OK, UNAVAILABLE
from .output import safe_line

HEADERS = ("SERVER", "STATE", "TRY", "RETRY IN", "UP", "TOOLS", "PID", "CALLS", "ERROR")

_TROUBLE = (ServerState.FAILED, ServerState.BLOCKED, ServerState.NEEDS_AUTH, ServerState.WAITING)
"""States that may need action, the worst first."""
_COUNTED = (*_TROUBLE, ServerState.CONNECTING, ServerState.IDLE, ServerState.STOPPED, ServerState.DISABLED)

GOOD = frozenset({ServerState.CONNECTED})
"""The states in which tools can be called."""
_OFF = frozenset({ServerState.DISABLED, ServerState.STOPPED, ServerState.IDLE})
"""The states of servers that are off on purpose."""


def counted(count: int, one: str, many: str = "") -> str:
    """A number with its noun: `1 call`, `2 calls`."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def spoken(seconds: float) -> str:
    """Seconds in words: `4 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = int(seconds)
    for size, unit, small, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {part}"
    return f"{whole} s"


def documents(statuses: Iterable[ServerStatus]) -> list[dict[str, Any]]:
    """Convert the statuses to JSON."""
    return [
        {**asdict(status), "state": status.state.value, "instances": documents(status.instances)} for status in statuses
    ]


def counts(statuses: Sequence[ServerStatus]) -> str:
    """Count the servers in each state: `2 of 5 connected, 1 failed, 2 idle`."""
    states = Counter(status.state for status in statuses)
    others = [f"{states[state]} {state}" for state in _COUNTED if states[state]]
    return ", ".join([f"{states[ServerState.CONNECTED]} of {len(statuses)} connected", *others])


def worst_first(statuses: Sequence[ServerStatus]) -> list[ServerStatus]:
    """Sort the servers: those in trouble first, the rest in their order."""
    return sorted(statuses, key=severity)


def severity(status: ServerStatus) -> int:
    """Rank a server by how much it needs a person; 0 is the worst."""
    if status.state is ServerState.CONNECTING and status.error:  # in a new attempt it keeps its place in the order
        return _TROUBLE.index(ServerState.WAITING)
    if status.state in _TROUBLE:
        return _TROUBLE.index(status.state)
    return len(_TROUBLE) if status.breaker is not None else len(_TROUBLE) + 1


def is_troubled(status: ServerStatus) -> bool:
    """True if the server needs a person, waits for its next start, or has its calls refused."""
    return severity(status) <= len(_TROUBLE)


def row(status: ServerStatus, median: float | None = None) -> tuple[object, ...]:
    """Make the cells of one server under `HEADERS`. `median` is the p50 of its calls in seconds, if known."""
    return (
        f"{status.name} +{len(status.instances)}" if status.instances else status.name,
        status.state.value if status.installing is None else f"{status.state.value}: installing",
        f"{status.attempt}/{status.max_attempts}" if _is_trying(status) else None,
        None if status.retry_in is None else f"{status.retry_in:.1f} s",
        None if status.uptime is None else spoken(status.uptime),
        status.tool_count,
        status.pid,
        _calls(status, median),
        _describe_breaker(status.breaker) if status.breaker else status.installing or status.error or status.over_limit,
    )


def _is_trying(status: ServerStatus) -> bool:
    """True if the number of the attempt has a meaning: a restart is due or under way."""
    return status.state is ServerState.WAITING or (status.state is ServerState.CONNECTING and status.attempt > 1)


def error_of(status: ServerStatus) -> str | None:
    """Return on one line why the server's tools cannot be called; None if they can, or if it is off on purpose."""
    if status.state in GOOD | _OFF:
        return None
    return safe_line(status.error or status.installing or f"the server is {status.state}")


def still_doing(status: ServerStatus, timeout: float | None = None) -> str:
    """Say what a server still does that is not connected after so many seconds, and the option that gives it more."""
    doing = "still connecting" if status.installing is None else f"still installing ({status.installing})"
    return f"{doing}{'' if timeout is None else f' after {timeout:g} s'} (--timeout gives it more)"


def errors_of(statuses: Iterable[ServerStatus]) -> dict[str, str]:
    """Return the errors of servers that are down, by their names."""
    return {status.name: error for status in statuses if (error := error_of(status))}


def worked(statuses: Iterable[ServerStatus], *, strict: bool = False) -> int:
    """Return the exit code of a command that started all servers: 0 if one works, with `strict` if each works. Those
    that are off on purpose do not count."""
    wanted = [status.state for status in statuses if status.state not in _OFF]
    down = [state for state in wanted if state not in GOOD]
    if not down or (len(down) < len(wanted) and not strict):
        return OK
    return NOT_APPROVED if set(down) == {ServerState.BLOCKED} else UNAVAILABLE


def _calls(status: ServerStatus, median: float | None) -> str:
    calls = status.calls
    failed = f", {calls.failed} failed" if calls.failed else ""
    running = f", {calls.in_flight} running" if calls.in_flight else ""
    asking = f", {calls.asking} asking" if calls.asking else ""
    tasks = f" ({calls.tasks} task{'s' * (calls.tasks > 1)}{asking})" if calls.tasks else ""
    took = "" if median is None else f", p50 {_milliseconds(median)}"
    return f"{calls.done}{failed}{running}{tasks}{took}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _describe_breaker(breaker: BreakerStatus) -> str:
    return f"circuit breaker {breaker.state.replace('_', ' ')}, next try in {breaker.retry_in:.1f} s"


# -- lines ------------------------------------------------------------------------------------------------------------

MOST_NAMES = 5
"""Tools, or servers, that one line names."""


def line_of_status(status: ServerStatus) -> str:
    """Describe the state of a server in one line: `time: waiting, start 2 in 2.0 s (exit code 3)`."""
    return _line(status.name, status.state, status)


def line_of_event(event: Event) -> str:
    """Describe the event in one line."""
    match event:
        case StateChanged():
            return _line(event.server, event.new, event)
        case Lagged():
            return f"{event.missed} events were missed"
        case SnapshotEvent():
            return line_of_status(event.status)
        case Reloaded():
            return f"reloaded: {_reload_counts(event)}"
        case ReloadFailed():
            return f"not reloaded: {event.error}"
        case _:
            return f"{event.server}: {_describe(event)}"


def _reload_counts(event: Reloaded) -> str:
    """The counts of a reload: `1 changed (a), 2 untouched`."""
    named = {"added": event.added, "changed": event.changed, "removed": event.removed}
    parts = [f"{len(names)} {kind} ({first_names(names)})" for kind, names in named.items() if names]
    untrusted = [f"{len(event.untrusted)} not trusted ({first_names(event.untrusted)})"] if event.untrusted else []
    return ", ".join([*parts, f"{len(event.untouched)} untouched", *untrusted])


def first_names(names: Sequence[str]) -> str:
    """Join the first of these names, and count the others."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"


_ListChanged = ToolsChanged | ResourcesChanged | PromptsChanged | SkillsChanged
_KINDS = {
    ToolsChanged: "tools",
    ResourcesChanged: "resources and templates",
    PromptsChanged: "prompts",
    SkillsChanged: "skills",
}


def _describe(
    event: _ListChanged
    | ResourceUpdated
    | ServerRemoved
    | InjectionSuspected
    | DefinitionsChanged
    | BreakerChanged
    | TaskChanged,
) -> str:
    match event:
        case ToolsChanged() | ResourcesChanged() | PromptsChanged() | SkillsChanged():
            kinds = (("added", event.added), ("removed", event.removed), ("changed", event.changed))
            differing = ", ".join(f"{kind} {len(names)}" for kind, names in kinds if names)
            return f"{_KINDS[type(event)]} {f'from the cache: {len(event.added)}' if event.cached else differing}"
        case ResourceUpdated() | TaskChanged():
            return _describe_update(event)
        case ServerRemoved():
            return "removed"
        case BreakerChanged():
            open_for = (
                "" if event.state != "open" else f" for {event.retry_in:.1f} s after {event.failures} failed calls"
            )
            return f"circuit breaker {event.state.replace('_', ' ')}{open_for}"
        case InjectionSuspected():
            return f"{event.tool}: suspicious output ({', '.join(event.signals)})"
        case DefinitionsChanged():
            tools = first_names([f"{change.tool} ({', '.join(change.fields)})" for change in event.changes])
            return f"changed since they were first used{', held back' if event.held else ''}: {tools}"
        case _:
            assert_never(event)


def _describe_update(event: ResourceUpdated | TaskChanged) -> str:
    if isinstance(event, ResourceUpdated):
        return f"{event.uri}: {'changed' if event.certain else 'may have changed'}"
    task = event.task
    return ": ".join(filter(None, (f"{task.tool}: task {task.id}", str(task.status), task.error or task.message)))


def _line(server: str, state: ServerState, facts: StateChanged | ServerStatus) -> str:
    words = [str(state)]
    if facts.retry_in is not None:
        words.append(f"start {facts.attempt} of {facts.max_attempts} in {facts.retry_in:.1f} s")
    if state is ServerState.CONNECTED:
        words.append(f"incarnation {facts.incarnation}")
        words += [] if facts.pid is None else [f"pid {facts.pid}"]
    because = f" ({facts.error})" if facts.error and state is not ServerState.CONNECTING else ""
    because = because or (f" ({facts.over_limit})" if facts.over_limit else "")
    return f"{server}: {', '.join(words)}{because}"


def is_step(event: Event) -> bool:
    """True if the event is another step of the same state."""
    return isinstance(event, StateChanged) and event.old is event.new
