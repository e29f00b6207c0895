"""Two nurseries that Trio does not have: tasks that last as long as a block.

`run_alongside` keeps out of the way of the block's exceptions. `open_service_nursery` is for tasks that the block
relies on: when the block is cancelled, they go on until it has unwound.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def run_alongside(*tasks: Callable[[], Awaitable[object]]) -> AsyncGenerator[None, None]:
    """Run tasks while the block lasts; they are cancelled when it is left.

    The block's own exception comes out as it is, where a nursery would wrap it in a group. A task that crashes cancels
    the block and comes out in a group.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)
        try:
            yield
        except BaseException as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure


@asynccontextmanager
async def open_service_nursery() -> AsyncGenerator[trio.Nursery, None]:
    """A nursery whose tasks are cancelled when the block has been left, and not before.

    In an ordinary nursery a cancelled block and the tasks it depends on are cancelled in the same instant, so that the
    block's own cleaning up finds nobody to talk to. Here cancellation reaches the block first. The shield that makes it
    so lasts as long as the block: bounding its end is the block's affair. A task that crashes cancels the block.
    """

    hosted: list[trio.Nursery] = []
    ready = trio.Event()

    async def host() -> None:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as services:
                hosted.append(services)
                ready.set()
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(host)
        with trio.CancelScope(shield=True):  # bounded: the host's first step, which a cancelled block needs too
            await ready.wait()
        try:
            yield hosted[0]
        finally:
            hosted[0].cancel_scope.cancel()
