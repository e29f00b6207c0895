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


@asynccontextmanager
async def open_service_nursery() -> AsyncGenerator[trio.Nursery, None]:
    """A nursery whose tasks outlast its block: what cancels it from outside reaches the block first, and the tasks when
    the block has been left. So the block can use them while it cleans up. A task that crashes ends all.

    As of any nursery, leaving the block waits for the tasks: cancel its scope to end them.
    """
    opened: list[trio.Nursery] = []
    is_open, left = trio.Event(), trio.Event()

    async def run() -> None:
        with trio.CancelScope(shield=True) as scope:  # until the block is left
            async with trio.open_nursery() as services:
                opened.append(services)
                is_open.set()
                await left.wait()
                scope.shield = False

    async with trio.open_nursery() as outer:
        outer.start_soon(run)  # not `start`: one that is cancelled waits for its task, which would wait for the block
        try:
            await is_open.wait()
            yield opened[0]
        finally:
            left.set()
