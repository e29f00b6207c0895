"""The carriers of an endpoint's frames, both ways: a stream of frames, or exchanges of HTTP.

The endpoint numbers, frames and correlates; a carrier knows when bytes leave, where an answer may come from, and what a
failure on the way means. The carrier on a stream has a `FrameStream`, which a transport opens: whole frames in and out,
and a report of how it ended.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import trio

from mcp_nursery.actors.records import frozen

from ..account import Account
from ..enums import Era
from ..messages import CANCELLED, Request
from ..outcomes import Loss, Outcome
from ..overrides import override
from ..reply import ReplySlot
from . import codec


def no_headers() -> Mapping[str, str]:
    """No headers."""
    return {}


@frozen(eq=False)
class Outgoing:
    """One frame of the session on its way to the peer, and what a carrier may need to know about it. A call travels as
    its `Request`."""

    bounded: ClassVar[bool] = False
    """Frames of the session are few, and must not be lost."""

    frame: bytes
    slot: ReplySlot | None = None
    """The slot that waits for the answer; None if no answer comes."""
    method: str | None = None
    """The method of a request or a notification; None for a response."""
    headers: Callable[[], Mapping[str, str]] = no_headers
    """The headers, where frames have headers."""
    limited: bool = False
    """True if the caller has set a time limit, which replaces the carrier's own."""
    patient: bool = False
    """True for a notification whose sender waits until the peer has room for it: there may be many."""


Frame = Request | Outgoing
"""A frame on its way to the peer: of a call, or of the session."""


def cancellation(slot: ReplySlot, reason: str) -> Outgoing:
    """The notification that a request is cancelled: for the caller's own reason if there is one, else for this one."""
    cancelled = {"requestId": slot.request_id, "reason": slot.reason or reason}
    return Outgoing(codec.notification(CANCELLED, cancelled), method=CANCELLED)


class Origin:
    """The place that a frame came from. This base class is for a source that sends only notifications."""

    @property
    def slot(self) -> ReplySlot | None:
        """The slot of the request that everything from here is about; None if unknown."""
        return None

    def may_answer(self, slot: ReplySlot) -> bool:
        """True if the answer to this request may come from here."""
        del slot
        return False

    def stray(self, message: Mapping[str, Any]) -> None:
        """Handle an answer that nobody waits for here."""

    def garbled(self, frame: bytes) -> None:
        """Handle a frame that is not JSON-RPC, or has such a message in it."""

    def unread(self, problem: str) -> None:
        """Handle a message refused unread, for this reason: it may have answered any request."""

    def judge(self, outcome: Outcome, slot: ReplySlot) -> Outcome:
        """The outcome that an answer means for its request."""
        del slot
        return outcome

    def respond(self, frame: bytes) -> None:
        """Send the response to a request that came here. Never waits."""

    async def answer(self, frame: bytes) -> None:
        """Send the response to a request that was served. May wait until the peer reads."""
        self.respond(frame)

    async def heeded(self) -> None:
        """Wait until the peer has read enough of what it was sent for more to be taken in."""


class SharedOrigin(Origin):
    """The one stream that brings everything the peer sends: the answer to any request may come on it."""

    _hub: "Hub | None" = None

    @override
    def may_answer(self, slot: ReplySlot) -> bool:
        del slot
        return True

    def unread(self, problem: str) -> None:
        """Count the connection as lost: a caller without a limit may wait for this answer, for ever."""
        if self._hub is not None:
            self._hub.lose(Loss(f"sent {problem}; its beginning and end do not say which request it answers"))


