"""What carries an endpoint's frames, both ways: a stream of frames, or exchanges of HTTP.

The endpoint numbers, frames and correlates; a carrier knows when bytes leave, where an answer may come, and what a
failure on the way means.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import trio
from attrs import frozen

from ..enums import Era
from ..outcomes import Loss, Outcome
from ..reply import ReplySlot


def no_headers() -> Mapping[str, str]:
    """Of what needs none."""
    return {}


@frozen(eq=False)
class Outgoing:
    """One frame on its way to the peer, and what a carrier may need to know of it."""

    frame: bytes
    slot: ReplySlot | None = None
    """Who waits for the answer; None if there is none to come."""
    method: str | None = None
    """Of a request or a notification; None for an answer."""
    headers: Callable[[], Mapping[str, str]] = no_headers
    """What goes with it where frames have headers."""
    limited: bool = False
    """Whoever waits has set a time limit: it rules, and no carrier has one of its own."""
    bounded: bool = False
    """Of a call, which can be refused where too much waits already. Others are few, and must not be lost."""


class Origin:
    """Where a frame came from. As it stands here: where nothing but notifications come from."""

    def may_answer(self, slot: ReplySlot) -> bool:
        """Whether the answer to this request may come here."""
        del slot
        return False

    def stray(self, message: Mapping[str, Any]) -> None:
        """An answer came that nobody waits for here."""

    def garbled(self) -> None:
        """What came is no message of JSON-RPC."""

    def unread(self, problem: str) -> None:
        """A message came that is not read, for this reason, and nobody can tell whether it was an answer, or whose."""

    def judge(self, outcome: Outcome, slot: ReplySlot) -> Outcome:
        """What the answer to a request means, which may come here."""
        del slot
        return outcome

    def respond(self, frame: bytes) -> None:
        """Answer what the peer asked here. Never waits."""


class SharedOrigin(Origin):
    """The one stream that brings everything the peer says: the answer to any request may come on it."""

    _hub: "Hub | None" = None

    def may_answer(self, slot: ReplySlot) -> bool:
        """See `Origin`."""
        del slot
        return True

    def unread(self, problem: str) -> None:
        """Whoever waits may wait for this: the connection is lost, or a caller without a time limit waits for ever."""
        if self._hub is not None:
            self._hub.lose(Loss(f"sent {problem}; its beginning and end do not say which request it answers"))


class Hub(Protocol):
    """The endpoint, as its carrier knows it."""

    lost: trio.Event
    """Set once the connection is gone."""

    @property
    def in_flight(self) -> int:
        """Calls that wait for an answer."""
        ...

    def hear(self) -> None:
        """The peer gave a sign of life."""
        ...

    async def take_in(self, batch: list[bytes], origin: Origin) -> None:
        """See to frames of the peer, in order."""
        ...

    def refuse(self, frame: bytes, problem: str, origin: Origin) -> None:
        """A frame, of which its ends are enough, is not read for this reason."""
        ...

    def conclude(self, slot: ReplySlot, outcome: Outcome) -> None:
        """Decide a request: no answer counts any more."""
        ...

    def lose(self, loss: Loss) -> None:
        """The connection is lost: every request is decided."""
        ...


class Carrier(Protocol):
    """Carries the frames of one connection. Run once, by its endpoint."""

    only_era: Era | None
    """The era it knows, if it knows only one."""
    dies_of_a_probe: bool
    """Whether the end of the connection may be a server's answer to the probe of its era."""

    @property
    def pid(self) -> int | None:
        """The process behind it, where there is one."""
        ...

    def send(self, batch: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Take frames, and write at once what can be written. Never waits. Bounded ones that find no room come back."""
        ...

    async def notify(self, outgoing: Outgoing) -> None:
        """Send a notification of the session; wait only if what follows must not overtake it."""
        ...

    async def taken(self) -> None:
        """Wait until something was sent and the peer has read all of it; returns at once where nobody can tell."""
        ...

    def drop(self, slots: Sequence[ReplySlot], reason: str | None) -> None:
        """Nobody waits for these requests any more: nothing of them is sent from now on.

        Args:
            slots: Their slots.
            reason: What the peer is told of those that it may have read of; None: it is told nothing.
        """
        ...

    def opened(self) -> None:
        """The conversation has been opened: from now on a failure is one of a conversation under way."""
        ...

    def explain(self, error: Exception, problem: str) -> Loss:
        """How the connection stands after a request of the session has failed with this error; `told`: in one line."""
        ...

    async def run(self, hub: Hub, nursery: trio.Nursery) -> Loss:
        """Carry until the peer is gone, and tell how it ended."""
        ...
