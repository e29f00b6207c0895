"""The carrier on a stream: one stream of whole frames each way, as over stdio and WebSocket.

Frames wait in an outbox for the peer to read. Queueing never blocks, and for each frame it is known whether it has
left: a call of which no byte has left was not sent. A cancelled request is withdrawn until then; afterwards
`notifications/cancelled` is sent (`Endpoint.cancel`).

Calls made together leave in one write. A call made alone leaves at once; but where a few have, and the peer was not
read since, more are made by other tasks in this pass of the loop, and they leave together in the next.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio

from ..account import ANSWERS, Account
from ..enums import Era
from ..outcomes import Loss
from ..overrides import override
from ..reply import ReplySlot
from ..secrets import SECRETS
from .carrier import FRAME_LIMIT, Carrier, Frame, FrameStream, Hub, Outgoing, SharedOrigin

OUTBOX_LIMIT: Final = 4 << 20
"""Bytes that may wait for a peer that has stopped reading. A single larger frame is taken when nothing else waits."""
MOST_OWED: Final = 1024
"""Frames other than our requests, mostly answers, that may wait before the peer is read no more."""
_OVERHEAD: Final = 128
"""Bytes that a frame takes in the queue besides its own."""
_FITTED: Final = 1 << 20
"""Bytes of a frame from which on it is not copied: what its encoder reserved behind it was never touched."""
_AT_ONCE: Final = 2
"""Calls that leave at once, in a write each, before the peer is read again. With 128 callers in tasks of their own, one
call takes 0.76 of the CPU that it takes where all leave at once, with eight 0.93, with one to four as much."""
_TOGETHER: Final = 1 << 16
"""Bytes that leave together: a pipe takes as many."""


class Outbox:
    """A queue: writes at once what the peer takes, keeps the rest in order, and lets a frame be withdrawn until
    begun."""

    def __init__(self, stream: FrameStream, limit: int = OUTBOX_LIMIT) -> None:
        self._stream = stream
        self._limit = limit
        self._queue: OrderedDict[object, bytes] = OrderedDict()
        """The frames that wait, in order, by their calls' slots or unique keys: thousands may be withdrawn at once, or
        leave one by one."""
        self.size: int = 0
        """Bytes that wait."""
        self.owed: int = 0
        """Frames among them without a slot of ours: answers and notifications."""
        self.owed_bytes: int = 0
        """Bytes that the host keeps for these frames."""
        self.is_blocked: bool = False
        """True if the peer did not take all at once."""
        self._nursery: trio.Nursery | None = None
        self._writing = False
        """True while a task of the nursery writes."""
        self._broken = False
        self._waits = False
        """True if queued frames have to wait."""
        self._due = False
        """True if frames of earlier steps are queued that the next `flush` may write."""
        self._roomless: trio.lowlevel.ParkingLot | None = None
        """The tasks that wait for room; made for the first."""
        self._account = Account()

    def charge_to(self, account: Account) -> None:
        """Charge what the peer is owed to this account from now on."""
        account.charge(ANSWERS, self.owed_bytes)
        self._account = account

    def open(self, nursery: trio.Nursery) -> None:
        """Flush, and from now on have a task of this nursery write what is left. It ends when nothing is left, or the
        peer reads no more."""
        self._nursery = nursery
        if self.is_blocked:
            self._begin_writing(nursery)
        else:
            self.flush()

    def push(self, frame: bytes, slot: ReplySlot | None = None, *, bounded: bool = False) -> bool:
        """Queue a frame; `flush` sends it. False if it is bounded and there is no room for it."""
        if self._due and self.size + len(frame) > self._limit:
            self.flush()  # what waits for company may not take the room of what comes
        if bounded and self._queue and self.size + len(frame) > self._limit:
            return False
        if self._waits:
            if self._broken and slot is None:
                return True  # nobody will read it
            frame = _fitted(frame)
        if slot is None:
            self.owed += 1
            self._owe(len(frame) + _OVERHEAD)
        self._queue[object() if slot is None else slot] = frame
        self.size += len(frame)
        return True

    def flush_later(self) -> None:
        """Flush in the next pass of the loop, together with what is queued until then, unless that is much."""
        if self.is_blocked or self.size >= _TOGETHER or self._nursery is None:
            self.flush()
        else:
            self._due = True
            self._begin_writing(self._nursery)

    def flush(self) -> None:
        """Write as much as the peer takes now. Never waits."""
        if self.is_blocked:
            return
        queue = self._queue
        if self._due:
            self._due = False
            # Callers were told that these were not sent.
            for slot in [key for key in queue if isinstance(key, ReplySlot) and key.decided]:
                self.withdraw(slot)
        if not queue:
            return
        try:
            begun = self._stream.write_nowait(list(queue.values()))
        except trio.BrokenResourceError:
            self._break()
            return
        owed = self.owed
        if begun == len(queue):
            self._all_left()
        else:
            for _ in range(begun):
                self._left(*queue.popitem(last=False))
        if owed and self.has_room:
            self._let_in()
        if queue or self._stream.unfinished:
            self._wait()

    def _begin_writing(self, nursery: trio.Nursery) -> None:
        """Have a task of this nursery write, unless one does."""
        if not self._writing:
            self._writing = True
            nursery.start_soon(self._write)

    async def _write(self) -> None:
        """Write frames that waited for company, and frames that the peer did not take at once, as the peer takes
        them."""
        self.flush()
        while self.is_blocked and not self._broken:
            try:
                await self._stream.writable()
            except trio.BrokenResourceError:
                self._break()
                break
            self.is_blocked, self._due = False, True
            self.flush()
        self._writing = False

    def _wait(self) -> None:
        self.is_blocked = True
        if self._nursery is not None:
            self._begin_writing(self._nursery)
        if not self._waits:  # what was queued since then is fitted
            self._waits = True
            for key, frame in self._queue.items():
                self._queue[key] = _fitted(frame)

    def _all_left(self) -> None:
        for key in self._queue:
            if isinstance(key, ReplySlot):
                key.mark_sent()
        self._queue.clear()
        if self.owed:
            self._owe(-self.owed_bytes)
        self.size = self.owed = 0
        self._waits = False

    def _left(self, key: object, frame: bytes) -> None:
        self.size -= len(frame)
        if isinstance(key, ReplySlot):
            key.mark_sent()
        else:
            self.owed -= 1
            self._owe(-len(frame) - _OVERHEAD)

    def _owe(self, count: int) -> None:
        self.owed_bytes += count
        self._account.charge(ANSWERS, count)

    def _break(self) -> None:
        """Stop writing: what is queued was not sent, and the reader will see the end."""
        self._broken = self._waits = self.is_blocked = True
        self._let_in()

    def _let_in(self) -> None:
        """Wake the tasks that wait for room: there may be some, or never again."""
        if self._roomless is not None:
            self._roomless.unpark_all()

    def withdraw(self, slot: ReplySlot) -> bool:
        """Withdraw the frame of a call, unless its write has begun."""
        frame = self._queue.pop(slot, None)
        if frame is None:
            return False
        self.size -= len(frame)
        return True

    @property
    def has_room(self) -> bool:
        """True if the peer is owed no more than allowed. Our own requests do not count: their answers are to be read,
        however many the peer leaves unread."""
        return self.owed < MOST_OWED and self.owed_bytes <= self._limit

    async def room(self) -> None:
        """Wait until there is room, or the peer reads no more."""
        while not (self.has_room or self._broken):
            if self._roomless is None:
                self._roomless = trio.lowlevel.ParkingLot()
            await self._roomless.park()


def _fitted(frame: bytes) -> bytes:
    """The frame without the buffer of its encoder, which is many times as large: the frame may wait for long."""
    return bytes(memoryview(frame)) if len(frame) < _FITTED else frame


logger: Final = logging.getLogger(__name__)


class StreamCarrier(SharedOrigin, Carrier):
    """The carrier on one stream: writes through an outbox, and reads all that comes in one task."""

    only_era: Era | None = None
    dies_of_a_probe = True

    def __init__(self, stream: FrameStream) -> None:
        self.outbox: Final = Outbox(stream)
        """The frames that the peer has not taken yet."""
        self._stream = stream
        self._hub: Hub | None = None
        self._alone = 0
        """Calls sent one by one since the peer was last read."""

    @property
    @override
    def pid(self) -> int | None:
        return self._stream.pid

    # -- out ------------------------------------------------------------------------------------------------------

    @override
    def send(self, batch: Sequence[Frame]) -> Sequence[Frame]:
        push = self.outbox.push
        refused = [each for each in batch if not push(each.frame, each.slot, bounded=each.bounded)]
        flush = self.outbox.flush
        if len(batch) == 1 and batch[0].bounded:
            self._alone += 1
            if self._alone > _AT_ONCE:
                flush = self.outbox.flush_later
        flush()
        return refused

    @override
    async def notify(self, outgoing: Outgoing) -> None:
        if outgoing.patient:
            await self.outbox.room()
        self.send([outgoing])

    @override
    async def taken(self) -> None:
        await self._stream.taken()

    @override
    def withdraw(self, slots: Sequence[ReplySlot]) -> Sequence[ReplySlot]:
        return [slot for slot in slots if not self.outbox.withdraw(slot) and slot.sent]

    @override
    def opened(self) -> None: ...

    @override
    def explain(self, error: Exception, problem: str) -> Loss:
        del error
        return Loss(problem)

    # -- in -------------------------------------------------------------------------------------------------------

    @override
    async def run(self, hub: Hub, nursery: trio.Nursery) -> Loss:
        self._hub = hub
        self.outbox.charge_to(hub.account)
        self.outbox.open(nursery)
        while await self._take_in(hub):
            pass  # nothing of a message, which may be large, is kept here until the next one comes
        return await self._stream.loss()

    async def _take_in(self, hub: Hub) -> bool:
        """Process what comes next; False at the end. The carrier of a client overrides it."""
        batch = await self._stream.read()
        if batch:
            self._alone = 0
            hub.hear()
            await hub.take_in(batch, self)
        return bool(batch)

    @override
    def stray(self, message: Mapping[str, Any]) -> None:
        logger.debug("dropped an answer nobody waits for: id %s", SECRETS.get().hide_line(repr(message.get("id"))))

    @override
    def respond(self, frame: bytes) -> None:
        if self._hub is not None and self.outbox.size > FRAME_LIMIT:
            self._hub.lose(Loss(f"asked for more than {FRAME_LIMIT >> 20} MiB of answers and did not read them"))
        if not self._is_lost:
            self.send([Outgoing(frame)])

    async def heeded(self) -> None:
        """Wait for room in the outbox: a peer that asks and does not read the answers is not read until it does."""
        await self.outbox.room()

    @property
    def _is_lost(self) -> bool:
        return self._hub is not None and self._hub.lost.is_set()
