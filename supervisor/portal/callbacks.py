"""Callbacks of the caller, as the thread of the supervisor awaits them.

Each runs in the loop of the caller, in the context of the call that it is for. It is cancelled there when it is
cancelled here; the thread goes on when it has ended, or after `GRACE` seconds. Its exceptions are raised here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial, wraps
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeAlias

import trio

from mcp_nursery.actors.threads import UNCOUNTED_THREADS

from .outcome import ThreadOutcome, run_to_outcome
from .signals import GRACE, running_loop

Callback: TypeAlias = Callable[..., Any]
AwaitedCallback: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
CallbackWrap: TypeAlias = Callable[[Callback], AwaitedCallback]
"""The function that turns a callback of the caller into one that the thread awaits."""


class _Crossing:
    """One call of a callback, on its way to the loop of the caller and back."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._ended = trio.Event()
        self._outcome: ThreadOutcome[Any] | None = None

    def finish(self, outcome: ThreadOutcome[Any]) -> None:
        """Give the thread its outcome; only the first counts. May be called in any thread."""
        if self._outcome is None:
            self._outcome = outcome
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._ended.set)

    async def wait(self, cancel: Callable[[], object]) -> Any:
        """Wait for the outcome. `cancel`: cancels the callback in its loop."""
        try:
            await self._ended.wait()
        except trio.Cancelled:
            cancel()
            with trio.CancelScope(shield=True), trio.move_on_after(GRACE):
                await self._ended.wait()
            raise
        assert self._outcome is not None  # it has ended
        return self._outcome.unwrap()


def loop_callback(function: Callback) -> AwaitedCallback:
    """Turn a callback of a program in a loop of its own into one that the thread awaits."""
    return trio_callback(function) if running_loop() is None else asyncio_callback(function)


def asyncio_callback(function: Callback) -> AwaitedCallback:
    """Turn a callback of a program on asyncio into one that the thread awaits."""
    loop = asyncio.get_running_loop()

    @wraps(function)
    async def called(*args: Any) -> Any:
        crossing, tasks = _Crossing(), list[asyncio.Task[Any]]()

        def ended(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                crossing.finish(ThreadOutcome(error=_cancelled()))
            else:
                error = task.exception()
                crossing.finish(ThreadOutcome(task.result()) if error is None else ThreadOutcome(error=error))

        def begin() -> None:
            task = loop.create_task(_result_of(function, args))
            tasks.append(task)
            task.add_done_callback(ended)

        def cancel() -> None:
            try:
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            except RuntimeError:  # the loop is closed: nothing runs there any more
                crossing.finish(ThreadOutcome(error=_cancelled()))

        try:
            loop.call_soon_threadsafe(begin, context=copy_context())
        except RuntimeError:
            raise RuntimeError("the loop of the callback is closed") from None
        return await crossing.wait(cancel)

    return called


def trio_callback(function: Callback) -> AwaitedCallback:
    """Turn a callback of a program on another Trio loop into one that the thread awaits."""
    home = trio.lowlevel.current_trio_token()

    @wraps(function)
    async def called(*args: Any) -> Any:
        crossing, scope = _Crossing(), trio.CancelScope()

        async def run() -> None:
            with scope:
                await run_to_outcome(partial(_result_of, function, args), crossing.finish, _cancelled)

        def cancel() -> None:
            try:
                home.run_sync_soon(scope.cancel)
            except trio.RunFinishedError:  # nothing runs there any more
                crossing.finish(ThreadOutcome(error=_cancelled()))

        context = copy_context()
        try:
            # Its owner is the request here, which cancels it and waits for it. A nursery there would have to be opened
            # by the program.
            home.run_sync_soon(lambda: trio.lowlevel.spawn_system_task(run, context=context))
        except trio.RunFinishedError:
            raise RuntimeError("the loop of the callback has ended") from None
        return await crossing.wait(cancel)

    return called


def thread_callback(function: Callback) -> AwaitedCallback:
    """Turn a callback of plain code into one that the thread awaits: a plain function runs in a thread of its own,
    which is abandoned if it is cancelled; a coroutine function runs on Trio itself."""
    if iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return function

    @wraps(function)
    async def called(*args: Any) -> Any:
        return await UNCOUNTED_THREADS.run(function, *args, abandon_on_cancel=True)

    return called


async def _result_of(function: Callback, args: tuple[Any, ...]) -> Any:
    value: Awaitable[Any] | Any = function(*args)
    return await value if isawaitable(value) else value


def _cancelled() -> RuntimeError:
    return RuntimeError("the callback was cancelled in its own loop")
