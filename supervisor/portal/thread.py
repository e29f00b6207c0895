"""A supervisor in a thread of its own, and the requests that cross to it."""

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from typing import Any, Final, Generic, TypeVar

import trio

from mcp_nursery.actors.errors import SupervisorClosed

from ..supervisor import Supervisor
from .signals import Signal, ThreadSignal

T = TypeVar("T")

MOST_UNREAD: Final = 100
"""Items of a stream that have crossed and were not read: more stay where they come from."""
AT_EXIT: Final = 10.0
"""Seconds that the interpreter waits at its exit for a block that was never left."""


class Outcome(Generic[T]):
    """The outcome of a request: a value, or an error."""

    __slots__ = ("error", "value")

    def __init__(self, value: T | None = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error

    def unwrap(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # there is no error


class Request(Generic[T]):
    """A function that runs in the thread, for a caller elsewhere.

    Args:
        function: The function.
        signal: Wakes the caller.
    """

    def __init__(self, function: Callable[[], Awaitable[T]], signal: Signal | ThreadSignal) -> None:
        self.function: Final = function
        self.context: Final[Context] = copy_context()
        """The context of the caller, such as its trace."""
        self.scope: Final = trio.CancelScope()
        """The scope that it runs in."""
        self.outcome: Outcome[T] | None = None
        """Set once, in the thread."""
        self._signal = signal

    def finish(self, outcome: Outcome[T]) -> None:
        """Give the caller its outcome; only the first counts."""
        if self.outcome is None:
            self.outcome = outcome
            self._signal.set()


class TrioThread:
    """A Trio loop in a thread, with one supervisor, for as long as a caller wants.

    Args:
        opening: Opens the supervisor.
    """

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[Supervisor]]) -> None:
        self._opening = opening
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="mcp-nursery", daemon=True)
        self._watchers: list[Signal | ThreadSignal] = []
        self._failure: BaseException | None = None
        self._has_begun = threading.Event()
        self._stop: trio.Event
        self._token: trio.lowlevel.TrioToken
        self._opening_scope: Final = trio.CancelScope()
        self._nursery: trio.Nursery
        self._is_ending = False
        self.has_ended = False
        """True once nothing of it is left."""
        self.supervisor: Supervisor | None = None
        """The supervisor, once it is open."""

    @property
    def is_own(self) -> bool:
        """True unless this process is a child of the one that has started it."""
        return self._process == os.getpid()

    # -- in any thread --------------------------------------------------------------------------------------------

    def start(self, watcher: Signal | ThreadSignal) -> None:
        """Start it. `watcher` is woken when the supervisor is open, and when everything has ended."""
        self._watchers.append(watcher)
        self._thread.start()
        _RUNNING.add(self)
        self._has_begun.wait()

    def end(self, watcher: Signal | ThreadSignal | None = None) -> None:
        """Have it end. `watcher` is woken when it has."""
        if not self.is_own:
            return  # a child: the servers are its parent's
        if watcher is not None:
            self._watchers.append(watcher)
        if not self._begin(self._end) and watcher is not None:
            watcher.set()

    def join(self, seconds: float | None = None) -> None:
        """Wait for the thread."""
        if self.is_own:
            self._thread.join(seconds)

    def check(self) -> None:
        """Raise what has ended it, if that was an error."""
        if self._failure is not None:
            raise self._failure

    def post(self, request: Request[Any]) -> None:
        """Have a request done.

        Raises:
            SupervisorClosed: The block is being left, or it was left, or this process is a child of the one that
                entered it.
        """
        if not self._begin(lambda: self._start(request)):
            raise SupervisorClosed

    def cancel(self, request: Request[Any]) -> None:
        """Have a request cancelled."""
        self._begin(request.scope.cancel)

    def make_room(self, room: trio.Semaphore) -> None:
        """Let half as many items cross again as may be unread."""

        def release() -> None:
            for _ in range(MOST_UNREAD // 2):
                room.release()

        self._begin(release)

    def do(self, function: Callable[[], T]) -> T:
        """Run a plain function in the thread, between two steps of its tasks, and wait for it.

        Raises:
            SupervisorClosed: As for `post`.
        """
        if threading.current_thread() is self._thread:
            return function()
        ended, found = ThreadSignal(), list[Outcome[T]]()

        def run() -> None:
            try:
                found.append(Outcome(function()))
            except BaseException as error:
                found.append(Outcome(error=error))
            ended.set()

        if not self._begin(run):
            raise SupervisorClosed
        ended.wait()
        return found[0].unwrap()

    def _begin(self, function: Callable[[], object]) -> bool:
        """Run a function in the thread. False if there is none any more."""
        if not self.is_own:
            return False
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:
            return False
        return True

    # -- in its own thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = error
        self.has_ended = True
        _RUNNING.discard(self)
        self._wake()

    def _wake(self) -> None:
        for watcher in list(self._watchers):
            watcher.set()

    async def _main(self) -> None:
        self._stop, self._token = trio.Event(), trio.lowlevel.current_trio_token()
        self._has_begun.set()
        async with trio.open_nursery(strict_exception_groups=False) as self._nursery:
            try:
                with self._opening_scope:
                    async with self._opening() as self.supervisor:
                        self._wake()
                        await self._stop.wait()
                        self._is_ending = True
            finally:
                self._is_ending = True
                self._nursery.cancel_scope.cancel()

    def _end(self) -> None:
        self._stop.set()
        if self.supervisor is None:
            self._opening_scope.cancel()

    def _start(self, request: Request[Any]) -> None:
        if self._is_ending:
            request.finish(Outcome(error=SupervisorClosed()))
        else:
            request.context.run(self._nursery.start_soon, self._perform, request)

    async def _perform(self, request: Request[Any]) -> None:
        outcome: Outcome[Any] = Outcome(error=SupervisorClosed())
        try:
            with request.scope:
                try:
                    outcome = Outcome(await request.function())
                except trio.Cancelled:
                    raise
                except BaseException as error:
                    outcome = Outcome(error=error)
        finally:
            request.finish(outcome)


_RUNNING: "Final[weakref.WeakSet[TrioThread]]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End what was never left: the interpreter would stop the threads, and leave their servers behind."""
    for thread in list(_RUNNING):
        thread.end()
        thread.join(AT_EXIT)


class Feed(Generic[T]):
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
        self.is_open = False
        """True once the stream is open."""
        self.request: Final[Request[None]] = Request(self._pump, signal)
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

    def take(self) -> T | None:
        """The next item; None if there is none yet."""
        if not self._items:
            return None
        item = self._items.popleft()
        self._taken += 1
        if self._taken == MOST_UNREAD // 2:
            self._taken = 0
            self._thread.make_room(self._room)
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
        """Raise what has ended the stream, if that was an error."""
        if self.request.outcome is not None:
            self.request.outcome.unwrap()
