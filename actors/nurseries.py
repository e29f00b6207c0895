"""Nurseries that keep out of the way of their block's exceptions."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_bare_nursery() -> AsyncGenerator[trio.Nursery, None]:
    """A nursery that does not wrap its block's own exception in a group, as Trio's does.

    A block that raises cancels its tasks. Exceptions of tasks come in a group. Cancellations of tasks together with the
    block are not reported.
    """
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:
                failure = error
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if failure is None or group.split(trio.Cancelled)[1] is not None:
            raise
    if failure is not None:
        try:
            raise failure
        finally:
            del failure


@asynccontextmanager
async def run_alongside(*tasks: Callable[[], Awaitable[object]]) -> AsyncGenerator[None, None]:
    """Run tasks while the block lasts; they are cancelled when it is left. A task that crashes cancels the block."""
    async with open_bare_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()
