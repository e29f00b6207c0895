"""The values that cross a mailbox: reports of an incarnation, and calls on their way to it. Values only, no I/O."""

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from mcp_nursery.actors.records import define, field, frozen

from .enums import Era, ExitKind, Remembered
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
    from .reply import Codec, ReplySlot


@frozen
class ExitReason:
    """The end of an incarnation."""

    kind: ExitKind
    loss: Loss
    at: float
    """The time at which the end was noticed, on Trio's clock; the transport is closed some time later."""
    era: Remembered | None = None
    """The era found, also when the attempt failed afterwards."""
    era_answered: bool = False
    """True if the answer to the probe proves that era, as in `Handshake`."""


@frozen
class Handshake:
    """The server's description of itself when the connection was opened."""

    era: Era
    protocol_version: str
    server_info: dict[str, Any] | None
    """JSON, as far as the protocol knows it."""
    capabilities: dict[str, Any] | None
    """JSON, likewise."""
    instructions: str | None
    era_answered: bool = True
    """True if the server's answer to the probe proves its era: False if the server was silent for long, or was not
    probed."""
    offered: str | None = None
    """The version that `initialize` had to name because the server refuses the latest; None if it takes that."""
    hello: dict[str, Any] | None = field(default=None, repr=False)
    """The whole description, as it came."""

    @property
    def remembered(self) -> Remembered:
        """The memory with which the next conversation begins."""
        return self.offered or self.era


@frozen
class Definitions:
    """The definitions that a server declares: all of its lists, each in the server's own order. Replaced as a unit."""

    tools: "tuple[Tool, ...]" = ()
    resources: "tuple[Resource, ...]" = ()
    templates: "tuple[ResourceTemplate, ...]" = ()
    prompts: "tuple[Prompt, ...]" = ()
    fresh_until: float = field(default=math.inf, eq=False)
    """The time at which the first list is too old to be shown without a check, on Trio's clock."""
    old_from: float = field(default=math.inf, eq=False)
    """The time from which the first list may be old without a notification, on Trio's clock; `inf`: the server
    notifies."""

    def __bool__(self) -> bool:
        """True if the server declares anything."""
        return bool(self.tools or self.resources or self.templates or self.prompts)


NOTHING_DECLARED: Final = Definitions()
"""The definitions of a server that has listed nothing."""


@frozen
class Owner:
    """The live incarnation of a server."""

    incarnation: int
    mailbox: "Mailbox[Request]" = field(repr=False)
    """The mailbox for requests; refuses when full."""
    control: "Mailbox[ReplySlot | FollowUp]" = field(repr=False)
    """The mailbox for slots whose caller gave up, and for the next step of calls that the server answered with a
    request for input; never refuses."""


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
    """Report of an incarnation to its keeper: some of its lists were fetched again, or could not be."""

    incarnation: int
    definitions: Definitions | None = field(default=None, repr=False)
    """All of its lists; None if none was fetched."""
    error: str | None = None
    """The reason why its tools could not be listed; they stay as they were."""
    timed_out: bool = False
    """True if a list did not come within its time."""
    answers: Collection[object] = ()
    """The requests for it that it answers."""


@frozen
class Ending:
    """Report of an incarnation to its keeper: the incarnation is over, and its transport is being closed."""

    incarnation: int
    reason: ExitReason


@frozen
class Ended:
    """Report of an incarnation to its keeper: everything it owned is closed."""

    incarnation: int


Report = Opened | Connected | Refreshed | Ending | Ended
"""The reports of an incarnation to its keeper, in this order. `Ending` and `Ended` come once, unless it is
cancelled."""


CALL_TOOL: Final = "tools/call"
LISTEN: Final = "subscriptions/listen"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
CANCELLED: Final = "notifications/cancelled"
LISTED: Final[Mapping[str, str]] = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
"""List methods, and the field of their results that holds the entries."""


@define(eq=False)
class Request:
    """A caller's request, a tool call or any other: the object that travels from the caller through router and owner to
    the carrier. The answer goes to `slot`, which has the request's id once it is numbered."""

    bounded: ClassVar[bool] = True
    """True if it may be refused when too much waits."""

    server: str
    method: str
    name: str
    """The tool, prompt or URI that it is about, as the server calls it; empty if it is about none of these."""
    params: bytes = field(repr=False)
    """A JSON object without `_meta`, encoded in the caller's task."""
    meta: dict[str, Any] = field(repr=False)
    """The `_meta` of the request: the caller's own and its trace context. An actor's task does not have the caller's
    contextvars."""
    slot: "ReplySlot"
    limited: bool = False
    """True if the caller set a time limit, in place of the transport's own."""
    codec: "Codec | None" = field(default=None, repr=False)
    """The codec that writes it and reads its result. Written by its connection."""
    frame: bytes = field(default=b"", init=False, repr=False)
    """The whole request as it leaves. Written by the endpoint that numbers it."""

    def headers(self) -> Mapping[str, str]:
        """The headers of its frame, where frames have headers."""
        return {} if self.codec is None else self.codec.headers(self.params)


@frozen(eq=False)
class Question:
    """A server's request for input, answered by one of the host's callbacks.

    The callback's result comes to `slot` as `Answered`, its refusal as `Rejected`.
    """

    name: str
    """The object of the call: see `Request`."""
    key: str
    """The server's name for this question."""
    request: "InputRequest" = field(repr=False)
    slot: "ReplySlot"
    callbacks: "Callbacks | None" = field(default=None, repr=False)
    """The callbacks that are to answer; None: those of the connection."""


@frozen(eq=False)
class Round:
    """A call to send again, with the input that its server asked for."""

    call: Request
    """The call, with a new slot."""
    responses: dict[str, Any] | None = field(default=None, repr=False)
    """The answers, by the keys of the questions; None if there were no questions."""
    state: str | None = field(default=None, repr=False)
    """The state that the server wants back, unchanged."""

    @property
    def slot(self) -> "ReplySlot":
        """The slot that gets the answer."""
        return self.call.slot


FollowUp = Question | Round
"""The next step of a call that the server answered with a request for input."""
