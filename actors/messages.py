"""What crosses a mailbox: states, exit reasons, calls and their outcomes. Values only, no I/O."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

if TYPE_CHECKING:
    from mcp_types import Implementation, InputRequest, ServerCapabilities, Tool

    from .mailbox import Mailbox, ReplySlot


class ServerState(StrEnum):
    """Where a server stands. `connected` means that handshake and every page of `tools/list` succeeded."""

    DISABLED = "disabled"
    """Switched off in its configuration."""
    BLOCKED = "blocked"
    """Its configuration is not trusted."""
    IDLE = "idle"
    """Not running, not yet or because nobody used it; started by the next call or list."""
    CONNECTING = "connecting"
    """An incarnation is being opened."""
    CONNECTED = "connected"
    """Ready for calls."""
    NEEDS_AUTH = "needs_auth"
    """Waits for a person's authorisation."""
    WAITING = "waiting"
    """Lost or not reached; a restart is due."""
    FAILED = "failed"
    """Gave up, or not worth retrying."""
    STOPPED = "stopped"
    """Ended on purpose."""


class Delivery(StrEnum):
    """Whether a server may have acted on a call."""

    NOT_SENT = "not_sent"
    """No byte of the call left this process, or its server has said that it refused it before it acted."""
    UNKNOWN = "unknown"
    """The write that holds the call began, and no answer came."""
    ANSWERED = "answered"
    """The server answered."""


class Era(StrEnum):
    """How a server opens a connection."""

    HANDSHAKE = "handshake"
    """By `initialize`: protocol 2024-11-05 to 2025-11-25."""
    MODERN = "modern"
    """By `server/discover`: protocol 2026-07-28."""


class ExitKind(StrEnum):
    """Why an incarnation ended."""

    LOST = "lost"
    """The connection was lost after it had been connected."""
    CONNECT_FAILED = "connect_failed"
    """The connection never reached `connected`."""
    PROBE_REFUSED = "probe_refused"
    """The server read the era probe and died of it: open again with `initialize`."""
    UNUSABLE = "unusable"
    """Trying again cannot help: an invalid configuration, a command that does not exist."""
    NEEDS_AUTH = "needs_auth"
    """Authorisation is missing: only a person can help."""
    REFUSED = "refused"
    """It was not permitted to start."""
    STOPPED = "stopped"
    """Asked to end."""


@frozen
class Loss:
    """What is known of a connection that ended."""

    message: str
    """One line: what happened."""
    exit_code: int | None = None
    """The process's exit code, negative for a signal; None if unknown or no process."""
    stderr_tail: str = field(default="", repr=False)
    """The last lines the process wrote to stderr."""
    unheard: bool = False
    """It ended without having read the first frame: whatever ended it, it was nothing we said."""
    pending: int = 0
    """Calls that were in flight."""
    needs_auth: bool = False
    """The server refuses us for want of authorisation, and nothing we have can mend that."""
    unusable: bool = False
    """Trying again cannot help."""
    refused: bool = False
    """The one call that is told so was refused before its server acted on it."""


@frozen
class ExitReason:
    """How an incarnation ended."""

    kind: ExitKind
    loss: Loss
    at: float
    """When the end was noticed, on Trio's clock; the transport is closed some time later."""
    era: Era | None = None
    """The era found, also when the attempt failed afterwards."""

    @property
    def clean(self) -> bool:
        """It ended by itself with exit code 0 and nothing in flight."""
        return self.loss.exit_code == 0 and self.loss.pending == 0

    @property
    def retriable(self) -> bool:
        """Whether another start may help."""
        return self.kind not in (ExitKind.UNUSABLE, ExitKind.NEEDS_AUTH, ExitKind.REFUSED)


@frozen
class Handshake:
    """What a server said of itself when the connection was opened."""

    era: Era
    protocol_version: str
    server_info: "Implementation | None"
    capabilities: "ServerCapabilities | None"
    instructions: str | None


@frozen
class Owner:
    """The live incarnation of a server."""

    incarnation: int
    mailbox: "Mailbox[CallTool]" = field(repr=False)
    """For calls; refuses when full."""
    control: "Mailbox[ReplySlot | FollowUp]" = field(repr=False)
    """For slots whose caller gave up, and for what calls need that this server has answered with a question; never
    refuses."""


