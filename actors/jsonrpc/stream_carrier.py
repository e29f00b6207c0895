"""The carrier on a stream: one stream of whole frames each way, as over stdio and WebSocket."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio

from ..enums import Era
from ..outcomes import Loss
from ..reply import ReplySlot
from ..secrets import HIDE_SECRETS
from . import codec
from .carrier import Hub, Outgoing, SharedOrigin
from .send_queue import Outbox
from .stream import FRAME_LIMIT, FrameStream

logger: Final = logging.getLogger(__name__)


class StreamCarrier(SharedOrigin):
    """Writes through an outbox and reads in one task; all that the peer says comes on this one stream."""

    only_era: Era | None = None
    dies_of_a_probe = True

    def __init__(self, stream: FrameStream) -> None:
        self.outbox: Final = Outbox(stream)
        """What the peer has not taken yet."""
        self._stream = stream
        self._hub: Hub | None = None
        self._nursery: trio.Nursery | None = None
        self._writing = False
        """Whether the outbox runs: it starts when the peer first does not take all at once."""

    @property
    def pid(self) -> int | None:
        """See `Carrier`."""
        return self._stream.pid

    # -- out ------------------------------------------------------------------------------------------------------

    def send(self, batch: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """See `Carrier`."""
        push = self.outbox.push
        refused = [each for each in batch if not push(each.frame, each.slot, bounded=each.bounded)]
        self.outbox.flush()
        if self.outbox.is_blocked and not self._writing and self._nursery is not None:
            self._writing = True
            self._nursery.start_soon(self.outbox.run)
        return refused

    async def notify(self, outgoing: Outgoing) -> None:
        """See `Carrier`."""
        self.send([outgoing])

    async def taken(self) -> None:
        """See `Carrier`."""
        await self._stream.taken()

    def drop(self, slots: Sequence[ReplySlot], reason: str | None) -> None:
        """Withdraw each frame of which no byte has left, and tell the peer of the others with one write."""
        begun = [slot for slot in slots if not self.outbox.withdraw(slot) and slot.sent]
        if begun and reason is not None and not self._is_lost:
            cancelled = ({"requestId": slot.request_id, "reason": slot.reason or reason} for slot in begun)
            self.send([Outgoing(codec.notification("notifications/cancelled", each)) for each in cancelled])

    def opened(self) -> None:
        """See `Carrier`."""

    def explain(self, error: Exception, problem: str) -> Loss:
        """See `Carrier`."""
        del error
        return Loss(problem)

    # -- in -------------------------------------------------------------------------------------------------------

    async def run(self, hub: Hub, nursery: trio.Nursery) -> Loss:
        """See `Carrier`."""
        self._hub, self._nursery = hub, nursery
        self.outbox.charge_to(hub.account)
        self.send([])  # what was queued before
        while await self._take_in(hub):
            pass  # nothing of a message, which may be large, is kept here until the next one comes
        return await self._stream.loss()

    async def _take_in(self, hub: Hub) -> bool:
        """Process what comes next; False at the end."""
        batch = await self._stream.read()
        if batch:
            hub.hear()
            await hub.take_in(batch, self)
        return bool(batch)

    def stray(self, message: Mapping[str, Any]) -> None:
        """See `Origin`."""
        logger.debug("dropped an answer nobody waits for: id %s", HIDE_SECRETS.get()(repr(message.get("id"))))

    def respond(self, frame: bytes) -> None:
        """See `Origin`."""
        if self._hub is not None and self.outbox.size > FRAME_LIMIT:
            self._hub.lose(Loss(f"asked for more than {FRAME_LIMIT >> 20} MiB of answers and did not read them"))
        if not self._is_lost:
            self.send([Outgoing(frame)])

    async def heeded(self) -> None:
        """See `Origin`. A peer that asks and does not read what it is answered is not heard until it does."""
        await self.outbox.room()

    @property
    def _is_lost(self) -> bool:
        return self._hub is not None and self._hub.lost.is_set()
