"""Coroutines in a context that is not their task's."""

from collections.abc import Coroutine, Generator
from contextvars import Context
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


@coroutine
def in_context(context: Context, running: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run a coroutine in a context, inside a task that has another one. A task takes a new context only when it goes on
    after a wait."""
    go_on, value = running.send, None
    while True:
        try:
            waits_for = context.run(go_on, value)
        except StopIteration as end:
            returned: T = end.value
            return returned
        try:
            go_on, value = running.send, (yield waits_for)
        except BaseException as error:
            go_on, value = running.throw, error
