"""Tasks that last as long as a block, and stay out of its exceptions' way."""

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
