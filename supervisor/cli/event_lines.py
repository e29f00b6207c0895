"""Events and statuses as plain lines. Shared by `run` and `demo`."""

from typing import assert_never

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.events import (
    DefinitionChanged,
    Event,
    InjectionSuspected,
    Lagged,
    ServerRemoved,
    SnapshotEvent,
    StateChanged,
    ToolsChanged,
)
from mcp_nursery.supervisor.status import ServerStatus


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
        case _:
            return f"{event.server}: {_described(event)}"


def _described(event: ToolsChanged | ServerRemoved | InjectionSuspected | DefinitionChanged) -> str:
    match event:
        case ToolsChanged():
            kinds = (("added", event.added), ("removed", event.removed), ("changed", event.changed))
            return f"tools {', '.join(f'{kind} {len(names)}' for kind, names in kinds if names)}"
        case ServerRemoved():
            return "removed"
        case InjectionSuspected():
            return f"{event.tool}: suspicious output ({', '.join(event.signals)})"
        case DefinitionChanged():
            differs = ", ".join(event.change.fields)
            return f"{event.tool}: changed since it was first used ({differs}){', held back' if event.held else ''}"
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
