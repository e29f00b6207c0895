"""The ways to wake a caller of another thread: one for each loop that a caller may have.

A signal may be set from any thread, and stays set until it is waited for. A caller looks at what it waits for, waits
for its signal, and looks again: so a signal that was set for nothing, or twice, does no harm.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final, final

import trio

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
    """Wakes a task of asyncio."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the task."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        """Wait until it is set."""
        await self._event.wait()
        self._event.clear()

    async def wait_cancelled(self) -> bool:
        """Wait for a bounded time. Further cancellations are counted by asyncio, and change nothing here."""
        until = self._loop.time() + GRACE
        timer = self._loop.call_at(until, self._event.set)
        try:
            while not self._event.is_set():
                with suppress(asyncio.CancelledError):
                    await self._event.wait()
        finally:
            timer.cancel()
        self._event.clear()
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
    """Wakes a thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Wake the thread."""
        self._event.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, or so many seconds; false if it is not."""
        found = self._event.wait(seconds)
        self._event.clear()
        return found


def is_on_asyncio() -> bool:
    """True if the caller is a task of asyncio."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def signal_here() -> Signal:
    """Make a signal for the task that asks.

    Raises:
        RuntimeError: It is no task of asyncio or Trio.
    """
    if is_on_asyncio():
        return AsyncioSignal()
    if trio.lowlevel.in_trio_task():
        return TrioSignal()
    raise RuntimeError("neither asyncio nor Trio runs here: use `with` in plain code")
