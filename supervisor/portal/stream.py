"""The items of a stream of the thread, on their way to a caller."""

from collections import deque
from collections.abc import AsyncIterable, Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from itertools import count
from typing import Final, Generic, TypeVar

import trio

from .signals import Signal, ThreadSignal
from .trio_thread import TrioThread
from .workers import ThreadRequest

T = TypeVar("T")

MOST_UNREAD: Final = 100
"""Items of a stream that may have crossed without being read: more stay in the thread."""


class ItemFeed(Generic[T]):
    """The items of a stream of the thread, on their way to callers, tasks of a loop or threads. Each waits for a signal
    of its own, and all are woken by an item and by the end. `opening` opens the stream in the thread."""

    def __init__(
        self, thread: TrioThread, opening: Callable[[], AbstractAsyncContextManager[AsyncIterable[T]]]
    ) -> None:
        self._thread = thread
        self._opening = opening
        self._room: trio.Semaphore
        self._items: deque[T] = deque()
        self._numbers = count(1)  # of the items that are taken: two threads never get the same one
        self._waiting: list[Signal | ThreadSignal] = []
        self.is_open: bool = False
        """True once the stream is open."""
        self.is_left: bool = False
        """True once its block was left."""
        self.request: Final[ThreadRequest[None]] = ThreadRequest(self._pump, self)
        """The request that brings the items; it ends with the stream."""

    def set(self) -> None:
        """Wake all that wait."""
        for signal in tuple(self._waiting):
            signal.set()

    @contextmanager
    def waking(self, signal: Signal | ThreadSignal) -> Generator[None, None, None]:
        """Have this signal set, too, while the block lasts. Look at what is waited for inside of the block."""
        self._waiting.append(signal)
        try:
            yield
        finally:
            self._waiting.remove(signal)

    async def _pump(self) -> None:
        self._room = trio.Semaphore(MOST_UNREAD)
        async with self._opening() as stream:
            self.is_open = True
            self.set()
            async for item in stream:
                await self._room.acquire()
                self._items.append(item)
                self.set()

    def _make_room(self) -> None:
        for _ in range(MOST_UNREAD // 2):
            self._room.release()

    def take(self) -> T | None:
        """The next item; None if there is none yet."""
        try:
            item = self._items.popleft()
        except IndexError:
            return None
        if next(self._numbers) % (MOST_UNREAD // 2) == 0:
            self._thread.begin(self._make_room)
        return item

    @property
    def has_items(self) -> bool:
        """True if there is a next item now."""
        return bool(self._items)

    @property
    def has_ended(self) -> bool:
        """True if no item comes any more."""
        return self.is_left or (self.request.outcome is not None and not self._items)

    def leave(self) -> None:
        """End the stream for all who read it: its block is left."""
        self.is_left = True
        self.set()
        self._thread.cancel(self.request)

    def check(self) -> None:
        """Raise the error that has ended the stream, if there was one."""
        if self.request.outcome is not None and not self.is_left:
            self.request.outcome.unwrap()


class CrossingStream(Generic[T]):
    """A stream of the thread, as its callers have it: it is read in its block. `opening` opens it in the thread."""

    def __init__(
        self, thread: TrioThread, opening: Callable[[], AbstractAsyncContextManager[AsyncIterable[T]]]
    ) -> None:
        self._thread = thread
        self._opening = opening
        self._feed: ItemFeed[T] | None = None

    def _make_feed(self) -> ItemFeed[T]:
        """A feed for the block that is entered."""
        if self._feed is not None and not self._feed.is_left:
            raise RuntimeError("the stream is open: leave its block first, or make another one")
        return ItemFeed(self._thread, self._opening)

    def _feed_in_block(self) -> ItemFeed[T]:
        """The feed of the block that was entered last."""
        if self._feed is None:
            raise RuntimeError("the stream is not open: `with` opens it, and what that gives is read")
        return self._feed
