"""Callbacks of the caller, as the thread of the supervisor awaits them.

Each runs in the loop of the caller, in the context of the call that it is for. It is cancelled there when it is
cancelled here; the thread goes on when it has ended, or after `GRACE` seconds. Its exceptions are raised here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial, wraps
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeAlias

import trio

from mcp_nursery.actors.threads import UNCOUNTED_THREADS

from .signals import LoopSignal, begin_and_wait, soon_here
from .thread_request import Answer

Callback: TypeAlias = Callable[..., Any]
AwaitedCallback: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
CallbackWrap: TypeAlias = Callable[[Callback], AwaitedCallback]
"""The function that turns a callback of the caller into one that the thread awaits."""


def loop_callback(function: Callback) -> AwaitedCallback:
    """Turn a callback of a program in a loop of its own, of asyncio or Trio, into one that the thread awaits."""
    soon, spawn = soon_here(), _spawn_trio if trio.lowlevel.in_trio_task() else _spawn_asyncio

    @wraps(function)
    async def called(*args: Any) -> Any:
        signal, context, running = LoopSignal(), copy_context(), list[Callable[[], object]]()
        answer = Answer[Any](signal)

        def spawn_there() -> None:
            running.append(spawn(partial(_result_of, function, args), answer, context))

        def begin() -> None:
            try:
                soon(spawn_there)
            except RuntimeError:
                raise RuntimeError("the loop of the callback has ended") from None

        def cancel() -> None:
            try:
                soon(lambda: [cancel_there() for cancel_there in running])
            except RuntimeError:  # nothing runs there any more
                answer.finish(error=_cancelled())

        await begin_and_wait(begin, signal, signal, cancel)
        return answer.unwrap()

    return called


def _spawn_asyncio(
    run: Callable[[], Coroutine[Any, Any, Any]], answer: Answer[Any], context: Context
) -> Callable[[], object]:
    """Run a callback in a task of asyncio. The function that is returned cancels it."""

    def ended(task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            answer.finish(error=_cancelled())
        else:
            error = task.exception()
            answer.finish(task.result() if error is None else None, error)

    task = asyncio.get_running_loop().create_task(run(), context=context)
    task.add_done_callback(ended)
    return task.cancel


def _spawn_trio(
    run: Callable[[], Coroutine[Any, Any, Any]], answer: Answer[Any], context: Context
) -> Callable[[], object]:
    """Run a callback in a task of Trio. The function that is returned cancels it."""
    scope = trio.CancelScope()

    async def run_in_scope() -> None:
        with scope:
            await answer.finish_with(run, _cancelled())

    # Its owner is the request in the thread, which cancels it and waits for it. A nursery there would have to be opened
    # by the program.
    trio.lowlevel.spawn_system_task(run_in_scope, context=context)
    return scope.cancel


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
