"""How an actor talks MCP, on whatever carries its frames. The only place that imports `mcp.client`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ..enums import ListKind
from ..protocol import JsonRpcError

if TYPE_CHECKING:
    from mcp_types import InputRequiredResult, Tool

    from ..enums import Era
    from ..messages import Definitions, Handshake, Question, Request, Round
    from ..outcomes import Loss, Outcome
    from ..reply import ReplySlot


class Connection(Protocol):
    """One open connection of one incarnation. Entered, used and left in the incarnation's task."""

    @property
    def pid(self) -> int | None:
        """The process behind it, where there is one."""
        ...

    @property
    def stderr_tail(self) -> str:
        """The last lines that process wrote to stderr so far, without secrets that are known here."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests of callers that wait for an answer."""
        ...

    @property
    def heard_at(self) -> float:
        """When the server last sent something, on Trio's clock: any message counts, not only answers."""
        ...

    async def handshake(self, era: "Era | None") -> "Handshake":
        """Open the conversation; `era` is what an earlier incarnation found.

        Raises:
            HandshakeFailed: The server refused, disconnected, or exited on the probe.
        """
        ...

    async def list_tools(self, *, anew: bool = True) -> "tuple[Tool, ...]":
        """Every page of `tools/list`; from then on these tools can be called. Unless it is `anew`, a list that is as it
        was stays the same object.

        Raises:
            HandshakeFailed: A page could not be fetched.
        """
        ...

    async def list_others(self, kinds: "Collection[ListKind]", *, anew: bool = True) -> None:
        """Every page of these lists, if the server offers them. A list that cannot be fetched stays as it was. `anew`:
        see `list_tools`.

        Raises:
            HandshakeFailed: The connection was lost.
        """
        ...

    def expired_lists(self) -> "Collection[ListKind]":
        """The lists that are older than the server says they may get, and are not being fetched again."""
        ...

    def old_lists(self, kinds: "Collection[ListKind]") -> "Mapping[ListKind, float]":
        """Those of these lists that may have changed although the server announced nothing, and when each may be
        fetched again, on Trio's clock."""
        ...

    @property
    def definitions(self) -> "Definitions":
        """All definitions, each list as it was last fetched."""
        ...

    def submit(self, requests: "Sequence[Request]") -> None:
        """Start requests. Their outcomes come to their slots. Never waits."""
        ...

    async def answer(self, question: "Question") -> "Outcome":
        """Have the host answer a server's request for input. Cancelling the caller cancels the callback."""
        ...

    def send_round(self, again: "Round") -> None:
        """Start one more round of a call. Its outcome comes to its slot. Never waits."""
        ...

    def cancel(self, *slots: "ReplySlot") -> None:
        """Callers gave up: withdraw their calls, or tell the server with one write. Never waits."""
        ...

    async def room(self, limit: int) -> int:
        """Wait until fewer than `limit` calls are in flight; how many more may start."""
        ...

    def withdraw(self) -> None:
        """Give up all calls that were not sent yet: their callers get `not_sent`. Never waits."""
        ...

    async def idle(self) -> None:
        """Wait until no call is in flight."""
        ...

    async def watch_lists(self, tell: "Callable[[Collection[ListKind]], None]") -> None:
        """Have `tell` called whenever the server says that some of its lists changed, or may have. Never raises; may
        return."""
        ...

    async def announce_roots(self) -> None:
        """Tell the server that the host's roots changed, if roots were advertised. Never raises."""
        ...

    def want(self, uris: frozenset[str]) -> None:
        """Subscribe to these resources, and to no others. Never waits."""
        ...

    async def keep_subscribed(self, tell: Callable[[str, bool], None]) -> None:
        """Keep the wanted subscriptions until cancelled. `tell` is called with the URI of a changed resource and True;
        and with False for one that was just subscribed, or again after a gap. Never raises; may return."""
        ...

    async def probe(self) -> None:
        """Send what every server answers at once. The caller looks at `heard_at` afterwards, not at the answer.

        Raises:
            HandshakeFailed: There was no answer, or none that is valid.
        """
        ...

    def lose(self, loss: "Loss") -> None:
        """Count the connection as lost from now on: calls in flight end with this loss. Never waits."""
        ...

    async def lost(self) -> "Loss":
        """Wait until the connection is lost, and tell how."""
        ...


ACKNOWLEDGED_WITHIN: Final = 10.0
"""Seconds a server may take to acknowledge a subscription."""

Kinds = Collection[ListKind]

CHANGED: Final[Mapping[str, Kinds]] = {
    "notifications/tools/list_changed": frozenset([ListKind.TOOLS]),
    "notifications/resources/list_changed": frozenset([ListKind.RESOURCES, ListKind.TEMPLATES]),
    "notifications/prompts/list_changed": frozenset([ListKind.PROMPTS]),
}
"""Which lists a notification is about."""


class News(Protocol):
    """Takes what a server says has changed."""

    def lists_changed(self, kinds: Kinds) -> None:
        """The server says that these lists have changed."""
        ...

    def resource_updated(self, uri: str) -> None:
        """The server says that this resource has changed, or one that is part of it."""
        ...


class HandshakeFailed(Exception):
    """The connection was opened, and the handshake failed."""

    def __init__(
        self, loss: "Loss", *, era: "Era | None" = None, probe_refused: bool = False, lost: bool = False
    ) -> None:
        self.loss = loss
        self.era = era
        """The era, if that much was found."""
        self.probe_refused = probe_refused
        """The server read the era probe and ended: open again with `initialize`."""
        self.lost = lost
        """The connection is gone, and `lost()` says so already."""
        super().__init__(loss.message)


class NotValid(ValueError):
    """An answer that is not valid MCP."""

    def __init__(self, described: str, problem: str) -> None:
        self.problem = problem
        """What is wrong with it first, in a few words."""
        super().__init__(described)


BAD_ANSWER: Final = (JsonRpcError, ValueError, RuntimeError)
"""What a session raises for a refusal, for an answer it cannot read (`NotValid` is a `ValueError`; too deep nesting is
another, or a `RecursionError`), and for a version it does not share."""


class BadResult(Exception):
    """The server answered with something the protocol or the tool's own schema does not allow."""


class InputWanted(Exception):
    """No result yet: the server asks for input first."""

    def __init__(self, wanted: "InputRequiredResult") -> None:
        self.wanted = wanted
        super().__init__("the server asks for input")
