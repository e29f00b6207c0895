"""Events and statuses as plain lines. Shared by `run` and `demo`."""

from collections.abc import Sequence
from typing import assert_never

from mcp_nursery.actors.enums import ServerState
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
    SnapshotEvent,
    StateChanged,
    ToolsChanged,
)
from mcp_nursery.supervisor.status import ServerStatus

_NAMED = 5
"""Tools, or servers, that one line names."""


def line_of_status(status: ServerStatus) -> str:
    """Where a server stands: `time: waiting, start 2 in 2.0 s (exit code 3)`."""
    return _line(status.name, status.state, status)


def line_of_event(event: Event) -> str:
    """What happened."""
    match event:
        case StateChanged():
            return _line(event.server, event.new, event)
        case Lagged():
            return f"{event.missed} events were missed"
        case SnapshotEvent():
            return line_of_status(event.status)
        case Reloaded():
            return f"reloaded: {_counts(event)}"
        case ReloadFailed():
            return f"not reloaded: {event.error}"
        case _:
            return f"{event.server}: {_described(event)}"


def _counts(event: Reloaded) -> str:
    """`1 changed (a), 2 untouched`."""
    named = {"added": event.added, "changed": event.changed, "removed": event.removed}
    parts = [f"{len(names)} {kind} ({_some(names)})" for kind, names in named.items() if names]
    return ", ".join([*parts, f"{len(event.untouched)} untouched"])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


_Listed = ToolsChanged | ResourcesChanged | PromptsChanged
_LISTED = {ToolsChanged: "tools", ResourcesChanged: "resources", PromptsChanged: "prompts"}


def _described(
    event: _Listed | ResourceUpdated | ServerRemoved | InjectionSuspected | DefinitionsChanged | BreakerChanged,
) -> str:
    match event:
        case ToolsChanged() | ResourcesChanged() | PromptsChanged():
            kinds = (("added", event.added), ("removed", event.removed), ("changed", event.changed))
            return f"{_LISTED[type(event)]} {', '.join(f'{kind} {len(names)}' for kind, names in kinds if names)}"
        case ResourceUpdated():
            return f"{event.uri}: {'changed' if event.certain else 'may have changed'}"
        case ServerRemoved():
            return "removed"
        case BreakerChanged():
            open_for = "" if event.state != "open" else f" for {event.retry_in:.1f} s, {event.failures} calls failed"
            return f"circuit breaker {event.state.replace('_', ' ')}{open_for}"
        case InjectionSuspected():
            return f"{event.tool}: suspicious output ({', '.join(event.signals)})"
        case DefinitionsChanged():
            tools = _some([f"{change.tool} ({', '.join(change.fields)})" for change in event.changes])
            return f"changed since they were first used{', held back' if event.held else ''}: {tools}"
        case _:
            assert_never(event)


def _line(server: str, state: ServerState, facts: StateChanged | ServerStatus) -> str:
    words = [str(state)]
    if facts.retry_in is not None:
        words.append(f"start {facts.attempt} of {facts.max_attempts} in {facts.retry_in:.1f} s")
    if state is ServerState.CONNECTED:
        words.append(f"incarnation {facts.incarnation}")
        words += [] if facts.pid is None else [f"pid {facts.pid}"]
    because = f" ({facts.error})" if facts.error and state is not ServerState.CONNECTING else ""
    return f"{server}: {', '.join(words)}{because}"
