"""Virtual time: waiting takes none."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
import trio.testing

from mcp_nursery.supervisor.preload import ALL_MODULES

T = TypeVar("T")


def run_virtual(async_fn: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run an async function with `trio.run` under a clock that jumps whenever every task waits.

    Timeouts and restart delays take no real time and are exact: the clock starts at 0. Only for servers of this
    process: a subprocess, a socket or a thread takes real time, and the clock would jump past it.
    """
    ALL_MODULES.load()  # before the loop, where it would take time
    return trio.run(async_fn, *args, clock=trio.testing.MockClock(autojump_threshold=0))
