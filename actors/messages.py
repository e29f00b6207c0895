"""What crosses a mailbox: reports of an incarnation, calls on their way to it. Values only, no I/O."""

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from .enums import Era, ExitKind
from .outcomes import Loss

if TYPE_CHECKING:
    from mcp_types import (
        InputRequest,
        Prompt,
        Resource,
        ResourceTemplate,
        Tool,
    )

    from .callbacks import Callbacks
    from .mailbox import Mailbox
    from .reply import ReplySlot


@frozen
class ExitReason:
    """How an incarnation ended."""

    kind: ExitKind
    loss: Loss
    at: float
    """When the end was noticed, on Trio's clock; the transport is closed some time later."""
    era: Era | None = None
    """The era found, also when the attempt failed afterwards."""
    era_answered: bool = False
    """See `Handshake`."""

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
    server_info: dict[str, Any] | None
    """JSON, as far as the protocol knows it."""
    capabilities: dict[str, Any] | None
    """The same."""
    instructions: str | None
    era_answered: bool = True
    """Whether the server's answer to the probe proves its era: False if it was silent for long, or was not probed."""
    hello: dict[str, Any] | None = field(default=None, repr=False)
    """All that it said of itself, as it came."""


@frozen
class Definitions:
    """What a server declares: all of its lists, each in the server's own order. Replaced as a unit."""

    tools: "tuple[Tool, ...]" = ()
    resources: "tuple[Resource, ...]" = ()
    templates: "tuple[ResourceTemplate, ...]" = ()
    prompts: "tuple[Prompt, ...]" = ()
    fresh_until: float = field(default=math.inf, eq=False)
    """When the first of them is too old to be shown without a look whether it still holds, on Trio's clock."""
    old_from: float = field(default=math.inf, eq=False)
    """From when on the first of them may be old although nobody says so, on Trio's clock; `inf`: the server says so."""

    def __bool__(self) -> bool:
        """Whether it declares anything."""
        return bool(self.tools or self.resources or self.templates or self.prompts)


NOTHING_DECLARED: Final = Definitions()
"""The definitions of a server that has listed nothing."""


@frozen
class Owner:
    """The live incarnation of a server."""

    incarnation: int
    mailbox: "Mailbox[Request]" = field(repr=False)
    """For requests; refuses when full."""
    control: "Mailbox[ReplySlot | FollowUp]" = field(repr=False)
    """For slots whose caller gave up, and for the next step of calls that the server answered with a request for input;
    never refuses."""


@frozen
class Connected:
    """Report of an incarnation to its keeper: ready for calls."""

    owner: Owner
    handshake: Handshake
    definitions: Definitions
    stderr_tail: str = field(default="", repr=False)
    """The last lines the process wrote to stderr by then."""


@frozen
class Opened:
    """Report of an incarnation to its keeper: the transport is open, the handshake begins."""

    incarnation: int
    pid: int | None


@frozen
class Refreshed:
    """Report of an incarnation to its keeper: some of its lists were fetched again, or that failed."""

    incarnation: int
    definitions: Definitions | None = field(default=None, repr=False)
    """All of its lists; None if none was fetched."""
    error: str | None = None
    """Why its tools could not be listed; they stay as they were."""
    timed_out: bool = False
    """Whether a list did not come within its time."""
    answers: Collection[object] = ()
    """The requests for it that it answers."""


@frozen
class Ending:
    """Report of an incarnation to its keeper: it is over, and what it owns is being closed."""

    incarnation: int
    reason: ExitReason


@frozen
class Ended:
    """Report of an incarnation to its keeper: everything it owned is closed."""

    incarnation: int


Report = Opened | Connected | Refreshed | Ending | Ended
"""What an incarnation tells its keeper, in this order. `Ending` and `Ended` come once, unless it is cancelled."""


CALL_TOOL: Final = "tools/call"
LISTED: Final[Mapping[str, str]] = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
"""List methods, and the field of their results that has the entries."""


@frozen(eq=False)
class Request:
    """One request of a caller on its way to the owning actor: a tool call, or any other. The answer goes to `slot`."""

    server: str
    method: str
    name: str
    """What it is about, as the server calls it: a tool, a prompt, a URI; empty for what is about none of these."""
    params: bytes = field(repr=False)
    """A JSON object without `_meta`, encoded in the caller's task."""
    meta: dict[str, Any] = field(repr=False)
    """Its `_meta`: the caller's own and its trace context. An actor's task does not have the caller's contextvars."""
    slot: "ReplySlot"
    limited: bool = False
    """The caller set a time limit: it replaces the transport's own."""


@frozen(eq=False)
class Question:
    """A server needs input for a call: one of the host's callbacks answers.

    The callback's result comes to `slot` as `Answered`, its refusal as `Rejected`.
    """

    name: str
    """What the call is about: see `Request`."""
    key: str
    """The server's name for this question."""
    request: "InputRequest" = field(repr=False)
    slot: "ReplySlot"
    callbacks: "Callbacks | None" = field(default=None, repr=False)
    """Those that are to answer; None: those of the connection."""


@frozen(eq=False)
class Round:
    """A call to send again, with the input that its server asked for."""

    call: Request
    """With a new slot."""
    responses: dict[str, Any] | None = field(default=None, repr=False)
    """The answers, by the keys of the questions; None if there were no questions."""
    state: str | None = field(default=None, repr=False)
    """The state that the server wants back, unchanged."""

    @property
    def slot(self) -> "ReplySlot":
        """Where the answer goes."""
        return self.call.slot


FollowUp = Question | Round
"""The next step of a call that the server answered with a request for input."""
