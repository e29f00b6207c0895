"""A host whose threads all wait."""

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def all_places_taken() -> AsyncGenerator[None, None]:
    """Within the block every place of Trio's default limiter is taken, by a thread that waits for its end."""
    limiter, over = trio.to_thread.current_default_thread_limiter(), threading.Event()
    begun = trio.Semaphore(0)

    def wait() -> None:
        trio.from_thread.run_sync(begun.release)
        over.wait()

    async with trio.open_nursery() as nursery:
        try:
            for _ in range(int(limiter.total_tokens)):
                nursery.start_soon(trio.to_thread.run_sync, wait)
            for _ in range(int(limiter.total_tokens)):
                await begun.acquire()
            yield
        finally:
            over.set()
