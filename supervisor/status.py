"""Where a server stands: the snapshot its keeper writes, and the status a user reads. Pure."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from attrs import Factory, field, frozen

from mcp_nursery.actors.errors import ServerDown
from mcp_nursery.actors.messages import Handshake, Owner
from mcp_nursery.actors.states import ServerState

from .lifecycle import LEFT_BY_NOBODY
from .tools.pins import UNREVIEWED, Review

if TYPE_CHECKING:
    from mcp_types import Tool as Definition

    from mcp_nursery.actors.mailbox import MailboxStatistics

    from .spec import ServerSpec


@frozen
class CallCounts:
    """Calls of one server since the supervisor was opened."""

    in_flight: int = 0
    """Calls that wait for an outcome now."""
    done: int = 0
    """Calls the server answered with a result, `isError` included."""
    failed: int = 0
    """Calls that ended with an error."""


@frozen
class Introduction:
    """What a server said of itself, without secrets."""

    protocol_version: str
    server_info: dict[str, Any] | None
    """JSON."""
    instructions: str | None

    _flat: bool = field(
        default=Factory(lambda self: _is_flat(self.server_info), takes_self=True), init=False, repr=False, eq=False
    )
    """Whether it is texts alone, and its copy one step: a third of the time that the status of all servers takes."""

    def own_info(self) -> dict[str, Any] | None:
        """A copy of it, for somebody who may change it."""
        info = self.server_info
        if info is None or self._flat:
            return info and info.copy()
        return cast("dict[str, Any]", _each_text(info, _as_it_is))


def _is_flat(info: dict[str, Any] | None) -> bool:
    return info is not None and all(type(each) is str for each in info.values())


@frozen
class Snapshot:
    """All that is known of one server at one moment. Written by its keeper alone, as a whole."""

    spec: "ServerSpec"
    state: ServerState
    incarnation: int = 0
    """The latest connection, from 1; 0 before the first."""
    attempt: int = 1
    """Which start this is, or which one is due, since the ladder began; from 1."""
    max_attempts: int = 1
    due_at: float | None = None
    """When the next start is due, on Trio's clock; set in `waiting`, and in `failed` if it is revived by time."""
    revives_on_call: bool = False
    """In `failed`: whether a call starts it afresh."""
    woken: bool = False
    """In `connecting`: whether a call or a list began this attempt, and waits for it as for a first one."""
    connected_at: float | None = None
    """When `connected` began, on Trio's clock."""
    error: str | None = None
    """The last failure, one line; None once connected."""
    stderr_tail: str | None = field(default=None, repr=False)
    """See `ServerStatus`."""
    pid: int | None = None
    introduction: Introduction | None = None
    """What the server said of itself, last known."""
    owner: Owner | None = field(default=None, repr=False)
    """Where calls go; set in `connected` only."""
    definitions: "tuple[Definition, ...]" = field(default=(), repr=False)
    """The tools as the server declared them, last known; which states show them is the catalogue's affair."""
    review: Review = field(default=UNREVIEWED, repr=False)
    """How they compare with what they were when they were first used."""

    @property
    def settled(self) -> bool:
        """Whether no first attempt is under way. One that somebody asked for counts as a first attempt."""
        return not (self.state is ServerState.CONNECTING and (self.attempt == 1 or self.woken))

    @property
    def abandoned(self) -> bool:
        """Whether nobody will bring it to `connected` by itself: waiting for that is vain."""
        return self.state in LEFT_BY_NOBODY and self.due_at is None


@frozen(slots=False)  # made three times as fast: of a thousand servers at once, and often
class ServerStatus:
    """One server as a user sees it. Times are seconds; what is unknown is None."""

    name: str
    """Its name."""
    state: ServerState
    """Where it stands."""
    transport: str | None
    """`stdio`, `docker`, `in-process`, `http`, `sse` or `ws`."""
    tool_count: int
    """Tools in the catalogue, callable now or not."""
    error: str | None
    """The last failure, one line; None once connected."""
    uptime: float | None
    """Seconds since it was last connected; None in every other state."""
    incarnation: int
    """Its latest connection, from 1; 0 before the first."""
    attempt: int
    """Which start this is, or which one is due, since the ladder began; from 1."""
    max_attempts: int
    """Starts in a row before it gives up."""
    retry_in: float | None
    """Seconds until the next start; None if none is due."""
    pid: int | None
    """Its process, where there is one."""
    protocol_version: str | None
    """What was agreed on with it, last known."""
    server_info: dict[str, Any] | None
    """Name, version and whatever else the server says of itself."""
    instructions: str | None
    """What the server wants a model to know."""
    calls: CallCounts
    """Its calls since the supervisor was opened."""
    stderr_tail: str | None = field(default=None, repr=False)
    """The last lines its process had written to stderr when it was connected, or when it ended. At most 4,096
    characters, without secrets."""


def introduced(handshake: Handshake, redact: Callable[[str], str]) -> Introduction:
    """What a server said of itself, without secrets. To be done once a connection: it takes a while."""
    info, instructions = handshake.server_info, handshake.instructions
    said = None if info is None else info.model_dump(by_alias=True, mode="json", exclude_none=True)
    return Introduction(
        handshake.protocol_version,
        None if said is None else _each_text(said, redact),
        None if instructions is None else redact(instructions),
    )


def _as_it_is(text: str) -> str:
    return text


def _each_text(value: object, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case list():
            return [_each_text(item, change) for item in cast("list[object]", value)]
        case dict():
            return {key: _each_text(part, change) for key, part in cast("dict[str, object]", value).items()}
        case _:
            return value


@frozen
class SupervisorStatistics:
    """A supervisor at one moment, for debugging and metrics."""

    servers: int
    """Servers that are configured, in whatever state."""
    connected: int
    """Servers in `connected`."""
    tools: int
    """Tools with a public name."""
    calls: CallCounts
    """Of all servers together."""
    router: "MailboxStatistics"
    """How full the router's mailbox is."""


def status_of(snapshot: Snapshot, *, now: float, tool_count: int, calls: CallCounts) -> ServerStatus:
    """The status that a snapshot means at `now`, on Trio's clock."""
    said, since = snapshot.introduction, snapshot.connected_at
    version, info, instructions = (
        (None, None, None) if said is None else (said.protocol_version, said.own_info(), said.instructions)
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
        retry_in(snapshot, now),
        snapshot.pid,
        version,
        info,
        instructions,
        calls,
        snapshot.stderr_tail,
    )


def retry_in(snapshot: Snapshot, now: float) -> float | None:
    """Seconds from `now` until the next start; None if none is due."""
    return None if snapshot.due_at is None else max(0.0, snapshot.due_at - now)


def server_down(snapshot: Snapshot, *, now: float, tool: str | None = None) -> ServerDown:
    """The error of who wanted this server connected, for a call of `tool` perhaps; `now` is on Trio's clock."""
    return ServerDown(
        server=snapshot.spec.name,
        tool=tool,
        state=snapshot.state,
        retry_in=retry_in(snapshot, now),
        error=snapshot.error,
        stderr_tail=snapshot.stderr_tail or "",
    )
