"""The items of a stream of the thread, on their way to a caller."""

from collections import deque
from collections.abc import AsyncIterable, Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Final, Generic, TypeVar

import trio

from mcp_nursery.actors.errors import SupervisorClosed

from .signals import Signal
from .thread_request import ThreadRequest
from .trio_thread import TrioThread

T = TypeVar("T")
S = TypeVar("S", bound=Signal)

MOST_UNREAD: Final = 100
"""Items of a stream that may have crossed without being read: more stay in the thread."""


class ItemFeed(Generic[T, S]):
    """The items of a stream of the thread, on their way to callers, tasks of a loop or threads. Each waits for a signal
    of its own, and all are woken by an item and by the end. `opening` opens the stream in the thread."""

    def __init__(
        self,
        thread: TrioThread,
        opening: Callable[[], AbstractAsyncContextManager[AsyncIterable[T]]],
        make_signal: Callable[[], S],
    ) -> None:
        self._thread = thread
        self._opening = opening
        self._room = trio.lowlevel.ParkingLot()
        self._items: deque[T] = deque()
        self._readers: list[Signal] = []
        self._is_open = False
        self.opened: Final[S] = make_signal()
        """The signal that the stream is open, or has ended."""
        self.ended: Final[S] = make_signal()
        """The signal that the stream has ended."""
        self.is_left: bool = False
        """True once its block was left."""
        self.request: Final[ThreadRequest[None]] = ThreadRequest(self._pump, self)
        """The request that brings the items; it ends with the stream."""

    def set(self) -> None:
        """Wake all that wait: the stream has ended."""
        self.opened.set()
        self.ended.set()
        self._wake_readers()

    def _wake_readers(self) -> None:
        for signal in tuple(self._readers):
            signal.set()

    async def _pump(self) -> None:
        async with self._opening() as stream:
            self._is_open = True
            self.opened.set()
            async for item in stream:
                while len(self._items) >= MOST_UNREAD:
                    await self._room.park()
                self._items.append(item)
                self._wake_readers()

    def begin(self) -> None:
        """Have the thread open the stream."""
        self._thread.post(self.request)

    def take(self) -> T | None:
        """The next item; None if there is none yet."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    @contextmanager
    def reading(self, signal: Signal) -> Generator[bool, None, None]:
        """Have this signal set by the next item and the end while the block lasts. Gives true if that has to be waited
        for.

        Raises:
            SupervisorClosed: This process is a child of the one that has opened the stream.
        """
        if not self._thread.is_own:
            raise SupervisorClosed
        self._readers.append(signal)
        try:
            yield not (self._items or self.has_ended) and self._thread.begin(self._room.unpark_all)
        finally:
            self._readers.remove(signal)

    @property
    def has_ended(self) -> bool:
        """True if no item comes any more."""
        return self.is_left or (self.request.is_there and not self._items)

    def leave(self) -> None:
        """End the stream for all who read it: its block is left."""
        self.is_left = True
        self._wake_readers()
        self.cancel()

    def cancel(self) -> None:
        """Have the thread end the stream."""
        self._thread.cancel(self.request)

    def check_opened(self) -> None:
        """Raise the error of a stream that has ended before it was open."""
        if not self._is_open:
            self.check()

    def check(self) -> None:
        """Raise the error that has ended the stream, if there was one."""
        if self.request.is_there and not self.is_left:
            self.request.unwrap()


class CrossingStream(Generic[T, S]):
    """A stream of the thread, as its callers have it: it is read in its block. `opening` opens it in the thread."""

    def __init__(
        self, thread: TrioThread, opening: Callable[[], AbstractAsyncContextManager[AsyncIterable[T]]]
    ) -> None:
        self._thread = thread
        self._opening = opening
        self._feed: ItemFeed[T, S] | None = None

    def _make_feed(self, make_signal: Callable[[], S]) -> ItemFeed[T, S]:
        """A feed for the block that is entered."""
        if self._feed is not None and not self._feed.is_left:
            raise RuntimeError("the stream is open: leave its block first, or make another one")
        return ItemFeed(self._thread, self._opening, make_signal)

    def _feed_in_block(self) -> ItemFeed[T, S]:
        """The feed of the block that was entered last."""
        if self._feed is None:
            raise RuntimeError("the stream is not open: `with` opens it, and what that gives is read")
        return self._feed
