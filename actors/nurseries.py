"""Nurseries that keep out of the way of their block's exceptions."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_bare_nursery() -> AsyncGenerator[trio.Nursery, None]:
    """A nursery out of which its block's own exception comes as it is, where Trio's wraps it in a group.

    What a task raises comes out in a group. That tasks were cancelled together with the block is nothing to tell.
    """
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:
                failure = error
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
