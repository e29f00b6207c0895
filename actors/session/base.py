"""How an actor talks MCP, on whatever carries its frames. The only place that imports `mcp.client`."""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mcp_types import Tool

    from ..enums import Era, ListKind
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
        """When the server was last heard of, on Trio's clock: any message counts, not only answers."""
        ...

    async def handshake(self, era: "Era | None") -> "Handshake":
        """Open the conversation; `era` is what an earlier incarnation found.

        Raises:
            HandshakeFailed: The server refused, vanished, or died of the probe.
        """
        ...

    async def list_tools(self) -> "tuple[Tool, ...]":
        """Every page of `tools/list`; from then on these tools can be called.

        Raises:
            HandshakeFailed: A page could not be had.
        """
        ...

    async def list_others(self, kinds: "Collection[ListKind]") -> None:
        """Every page of these lists, as far as the server has them. One that cannot be had stays as it was.

        Raises:
            HandshakeFailed: The connection was lost.
        """
        ...

    @property
    def definitions(self) -> "Definitions":
        """All that was listed, each list as it was had last."""
        ...

    def submit(self, requests: "Sequence[Request]") -> None:
        """Start requests. Their outcomes come to their slots. Never waits."""
        ...

    async def answer(self, question: "Question") -> "Outcome":
        """Have the host answer what the server asks. The caller's cancellation is the callback's."""
        ...

    def send_round(self, again: "Round") -> None:
        """Start one more round of a call. Its outcome comes to its slot. Never waits."""
        ...

    def cancel(self, *slots: "ReplySlot") -> None:
        """Callers gave up: take their calls back, or tell the server with one write. Never waits."""
        ...

    async def room(self, limit: int) -> int:
        """Wait until fewer than `limit` calls are in flight; how many more may start."""
        ...

    def withdraw(self) -> None:
        """Give up all that was not sent yet: its callers learn that it was not. Never waits."""
        ...

    async def idle(self) -> None:
        """Wait until no call is in flight."""
        ...

    async def watch_lists(self, tell: "Callable[[Collection[ListKind]], None]") -> None:
        """Have `tell` called whenever the server says that some of its lists changed, or may have. Never raises; may
        return."""
        ...

    async def announce_roots(self) -> None:
        """Tell the server that the host's roots are others, if it was told that there are any. Never raises."""
        ...

    def want(self, uris: frozenset[str]) -> None:
        """Subscribe to these resources, and to no others. Never waits."""
        ...

    async def keep_subscribed(self, tell: Callable[[str, bool], None]) -> None:
        """Subscribe to what is wanted until cancelled. `tell` is called with the URI of what has changed, and True; and
        with False for what was just subscribed, or again after a gap. Never raises; may return."""
        ...

    async def probe(self) -> None:
        """Ask something that every server answers at once. Who asks looks at `heard_at` afterwards, not at the answer.

        Raises:
            HandshakeFailed: There was no answer, or one that is none of the protocol.
        """
        ...

    def lose(self, loss: "Loss") -> None:
        """Count the connection as lost from now on: calls in flight end with this loss. Never waits."""
        ...

    async def lost(self) -> "Loss":
        """Wait until the connection is lost, and tell how."""
        ...


class HandshakeFailed(Exception):
    """The connection opened, and the conversation did not."""

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
