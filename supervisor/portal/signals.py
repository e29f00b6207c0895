"""The ways to wake a caller of another thread: one for each loop that a caller may have.

A signal may be set from any thread, and stays set until it is waited for. A caller looks at what it waits for, waits
for its signal, and looks again: so a signal that was set for nothing, or twice, does no harm.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final, final

import anyio
import trio

from .deliveries import Deliveries

GRACE: Final = 5.0
"""Seconds that a caller who was cancelled waits at most for the other side to end, which is told at once."""


class Signal(ABC):
    """Wakes one task."""

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
class AsyncioSignal(Signal):
    """Wakes a task of asyncio.

    Args:
        deliveries: Run functions in the loop of the task.
    """

    def __init__(self, deliveries: Deliveries) -> None:
        self._loop = asyncio.get_running_loop()
        self._deliveries = deliveries
        self._is_set = False
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the task."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._deliveries.add(self._set)

    def _set(self) -> None:
        self._is_set = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> None:
        """Wait until it is set."""
        if not self._is_set:
            self._waiting = self._loop.create_future()
            await self._waiting
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
    """Wakes a task of another Trio loop."""

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
    """Wakes a thread: it is set while its lock is free. With a `threading.Event`, which is written in Python, each
    crossing of plain code takes 1.2 times as long."""

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Wake the thread."""
        with suppress(RuntimeError):  # it is set already
            self._unset.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, or so many seconds; false if it is not."""
        return self._unset.acquire(timeout=-1 if seconds is None else seconds)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of asyncio that runs here, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Signals:
    """Makes signals, for callers of any loop."""

    def __init__(self) -> None:
        self._deliveries: dict[asyncio.AbstractEventLoop, Deliveries] = {}
        """One for each loop that has asked: as a rule that of the program."""

    def here(self) -> Signal:
        """Make a signal for the task that asks.

        Raises:
            RuntimeError: It is no task of asyncio or Trio.
        """
        loop = running_loop()
        if loop is not None:
            deliveries = self._deliveries.get(loop)
            if deliveries is None:
                deliveries = self._deliveries[loop] = Deliveries(loop.call_soon_threadsafe)
            return AsyncioSignal(deliveries)
        if trio.lowlevel.in_trio_task():
            return TrioSignal()
        raise RuntimeError("neither asyncio nor Trio runs here: use `with` in plain code")
