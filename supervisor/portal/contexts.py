"""Coroutines in a context that is not their task's."""

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from types import coroutine
from typing import Any, TypeVar

import trio

T = TypeVar("T")


@coroutine
def in_context(context: Context, running: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run a coroutine in a context, inside a task that has another one.

    A task takes a new context only when it goes on after a wait. So the first step is run in the context here, the
    others by Trio. Code that follows the end of the coroutine in the same step is still run in it.
    """
    task = trio.lowlevel.current_task()
    own, task.context = task.context, context

    def begin(value: Any) -> Any:
        return context.run(running.send, value)

    step: Callable[[Any], Any] = begin
    value: Any = None
    try:
        while True:
            try:
                waits_for = step(value)
            except StopIteration as end:
                returned: T = end.value
                return returned
            finally:
                value = None  # an error would keep itself alive, by its traceback and this frame
            try:
                step, value = running.send, (yield waits_for)
            except BaseException as error:
                step, value = running.throw, error
    finally:
        task.context = own
