"""The queue between writers that must not wait and a slow reader: bounded, and exact about what it lost.

Putting never waits, so that a flood holds up only the reader. Items that wait are bounded in number and in bytes, and
can be charged to an account. Beyond the bound the newest or the oldest are lost, and counted; the reader can be given
an item in their place. Items keep their order. An item is not put while one with the same key waits: a list that has
changed twice is to be read once. A reader that is cancelled has taken nothing.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from enum import Enum, auto
from typing import Generic, TypeVar

import trio

from .account import Account

T = TypeVar("T")


class WhenFull(Enum):
    """The treatment of an item for which there is no room."""

    LOSE_NEWEST = auto()
    """The new item is lost."""
    LOSE_OLDEST = auto()
    """The oldest are lost until there is room. An item that is too large by itself is lost instead."""
    EXCEED = auto()
    """The item waits, and does not count as one: only the bound in bytes holds for it."""


class BoundedQueue(Generic[T]):
    """A queue that is written without waiting. At most `items` items may wait, with `size` bytes or characters: the
    unit of `put`. `when_full` is the rule for items that are put without one.

    `gap`, called with the number of items that were lost, returns the item that is read in their place. Where the
    newest are lost, all items that come before that one is read are lost too. The account, if any, is charged for
    waiting bytes under `kind`, up to `size` bytes of the kind.
    """

    def __init__(
        self,
        items: float = math.inf,
        size: float = math.inf,
        *,
        when_full: WhenFull = WhenFull.LOSE_NEWEST,
        gap: Callable[[int], T] | None = None,
        account: Account | None = None,
        kind: str = "",
    ) -> None:
        self._most_items = items
        self._most_size = size
        self._when_full = when_full
        self._gap = gap
        self._account = account or Account()
        self._kind = kind
        self._waiting: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        """Items with their sizes, by their keys or unique ones: the oldest item that can be lost is not always the
        first."""
        self._bounded: OrderedDict[Hashable, None] = OrderedDict()
        """Keys of the items that count. Empty, it takes a third of the memory of a deque, and most are empty."""
        self._size = 0
        self._readers = trio.lowlevel.ParkingLot()
        self._finished = False
        self._closed = False
        self.lost: int = 0
        """Items that were lost, and not reported as a gap."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: T, size: int = 0, *, key: Hashable = None, when_full: WhenFull | None = None) -> bool:
        """Put an item. Never waits. False if it was lost, or the queue is closed."""
        if self._closed:
            return False
        if key in self._waiting:
            return True
        when_full = when_full or self._when_full
        if not (self._make_room(size, when_full) and self._charge(item, size)):
            self.lose()
            return False
        key = object() if key is None else key
        self._waiting[key] = item, size
        self._size += size
        if when_full is not WhenFull.EXCEED:
            self._bounded[key] = None
        self._readers.unpark_all()
        return True

    def _make_room(self, size: int, when_full: WhenFull) -> bool:
        is_behind_gap = self._when_full is WhenFull.LOSE_NEWEST and self._gap is not None and self.lost
        if is_behind_gap or size > self._most_size:
            return False
        exceeds = when_full is WhenFull.EXCEED
        while self._size + size > self._most_size or (len(self._bounded) >= self._most_items and not exceeds):
            if when_full is not WhenFull.LOSE_OLDEST or not self._bounded:
                return False
            self._remove(next(iter(self._bounded)))
            self.lose()
        return True

    def _charge(self, item: T, size: int) -> bool:
        """Charge an item that is to wait; False if there is no room for it."""
        del item
        return not size or self._account.take(self._kind, size, self._most_size)

    def _give_back(self, item: T, size: int) -> None:
        """Give back the charge of an item."""
        del item
        self._account.give_back(self._kind, size)

    def lose(self, count: int = 1) -> None:
        """Count items as lost."""
        self.lost += count
        self._readers.unpark_all()

    def finish(self) -> None:
        """End the queue: the reader gets what waits, then `trio.EndOfChannel`."""
        self._finished = True
        self._readers.unpark_all()

    def close(self) -> None:
        """Drop what waits, and refuse later items."""
        self._closed = True
        while self._waiting:
            self._remove(next(iter(self._waiting)))
        self._readers.unpark_all()

    def receive_nowait(self) -> T:
        """The next item, if any.

        Raises:
            trio.WouldBlock: There is none now.
            trio.EndOfChannel: Nothing more comes.
            trio.ClosedResourceError: The queue is closed.
        """
        if self._closed:
            raise trio.ClosedResourceError
        if self._gap is not None and self.lost and (self._when_full is WhenFull.LOSE_OLDEST or not self._waiting):
            lost, self.lost = self.lost, 0
            return self._gap(lost)
        if self._waiting:
            return self._remove(next(iter(self._waiting)))
        raise trio.EndOfChannel if self._finished else trio.WouldBlock

    def _remove(self, key: Hashable) -> T:
        item, size = self._waiting.pop(key)
        self._size -= size
        self._bounded.pop(key, None)
        self._give_back(item, size)
        return item

    async def receive(self) -> T:
        """The next item.

        Raises:
            trio.EndOfChannel: Nothing more comes.
            trio.ClosedResourceError: The queue is closed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                item = self.receive_nowait()
            except trio.WouldBlock:
                await self._readers.park()
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return item


class QueueReader(trio.abc.ReceiveChannel[T]):
    """The read end of a queue, to give away."""

    def __init__(self, queue: BoundedQueue[T]) -> None:
        self._queue = queue

    async def receive(self) -> T:
        """The next item.

        Raises:
            trio.EndOfChannel: Nothing more comes.
            trio.ClosedResourceError: The channel is closed.
        """
        return await self._queue.receive()

    async def aclose(self) -> None:
        """Read no more."""
        self._queue.close()
        await trio.lowlevel.checkpoint()
