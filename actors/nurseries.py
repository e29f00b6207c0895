"""Nurseries that keep out of the way of their block's exceptions."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType

import trio


class _BareNursery(AbstractAsyncContextManager[trio.Nursery]):
    """See `open_bare_nursery`. No generator, which takes 600 bytes more: each server has two such blocks open."""

    def __init__(self) -> None:
        self._manager = trio.open_nursery()
        self._nursery: trio.Nursery | None = None

    async def __aenter__(self) -> trio.Nursery:
        self._nursery = await self._manager.__aenter__()
        return self._nursery

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if failure is not None:
            self._cancel()
        try:
            await self._manager.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            if failure is None or group.split(trio.Cancelled)[1] is not None:
                raise

    def _cancel(self) -> None:
        assert self._nursery is not None  # it was entered
        self._nursery.cancel_scope.cancel()


def open_bare_nursery() -> AbstractAsyncContextManager[trio.Nursery]:
    """A nursery that does not wrap its block's own exception in a group, as Trio's does.

    A block that raises cancels its tasks. Exceptions of tasks come in a group. Cancellations of tasks together with the
    block are not reported.
    """
    return _BareNursery()


class _Alongside(_BareNursery):
    """The block of `run_alongside`."""

    def __init__(self, tasks: Sequence[Callable[[], Awaitable[object]]]) -> None:
        super().__init__()
        self._tasks = tasks

    async def __aenter__(self) -> trio.Nursery:
        nursery = await super().__aenter__()
        try:
            for task in self._tasks:
                nursery.start_soon(task)
        except BaseException as failure:
            await self.__aexit__(type(failure), failure, failure.__traceback__)
            raise
        return nursery

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cancel()
        await super().__aexit__(kind, failure, traceback)


def run_alongside(*tasks: Callable[[], Awaitable[object]]) -> AbstractAsyncContextManager[object]:
    """Run tasks while the block lasts; they are cancelled when it is left. A task that crashes cancels the block."""
    return _Alongside(tasks)


@asynccontextmanager
async def open_service_nursery() -> AsyncGenerator[trio.Nursery, None]:
    """A nursery whose tasks outlast its block: a cancellation from outside reaches the block first, and the tasks once
    it is left. So the block can use them while it cleans up. A task that crashes ends all.

    As with any nursery, leaving the block waits for the tasks: cancel its scope to end them.
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
