"""The ways to wake a caller of another thread: a task of a loop, or a thread.

A signal may be set from any thread, more than once, and stays set.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, final

import anyio
import trio

GRACE: Final = 5.0
"""Most seconds that a cancelled caller waits for the other side to end, which is notified at once."""


class Signal(Protocol):
    """A signal that can be set."""

    def set(self) -> None:
        """Wake all that wait for it. Never waits."""


@final
class LoopSignal:
    """A signal for the tasks of the loop that it is made in, of asyncio or Trio."""

    def __init__(self) -> None:
        self._soon = soon_here()
        self._event = anyio.Event()

    def set(self) -> None:
        """Wake the tasks; nothing happens if their loop has gone."""
        with suppress(RuntimeError):
            self._soon(self._event.set)

    async def wait(self) -> None:
        """Wait until it is set."""
        await self._event.wait()

    async def wait_cancelled(self) -> None:
        """Wait once more after the task was cancelled, `GRACE` seconds at most. Further cancellations by asyncio are
        counted there, and change nothing here."""
        with anyio.move_on_after(GRACE, shield=True) as limit:
            while not self._event.is_set():
                try:
                    await self._event.wait()
                except asyncio.CancelledError:
                    if limit.cancel_called:
                        raise


@final
class ThreadSignal:
    """A signal for a thread: it is set while its lock is free. Ctrl-C in the middle of `threading.Event.wait` may leave
    the lock of the event taken, and the thread that sets the event would never go on."""

    def __init__(self) -> None:
        self._is_set = False
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Wake the thread."""
        self._is_set = True
        with suppress(RuntimeError):  # the lock is free already
            self._unset.release()

    def wait(self, seconds: float = -1) -> bool:
        """Wait until it is set, or `seconds` are over; false if it is not set by then."""
        if not self._is_set and self._unset.acquire(timeout=seconds):
            self.set()  # for others that wait
        return self._is_set


async def begin_and_wait(
    begin: Callable[[], object], signal: LoopSignal, ended: LoopSignal, cancel: Callable[[], object]
) -> None:
    """Begin something in another thread, and wait for a signal of it. If this task is cancelled meanwhile, or Ctrl-C
    comes, `cancel` ends the other side, and the task goes on when that has `ended`."""
    try:
        begin()
        await signal.wait()
    except GeneratorExit:  # the coroutine is closed: nothing may be awaited
        cancel()
        raise
    except BaseException:
        cancel()
        await ended.wait_cancelled()
        raise


def soon_here() -> Callable[..., Any]:
    """The function that has the loop which runs here call a function soon, from any thread. It raises `RuntimeError`
    once the loop has ended.

    Raises:
        RuntimeError: Neither asyncio nor Trio runs here.
    """
    if trio.lowlevel.in_trio_task():  # also where asyncio runs Trio as its guest
        return trio.lowlevel.current_trio_token().run_sync_soon
    loop = running_loop()
    if loop is None:
        raise RuntimeError("neither asyncio nor Trio runs here: use `with` in plain code")
    return loop.call_soon_threadsafe


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of asyncio that runs here, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
