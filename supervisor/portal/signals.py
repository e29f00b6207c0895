"""The ways to wake a caller of another thread: one for each loop that a caller may have.

A signal may be set from any thread, and stays set until it is waited for. A caller looks at what it waits for, waits
for its signal, and looks again: so a signal that was set for nothing, or twice, does no harm.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, Protocol, final

import anyio
import trio

from .deliveries import Deliveries

GRACE: Final = 5.0
"""Most seconds that a cancelled caller waits for the other side to end, which is notified at once."""


class Waker(Protocol):
    """A thing that wakes all that wait for it."""

    def set(self) -> None:
        """Wake them. Never waits."""


class Signal(ABC):
    """A signal that wakes one task."""

    __slots__ = ()

    @abstractmethod
    def set(self) -> None:
        """Wake the task. Never waits; nothing happens if its loop has gone."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait until it is set."""

    @abstractmethod
    async def wait_cancelled(self) -> bool:
        """Wait once more after the task was cancelled, `GRACE` seconds at most; false if it was not set by then."""


@final
class _Wait:
    """One wait of a task of asyncio, for which it has the methods of a future that tasks use (`asyncio.isfuture`).

    If nothing else is to be done, the task goes on at the very moment at which the loop is notified. With a future of
    asyncio's own, which takes another turn of the loop, a crossing takes 1.2 times as long.
    """

    __slots__ = ("_asyncio_future_blocking", "_cancelled", "_context", "_go_on", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._go_on: Callable[[_Wait], object] | None = None
        self._context: Context | None
        self._cancelled: asyncio.CancelledError | None = None

    def __await__(self) -> Generator[Any, None, None]:
        self._asyncio_future_blocking = True
        yield self

    def end(self, *, at_once: bool) -> None:
        """Have the task go on: here, if the loop runs this outside of any task, or in the next turn."""
        go_on, self._go_on = self._go_on, None
        if go_on is None:
            return
        if at_once and self._context is not None:
            self._context.run(go_on, self)
        else:
            self._loop.call_soon(go_on, self, context=self._context)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """See `asyncio.Future`."""
        return self._loop

    def done(self) -> bool:
        """See `asyncio.Future`."""
        return self._go_on is None

    def add_done_callback(self, go_on: Callable[[Any], object], *, context: Context | None = None) -> None:
        """See `asyncio.Future`: the task waits."""
        self._go_on, self._context = go_on, context

    def cancel(self, msg: Any = None) -> bool:
        """See `asyncio.Future`: the task is cancelled."""
        if self._go_on is None:
            return False
        self._cancelled = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self.end(at_once=False)
        return True

    def result(self) -> None:
        """See `asyncio.Future`: the end of the wait."""
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled  # it would keep itself alive, by its traceback and this frame


@final
class AsyncioSignal(Signal):
    """A signal that wakes a task of asyncio, in whose loop the deliveries run."""

    __slots__ = ("_deliveries", "_is_set", "_loop", "_waits")

    def __init__(self, deliveries: Deliveries) -> None:
        self._loop = asyncio.get_running_loop()
        self._deliveries = deliveries
        self._is_set = False
        self._waits: list[_Wait] = []

    def set(self) -> None:
        """Wake the task."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._deliveries.add(self._set)

    def _set(self) -> None:
        self._is_set = True
        waits, self._waits = self._waits, []
        # A task may run its loop itself, as in notebooks: functions that were delivered with it would wait for it.
        at_once = len(waits) == 1 and self._deliveries.batch == 1
        for wait in waits:
            wait.end(at_once=at_once)

    async def wait(self) -> None:
        """Wait until it is set."""
        if not self._is_set:
            wait = _Wait(self._loop)
            self._waits.append(wait)
            try:
                await wait
            except BaseException:
                if wait in self._waits:
                    self._waits.remove(wait)
                raise
        self._is_set = False

    async def wait_cancelled(self) -> bool:
        """Wait for a bounded time. Further cancellations are counted by asyncio, and change nothing here; those of a
        scope of anyio, which come again in each turn of the loop, are held off."""
        until = self._loop.time() + GRACE
        timer = self._loop.call_at(until, self._set)
        try:
            with anyio.CancelScope(shield=True):  # for as long as the timer lets it
                while not self._is_set:
                    with suppress(asyncio.CancelledError):
                        await self.wait()
                        break
        finally:
            timer.cancel()
        self._is_set = False
        return self._loop.time() < until


@final
class TrioSignal(Signal):
    """A signal that wakes a task of another Trio loop."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._event = trio.Event()

    def set(self) -> None:
        """Wake the task."""
        with suppress(trio.RunFinishedError):  # nobody waits any more
            self._token.run_sync_soon(self._set)

    def _set(self) -> None:
        self._event.set()  # of the moment at which this runs: each wait makes a new one

    async def wait(self) -> None:
        """Wait until it is set."""
        await self._event.wait()
        self._event = trio.Event()

    async def wait_cancelled(self) -> bool:
        """Wait for a bounded time."""
        with trio.CancelScope(shield=True), trio.move_on_after(GRACE) as late:
            await self.wait()
        return not late.cancelled_caught


@final
class ThreadSignal:
    """A signal that wakes a thread: it is set while its lock is free. With a `threading.Event`, which is written in
    Python, each crossing of plain code takes 1.2 times as long."""

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Wake the thread."""
        with suppress(RuntimeError):  # it is set already
            self._unset.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, or `seconds` are over; false if it is not set by then."""
        return self._unset.acquire(timeout=-1 if seconds is None else seconds)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of asyncio that runs here, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Signals:
    """The maker of signals for callers of any loop."""

    def __init__(self) -> None:
        self._deliveries: dict[asyncio.AbstractEventLoop, Deliveries] = {}
        """The deliveries to each loop that has asked: as a rule that of the program."""

    def here(self) -> Signal:
        """Make a signal for the task that asks.

        Raises:
            RuntimeError: The caller is no task of asyncio or Trio.
        """
        if trio.lowlevel.in_trio_task():  # also where asyncio runs Trio as its guest
            return TrioSignal()
        loop = running_loop()
        if loop is not None:
            deliveries = self._deliveries.get(loop)
            if deliveries is None:
                self._forget_closed()
                deliveries = self._deliveries[loop] = Deliveries(loop.call_soon_threadsafe)
            elif deliveries.has_more:  # Ctrl-C may have come between a wake-up and what it was for
                loop.call_soon(deliveries.run)
            return AsyncioSignal(deliveries)
        raise RuntimeError("neither asyncio nor Trio runs here: use `with` in plain code")

    def _forget_closed(self) -> None:
        for loop in list(self._deliveries):
            if loop.is_closed():
                self._deliveries.pop(loop, None)
