"""Frames that wait for the peer to read. Queueing never blocks, and it is known for each frame whether it has left."""

import trio

from ..reply import ReplySlot
from .stream import FrameStream

OUTBOX_LIMIT = 4 << 20
"""Bytes that may wait for a peer that has stopped reading. A single larger frame is taken when nothing else waits."""


class Outbox:
    """Writes at once what the peer takes, keeps the rest in order, and lets a frame be withdrawn until it is begun."""

    def __init__(self, stream: FrameStream, limit: int = OUTBOX_LIMIT) -> None:
        self._stream = stream
        self._limit = limit
        self._queue: dict[object, bytes] = {}
        """The frames that wait, in order, by their calls' slots or unique keys: thousands may be withdrawn at once."""
        self.size: int = 0
        """Bytes that wait."""
        self._blocked = trio.Event()
        self._roomless = trio.lowlevel.ParkingLot()

    @property
    def is_blocked(self) -> bool:
        """Whether the peer did not take all at once, so that `run` has something to do."""
        return self._blocked.is_set()

    def push(self, frame: bytes, slot: ReplySlot | None = None, *, bounded: bool = False) -> bool:
        """Queue a frame; `flush` sends it. False if it is bounded and there is no room for it."""
        if bounded and self._queue and self.size + len(frame) > self._limit:
            return False
        self._queue[object() if slot is None else slot] = frame
        self.size += len(frame)
        return True

    def flush(self) -> None:
        """Write as much as the peer takes now; `run` writes the rest. Never waits."""
        if not self._queue or self._blocked.is_set():
            return
        try:
            begun = self._stream.write_nowait(list(self._queue.values()))
        except trio.BrokenResourceError:
            self._blocked.set()  # for good: what is queued was not sent, and the reader will see the end
            return
        queue = list(self._queue.items())
        for key, frame in queue[:begun]:
            self.size -= len(frame)
            if isinstance(key, ReplySlot):
                key.mark_sent()
        self._queue = dict(queue[begun:])
        self._make_room()
        if self._queue or self._stream.unfinished:
            self._blocked.set()

    def withdraw(self, slot: ReplySlot) -> bool:
        """Take back the frame of a call, unless its write began."""
        frame = self._queue.pop(slot, None)
        if frame is None:
            return False
        self.size -= len(frame)
        self._make_room()
        return True

    def _make_room(self) -> None:
        if self._roomless and self.has_room:
            self._roomless.unpark_all()

    @property
    def has_room(self) -> bool:
        """Whether no more waits than the limit."""
        return self.size <= self._limit

    async def room(self) -> None:
        """Wait until there is room."""
        while not self.has_room:
            await self._roomless.park()

    async def run(self) -> None:
        """Write what the peer did not take at once, as it takes it. Returns when it reads no more."""
        while True:
            await self._blocked.wait()
            try:
                await self._stream.writable()
            except trio.BrokenResourceError:
                return
            self._blocked = trio.Event()
            for slot in [key for key in self._queue if isinstance(key, ReplySlot) and key.abandoned]:
                self.withdraw(slot)  # its caller was told that it was not sent, whoever runs first
            self.flush()