class Hub(Protocol):
    """The endpoint, as its carrier knows it."""

    lost: trio.Event
    """Set once the connection is gone."""
    account: Account
    """The account of the frames that wait for the peer."""

    @property
    def in_flight(self) -> int:
        """Calls that wait for an answer."""
        ...

    def hear(self) -> None:
        """Record that the peer sent something."""
        ...

    async def take_in(self, batch: list[bytes], origin: Origin) -> None:
        """Process frames of the peer, in order."""
        ...

    def refuse(self, frame: bytes, problem: str, origin: Origin) -> None:
        """Refuse a frame unread, for this reason; its beginning and end suffice."""
        ...

    def conclude(self, slot: ReplySlot, outcome: Outcome) -> None:
        """Decide a request: later answers are ignored."""
        ...

    def hear_no_more(self, loss: Loss) -> None:
        """Decide every request: the peer sends nothing more, though it may still read."""
        ...

    def lose(self, loss: Loss) -> None:
        """Decide every request: the connection is lost."""
        ...


class Carrier(Protocol):
    """The carrier of the frames of one connection: on streams `stream_carrier.py`, over HTTP
    `transports/http/streamable.py` and `sse.py`. Run once, by its endpoint."""

    only_era: Era | None
    """The only era that it supports; None if it supports both."""
    dies_of_a_probe: bool
    """True if the end of the connection may be a server's answer to the probe of its era."""

    @property
    def pid(self) -> int | None:
        """The process behind it, if any."""
        return None

    @property
    def awaited(self) -> str:
        """The thing that must come before any answer can, such as a connection; empty if nothing is missing."""
        return ""

    def send(self, batch: Sequence[Frame]) -> Sequence[Frame]:
        """Take frames, and write what can be written, at once or in the next pass of the loop. Never waits. Returns
        bounded ones without room."""
        ...

    async def notify(self, outgoing: Outgoing) -> None:
        """Send a notification; wait only if later messages must not overtake the notification, or if `patient`."""
        ...

    async def taken(self) -> None:
        """Wait until something was sent and the peer has read all of it or, where that is unknown, has had time to."""
        ...

    def withdraw(self, slots: Sequence[ReplySlot]) -> Sequence[ReplySlot]:
        """Withdraw requests that nobody waits for, and end what is done for them here.

        Returns:
            The slots of those that the peer may have read, and does not notice the end of.
        """
        ...

    def opened(self) -> None:
        """Record that the handshake succeeded: later failures are failures of an open connection."""
        ...

    def explain(self, error: Exception, problem: str) -> Loss:
        """The loss that this error of a session's request means; `problem` describes it in one line."""
        ...

    async def run(self, hub: Hub, nursery: trio.Nursery) -> Loss:
        """Carry frames until the peer is gone; returns how it ended."""
        ...


FRAME_LIMIT = 64 << 20
"""Bytes of one frame before the connection counts as lost: a server that never ends a line must not exhaust the
memory."""


class FrameStream(Protocol):
    """One connection that carries whole frames, as `transports/stdio.py` and `transports/websocket/` open it. Used by
    one reader and one writer task; closed by its opener."""

    @property
    def pid(self) -> int | None:
        """The process behind it, if any."""
        return None

    @property
    def unfinished(self) -> bool:
        """True if a frame was begun whose rest waits for `writable()`."""
        ...

    def write_nowait(self, frames: Sequence[bytes]) -> int:
        """Write as many frames as the peer takes now, and return how many were begun. Never waits.

        A frame that was begun counts as written: `writable()` writes its rest. The frames not counted were not touched.

        Raises:
            trio.BrokenResourceError: The peer reads no more. No frame of this call was begun.
        """
        ...

    async def writable(self) -> None:
        """Finish a frame that was begun, then wait until the peer takes more.

        Raises:
            trio.BrokenResourceError: The peer reads no more.
        """
        ...

    async def taken(self) -> None:
        """Wait until something was written and the peer has read all of it; returns at once where that is unknown."""
        ...

    async def read(self) -> list[bytes]:
        """Wait for the next whole frames, in order. The list is empty once the peer is gone, and only then.

        The peer's loss is an end, not an error: the process's exit and the end of its output count alike, and what
        was written before either is still delivered.
        """
        ...

    async def loss(self) -> Loss:
        """The reason for its end. Waits at most 0.05 s for evidence that is still under way, such as an exit code."""
        ...
