"""Frames that wait for the peer to read. Queueing never blocks, and it is known for each frame whether it has left."""

from collections import OrderedDict
from typing import Final

import trio

from ..account import ANSWERS, Account
from ..reply import ReplySlot
from .stream import FrameStream

OUTBOX_LIMIT: Final = 4 << 20
"""Bytes that may wait for a peer that has stopped reading. A single larger frame is taken when nothing else waits."""
MOST_OWED: Final = 1024
"""Frames that are no requests of ours, answers above all, that may wait before a peer that asks on is not heard."""
_OVERHEAD: Final = 128
"""Bytes that a frame takes in the queue besides its own."""
_FITTED: Final = 1 << 20
"""Bytes of a frame from which on it is not copied: what its encoder reserved behind it was never touched."""


class Outbox:
    """Writes at once what the peer takes, keeps the rest in order, and lets a frame be withdrawn until it is begun."""

    def __init__(self, stream: FrameStream, limit: int = OUTBOX_LIMIT) -> None:
        self._stream = stream
        self._limit = limit
        self._queue: OrderedDict[object, bytes] = OrderedDict()
        """The frames that wait, in order, by their calls' slots or unique keys: thousands may be withdrawn at once, or
        leave one by one."""
        self.size: int = 0
        """Bytes that wait."""
        self.owed: int = 0
        """Frames among them that no slot of ours waits for: answers, and what the peer is told."""
        self.owed_bytes: int = 0
        """What the host keeps for them."""
        self._blocked = trio.Event()
        self._broken = False
        self._waits = False
        """Whether what is queued now has to wait."""
        self._roomless = trio.lowlevel.ParkingLot()
        self._account = Account()

    def charge_to(self, account: Account) -> None:
        """Charge what the peer is owed to this account from now on."""
        account.charge(ANSWERS, self.owed_bytes)
        self._account = account

    @property
    def is_blocked(self) -> bool:
        """Whether the peer did not take all at once, so that `run` has something to do."""
        return self._blocked.is_set()

    def push(self, frame: bytes, slot: ReplySlot | None = None, *, bounded: bool = False) -> bool:
        """Queue a frame; `flush` sends it. False if it is bounded and there is no room for it."""
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

    def flush(self) -> None:
        """Write as much as the peer takes now; `run` writes the rest. Never waits."""
        queue = self._queue
        if not queue or self._blocked.is_set():
            return
        try:
            begun = self._stream.write_nowait(list(queue.values()))
        except trio.BrokenResourceError:
            self._break()
            return
        if begun == len(queue):
            self._all_left()
        else:
            for _ in range(begun):
                self._left(*queue.popitem(last=False))
        self._make_room()
        if queue or self._stream.unfinished:
            self._wait()

    def _wait(self) -> None:
        self._blocked.set()
        if not self._waits:  # what was queued since then is fitted
            self._waits = True
            for key, frame in self._queue.items():
                self._queue[key] = _fitted(frame)

    def _all_left(self) -> None:
        for key in self._queue:
            if isinstance(key, ReplySlot):
                key.mark_sent()
        self._queue.clear()
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
        if count:
            self.owed_bytes += count
            self._account.charge(ANSWERS, count)

    def _break(self) -> None:
        """Nothing is written any more: what is queued was not sent, and the reader will see the end."""
        self._broken = self._waits = True
        self._blocked.set()
        self._roomless.unpark_all()

    def withdraw(self, slot: ReplySlot) -> bool:
        """Take back the frame of a call, unless its write began."""
        frame = self._queue.pop(slot, None)
        if frame is None:
            return False
        self.size -= len(frame)
        return True

    def _make_room(self) -> None:
        if self._roomless and self.has_room:
            self._roomless.unpark_all()

    @property
    def has_room(self) -> bool:
        """Whether the peer is owed no more than it may be. Our own requests do not count: their answers are to be read,
        however many of them it leaves unread."""
        return self.owed < MOST_OWED and self.owed_bytes <= self._limit

    async def room(self) -> None:
        """Wait until there is room, or the peer reads no more."""
        while not (self.has_room or self._broken):
            await self._roomless.park()

    async def run(self) -> None:
        """Write what the peer did not take at once, as it takes it. Returns when it reads no more."""
        while True:
            await self._blocked.wait()
            try:
                await self._stream.writable()
            except trio.BrokenResourceError:
                self._break()
                return
            self._blocked = trio.Event()
            for slot in [key for key in self._queue if isinstance(key, ReplySlot) and key.abandoned]:
                self.withdraw(slot)  # its caller was told that it was not sent, whoever runs first
            self.flush()


def _fitted(frame: bytes) -> bytes:
    """The frame without the buffer of its encoder, which is many times as large: it may wait for long."""
    return bytes(memoryview(frame)) if len(frame) < _FITTED else frame
