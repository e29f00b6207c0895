"""The items of a stream of the thread, on their way to a caller."""

from collections import deque
from collections.abc import AsyncIterable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Generic, TypeVar

import trio

from .signals import Signal, ThreadSignal
from .trio_thread import TrioThread
from .workers import ThreadRequest

T = TypeVar("T")

MOST_UNREAD: Final = 100
"""Items of a stream that may have crossed without being read: more stay in the thread."""


class ItemFeed(Generic[T]):
    """The items of a stream of the thread, on their way to a caller.

    Args:
        thread: The thread.
        opening: Opens the stream there.
        signal: Wakes the caller.
    """

    def __init__(
        self,
        thread: TrioThread,
        opening: Callable[[], AbstractAsyncContextManager[AsyncIterable[T]]],
        signal: Signal | ThreadSignal,
    ) -> None:
        self._thread = thread
        self._opening = opening
        self._signal = signal
        self._room: trio.Semaphore
        self._items: deque[T] = deque()
        self._taken = 0
        self.is_open: bool = False
        """True once the stream is open."""
        self.request: Final[ThreadRequest[None]] = ThreadRequest(self._pump, signal)
        """The request that brings the items; it ends with the stream."""

    async def _pump(self) -> None:
        self._room = trio.Semaphore(MOST_UNREAD)
        async with self._opening() as stream:
            self.is_open = True
            self._signal.set()
            async for item in stream:
                await self._room.acquire()
                self._items.append(item)
                self._signal.set()

    def _make_room(self) -> None:
        for _ in range(MOST_UNREAD // 2):
            self._room.release()

    def take(self) -> T | None:
        """The next item; None if there is none yet."""
        if not self._items:
            return None
        item = self._items.popleft()
        self._taken += 1
        if self._taken == MOST_UNREAD // 2:
            self._taken = 0
            self._thread.begin(self._make_room)
        return item

    @property
    def has_items(self) -> bool:
        """True if there is a next item now."""
        return bool(self._items)

    @property
    def has_ended(self) -> bool:
        """True if no item comes any more."""
        return self.request.outcome is not None and not self._items

    def check(self) -> None:
        """Raise the error that has ended the stream, if there was one."""
        if self.request.outcome is not None:
            self.request.outcome.unwrap()