@frozen
class Connected:
    """Report of an incarnation to its keeper: ready for calls."""

    owner: Owner
    handshake: Handshake
    definitions: "tuple[Tool, ...]"
    stderr_tail: str = field(default="", repr=False)
    """The last lines the process wrote to stderr by then."""


@frozen
class Opened:
    """Report of an incarnation to its keeper: the transport is open, the handshake begins."""

    incarnation: int
    pid: int | None


@frozen
class Relisted:
    """Report of an incarnation to its keeper: its tools were fetched again, or that failed."""

    incarnation: int
    definitions: "tuple[Tool, ...] | None" = field(default=None, repr=False)
    error: str | None = None


@frozen
class Ending:
    """Report of an incarnation to its keeper: it is over, and what it owns is being closed."""

    incarnation: int
    reason: ExitReason


@frozen
class Ended:
    """Report of an incarnation to its keeper: everything it owned is closed."""

    incarnation: int


Report = Opened | Connected | Relisted | Ending | Ended
"""What an incarnation tells its keeper, in this order. `Ending` and `Ended` come once, unless it is cancelled."""


RouteKey = str | tuple[str, str]
"""A public tool name, or (server, the server's own name of the tool)."""


@frozen(eq=False)
class CallTool:
    """One tool call on its way to the owning actor. The answer goes to `slot`."""

    key: RouteKey
    tool: str
    """The server's own name of the tool."""
    arguments: bytes | None = field(repr=False)
    """The arguments, encoded in the caller's task."""
    meta: dict[str, Any] = field(repr=False)
    """The call's `_meta`: the caller's own and its trace context. An actor's task has not the caller's contextvars."""
    slot: "ReplySlot"
    limited: bool = False
    """The caller set a time limit: it rules, and no transport has one of its own."""


@frozen(eq=False)
class Bulk:
    """Many calls as one message: a fan-out."""

    calls: Sequence[CallTool]


@frozen(eq=False)
class Question:
    """A server wants to know something before it goes on with a call: one of the host's callbacks is to answer.

    What the callback says comes to `slot` as `Answered`, a refusal as `Rejected`.
    """

    tool: str
    """The server's own name of the tool."""
    key: str
    """The server's name for this question."""
    request: "InputRequest" = field(repr=False)
    slot: "ReplySlot"


@frozen(eq=False)
class Round:
    """A call that its server wants sent again, with what it asked for."""

    call: CallTool
    """With a slot of its own."""
    responses: dict[str, Any] | None = field(default=None, repr=False)
    """The answers, by the keys of the questions; None if there were no questions."""
    state: str | None = field(default=None, repr=False)
    """What the server wants back, as it came."""

    @property
    def slot(self) -> "ReplySlot":
        """Where the answer goes."""
        return self.call.slot


FollowUp = Question | Round
"""What an incarnation is told of a call that it has answered with a question."""


@frozen
class Answered:
    """The server returned a result."""

    result: dict[str, Any] = field(repr=False)
    """The raw result, this caller's own."""
    size: int = field(default=0, eq=False)
    """Bytes of the message that brought it, at most; 0 for what came over no wire of ours."""


@frozen
class Rejected:
    """The server answered with a JSON-RPC error."""

    code: int
    message: str = field(repr=False)
    data: Any = field(default=None, repr=False)
    size: int = field(default=0, eq=False)
    """Bytes of the message that brought it, at most; 0 for what came over no wire of ours."""


@frozen
class Dropped:
    """The exchange of this one call failed, and what became of the call is not known. The connection goes on."""

    problem: str
    """One line: what happened."""
    status: int | None = None
    """The HTTP status that came instead of an answer."""
    again: bool = True
    """Whether a tool that may run twice may be sent again: not after a time limit."""


@frozen
class Malformed:
    """The server's result is none of the protocol."""

    problem: str


@frozen
class Unsendable:
    """The call has no JSON form; nothing was sent."""

    problem: str


@frozen
class Busy:
    """The owner's mailbox or outbox is full; nothing was sent."""


@frozen
class Expired:
    """The call's time was over before an answer came. Its owner was told."""


@frozen
class Unrouted:
    """No live actor owns the tool; nothing was sent."""


@frozen
class Unlisted:
    """The tool is none of those that its server listed last, whatever was known before; nothing was sent."""


Outcome = Answered | Rejected | Dropped | Malformed | Unsendable | Busy | Unrouted | Unlisted | Expired | Loss
"""How a call ended, seen from the actor."""
