"""The status of a server as a user reads it, and the error of a call to a server that is down. Pure."""

from typing import Any

from mcp_nursery.actors.enums import ListKind, ServerState
from mcp_nursery.actors.errors import ServerDown
from mcp_nursery.actors.outcomes import Challenge
from mcp_nursery.actors.records import field, frozen

from .decisions.circuit_breaker import BreakerStatus
from .decisions.state_machine import Snapshot
from .decisions.statistics import (
    CallCounts,
    CallRecord,
    FailureCount,
    Latency,
    ServerStatistics,
    StoreStatistics,
    SupervisorStatistics,
    ToolStatistics,
)
from .decisions.task_records import TaskInfo
from .decisions.task_states import TaskStatus

__all__ = [
    "BreakerStatus",
    "CallCounts",
    "CallRecord",
    "Challenge",
    "FailureCount",
    "Latency",
    "ListKind",
    "ServerState",
    "ServerStatistics",
    "ServerStatus",
    "StoreStatistics",
    "SupervisorStatistics",
    "TaskInfo",
    "TaskStatus",
    "ToolStatistics",
]


@frozen(slots=False)  # made three times as fast: of a thousand servers at once, and often
class ServerStatus:
    """One server as a user sees it. Times are seconds; what is unknown is None."""

    name: str
    """The server's name."""
    state: ServerState
    """The state."""
    transport: str | None
    """`stdio`, `docker`, `in-process`, `http`, `sse` or `ws`."""
    tool_count: int
    """Tools in the catalogue, callable now or not."""
    error: str | None
    """The last failure, one line; None once connected."""
    uptime: float | None
    """Seconds since it became `connected`; None in every other state."""
    incarnation: int
    """The number of its latest connection, or of the one that is about to be made, from 1; 0 before the first."""
    attempt: int
    """The number of the current start, or of the one that is due, since the ladder began; from 1."""
    max_attempts: int
    """Starts in a row before it gives up."""
    retry_in: float | None
    """Seconds until the next start; None if none is due."""
    pid: int | None
    """The number of its process, where there is one."""
    protocol_version: str | None
    """The protocol version that was agreed on, last known."""
    server_info: dict[str, Any] | None
    """Name, version and whatever else the server states about itself."""
    instructions: str | None
    """The server's instructions for a model."""
    calls: CallCounts
    """The calls since the supervisor was opened."""
    stderr_tail: str | None = field(default=None, repr=False)
    """The last lines its process had written to stderr when it was connected, or when it ended. At most 4,096
    characters, without secrets."""
    capabilities: dict[str, Any] | None = field(default=None, repr=False)
    """The capabilities that the server declares, as in the protocol, last known, without secrets."""
    extensions: tuple[str, ...] = ()
    """The identifiers of the extensions of the protocol that both sides have declared, last known."""
    source: str | None = None
    """The path of the file that configures it, or None for code."""
    description: str | None = None
    """The description in its configuration, for people."""
    challenge: Challenge | None = None
    """In `needs_auth`: what the server said was missing, if it did."""
    breaker: BreakerStatus | None = None
    """The circuit breaker, while it is not closed."""
    installing: str | None = None
    """In `connecting`, while its command may be installing what it starts: the command's name, and the last line that
    it wrote, without secrets."""
    over_limit: str | None = None
    """In `connected`: the limit that it is over, and why it is not renewed yet. In `connecting`: the limit for which it
    is being renewed."""
    instances: tuple["ServerStatus", ...] = ()
    """The further instances: see `Supervisor.open_instance`. Calls are counted together: all have the same figures."""


def status_of(
    snapshot: Snapshot,
    *,
    now: float,
    tool_count: int,
    calls: CallCounts,
    breaker: BreakerStatus | None = None,
    instances: tuple[ServerStatus, ...] = (),
) -> ServerStatus:
    """The status that a snapshot means at `now`, on Trio's clock."""
    said, since = snapshot.introduction, snapshot.connected_at
    version, info, instructions, capabilities, extensions = (
        (None, None, None, None, ())
        if said is None
        else (said.protocol_version, said.own_info(), said.instructions, said.own_capabilities(), said.extensions)
    )
    return ServerStatus(  # in the order of its fields: by their names it would take half as long again
        snapshot.spec.name,
        snapshot.state,
        snapshot.spec.transport.kind,
        tool_count,
        snapshot.error,
        None if since is None else now - since,
        snapshot.incarnation,
        snapshot.attempt,
        snapshot.max_attempts,
        snapshot.retry_in(now),
        snapshot.pid,
        version,
        info,
        instructions,
        calls,
        snapshot.stderr_tail,
        capabilities,
        extensions,
        snapshot.spec.source,
        snapshot.spec.description,
        snapshot.challenge,
        breaker,
        snapshot.installing,
        snapshot.over_limit,
        instances,
    )


def server_down(snapshot: Snapshot, *, now: float, tool: str | None = None) -> ServerDown:
    """The error for a caller that needs this server connected, perhaps for a call of `tool`; `now` is on Trio's
    clock."""
    return ServerDown(
        server=snapshot.spec.name,
        tool=tool,
        state=snapshot.state,
        retry_in=snapshot.retry_in(now),
        error=snapshot.error,
        stderr_tail=snapshot.stderr_tail or "",
        challenge=snapshot.challenge,
        revived_by_calls=snapshot.revives_on_call,
    )
