"""The ways to wake a caller of another thread: one for each loop that a caller may have."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Final

import trio

GRACE: Final = 5.0
"""Seconds that a caller who was cancelled waits at most for the other side to end: it is told at once."""

Callback = Callable[..., Any]


class Signal(ABC):
    """Wakes one caller. It may be set from any thread, and stays set until it is waited for."""

    @abstractmethod
    def set(self) -> None:
        """Wake the caller. Never waits; nothing happens if its loop has gone."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait until it is set, in the caller's loop."""

    @abstractmethod
    async def wait_cancelled(self) -> bool:
        """Wait once more after the caller was cancelled, `GRACE` seconds at most. False if it was not set by then."""


class AsyncioSignal(Signal):
    """Wakes a task of asyncio."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the caller."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        """Wait until it is set."""
        await self._event.wait()
        self._event.clear()

    async def wait_cancelled(self) -> bool:
        """Wait for a bounded time; further cancellations change nothing."""
        until = self._loop.time() + GRACE
        timer = self._loop.call_at(until, self._event.set)
        while not self._event.is_set():
            with suppress(asyncio.CancelledError):
                await self._event.wait()
        timer.cancel()
        self._event.clear()
        return self._loop.time() < until


class TrioSignal(Signal):
    """Wakes a task of another Trio loop."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._event = trio.Event()

    def set(self) -> None:
        """Wake the caller."""
        with suppress(trio.RunFinishedError):  # nobody waits any more
            self._token.run_sync_soon(lambda: self._event.set())  # the event of that moment

    async def wait(self) -> None:
        """Wait until it is set."""
        await self._event.wait()
        self._event = trio.Event()

    async def wait_cancelled(self) -> bool:
        """Wait for a bounded time."""
        with trio.CancelScope(shield=True), trio.move_on_after(GRACE) as late:
            await self.wait()
        return not late.cancelled_caught


class ThreadSignal:
    """Wakes a thread that waits."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Wake the caller."""
        self._event.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, or so many seconds. False if it is not."""
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
    """A signal for the task that asks.

    Raises:
        RuntimeError: It is no task of asyncio or Trio.
    """
    if is_on_asyncio():
        return AsyncioSignal()
    if trio.lowlevel.in_trio_task():
        return TrioSignal()
    raise RuntimeError("neither asyncio nor Trio runs here: use `with` in plain code")


# -- callbacks of the caller, in its own loop --------------------------------------------------------------------------


def asyncio_callback(function: Callback) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A callback of a program on asyncio, to be awaited on Trio: it runs in the loop of the program, and is cancelled
    there when it is cancelled here."""
    loop = asyncio.get_running_loop()

    async def called(*args: Any) -> Any:
        token, ended = trio.lowlevel.current_trio_token(), trio.Event()
        done: list[Callable[[], Any]] = []
        tasks: list[asyncio.Task[None]] = []

        def settle(outcome: Callable[[], Any]) -> None:
            done.append(outcome)
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(ended.set)

        async def run() -> None:
            try:
                value = await _result_of(function, args)
            except asyncio.CancelledError:
                settle(_raiser(RuntimeError("the callback was cancelled in its own loop")))
                raise
            except BaseException as error:
                settle(_raiser(error))
                if not isinstance(error, Exception):
                    raise
            else:
                settle(lambda: value)

        try:
            loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(run())))
        except RuntimeError:
            raise RuntimeError("the loop of the callback is closed") from None
        try:
            await ended.wait()
        except trio.Cancelled:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            with trio.CancelScope(shield=True), trio.move_on_after(GRACE):
                await ended.wait()
            raise
        return done[0]()

    return called


def trio_callback(function: Callback) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A callback of a program on another Trio loop, to be awaited on this one."""
    home = trio.lowlevel.current_trio_token()

    async def called(*args: Any) -> Any:
        def cross() -> Any:
            return trio.from_thread.run(_result_of, function, args, trio_token=home)

        return await trio.to_thread.run_sync(cross, abandon_on_cancel=True)

    return called


def thread_callback(function: Callback) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A callback of plain code, to be awaited on Trio: a plain function runs in a thread; a coroutine function runs on
    Trio itself."""

    async def called(*args: Any) -> Any:
        value = await trio.to_thread.run_sync(lambda: function(*args), abandon_on_cancel=True)
        return await value if isawaitable(value) else value

    return called


async def _result_of(function: Callback, args: tuple[Any, ...]) -> Any:
    value: Awaitable[Any] | Any = function(*args)
    return await value if isawaitable(value) else value


def _raiser(error: BaseException) -> Callable[[], Any]:
    def raises() -> Any:
        raise error

    return raises
