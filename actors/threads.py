"""Threads of the library's own. Trio's default limiter has 40 places, and the host uses them too: while its threads
wait, for a person perhaps, nothing that needs such a place begins, and servers would neither start nor end.

Work of one kind has places of its own, so that none waits for another kind that hangs.
"""

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MOST_THREADS = 40
"""Threads at once for work of one kind, in one run of Trio."""


class ThreadPlaces:
    """Places for threads that do work of one kind: `most` of them, infinite where the callers are few, or may not wait.
    Each run of Trio has its own: a `CapacityLimiter` belongs to one."""

    def __init__(self, kind: str, most: float = MOST_THREADS) -> None:
        self._most = most
        self._limiter: Final = trio.lowlevel.RunVar[trio.CapacityLimiter | None](f"mcp_nursery_{kind}_threads", None)

    async def run(self, work: Callable[[*Ts], T], *args: *Ts, abandon_on_cancel: bool = False) -> T:
        """Do the work in a thread, as `trio.to_thread.run_sync` does. `abandon_on_cancel`: a caller that is cancelled
        does not wait for its end; it keeps its place until then."""
        limiter = self._limiter.get()
        if limiter is None:
            limiter = trio.CapacityLimiter(self._most)
            self._limiter.set(limiter)
        return await trio.to_thread.run_sync(work, *args, abandon_on_cancel=abandon_on_cancel, limiter=limiter)


LOOK_THREADS: Final = ThreadPlaces("look")
"""The threads that look at the processes of the machine: no process is ended without a look."""
START_THREADS: Final = ThreadPlaces("start")
"""The threads that start processes, of programs on a slow disk perhaps."""
BRIEF_THREADS: Final = ThreadPlaces("brief")
"""The threads for what takes a moment: imports, authorities of certificates, metrics."""
SLOW_THREADS: Final = ThreadPlaces("slow")
"""The threads for what may take long or hang: files of the user, keyrings, databases of tokens, browsers."""
UNCOUNTED_THREADS: Final = ThreadPlaces("uncounted", math.inf)
"""The threads for work that its callers bound: a store does one batch at a time, a callback is one of a call."""


async def open_process(command: list[str], *, begun: Callable[[int], object] = int, **options: Any) -> trio.Process:
    """Start a process as `trio.lowlevel.open_process` does, which takes a place of the default limiter, and has no
    parameter for another: in a thread it has a run of Trio to itself, with all places free.

    The process is not tied to that run. Starting it takes a millisecond longer. `begun` is called in the thread with
    the number of the process as soon as it runs: the loop may be busy. It may not raise.
    """

    async def start() -> trio.Process:
        process = await trio.lowlevel.open_process(command, **options)
        begun(process.pid)
        return process

    return await START_THREADS.run(trio.run, start)
