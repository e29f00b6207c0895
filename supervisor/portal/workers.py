"""The tasks of the thread that do what callers elsewhere ask for, one request after another.

Most requests are short and are not cancelled, and a task and a cancel scope for each cost more than both wake-ups. So a
task that has done a request waits for the next one, in the scope that it has, and ends only if that was cancelled or if
enough others wait. Crossing takes 0.7 of the CPU time that it takes with a task and a scope for each request, 0.63 with
128 at once.

One of those that wait is the leader: it waits for other threads, does the first request that comes itself, and has
another one lead meanwhile (the pattern leader and followers). Where `TrioToken.run_sync_soon` wakes a worker, which
takes one more turn of the loop, a crossing takes 1.2 times as long.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from typing import Any, Final, Generic, TypeVar

import trio

from mcp_nursery.actors.errors import SupervisorClosed
from mcp_nursery.actors.nurseries import open_bare_nursery

from .contexts import in_context
from .deliveries import Deliveries
from .outcome import ThreadOutcome, run_to_outcome
from .signals import Waker
from .wakeup import Wakeup

T = TypeVar("T")

MOST_IDLE: Final = 128
"""Tasks that may wait for a request. Any more end when they have done theirs."""


class ThreadRequest(Generic[T]):
    """A function that runs in the thread, for a caller elsewhere, whom the signal wakes."""

    def __init__(self, function: Callable[[], Awaitable[T]], signal: Waker) -> None:
        self.function: Final = function
        self.context: Final[Context] = copy_context()
        """The context of the caller, such as its trace."""
        self.scope: trio.CancelScope | None = None
        """The scope that it runs in, from its beginning; when it has ended, others run there."""
        self.outcome: ThreadOutcome[T] | None = None
        """The outcome, set once, in the thread."""
        self.signal: Final = signal

    def cancel(self) -> None:
        """Cancel it, unless it has ended. In the thread."""
        if self.scope is None:
            self.finish(ThreadOutcome(error=SupervisorClosed()))  # Ctrl-C came before it was on its way
        elif self.outcome is None:
            self.scope.cancel()

    def finish(self, outcome: ThreadOutcome[T]) -> None:
        """Give the caller its outcome; only the first counts."""
        if self.outcome is None:
            self.outcome = outcome
            self.signal.set()


class Workers:
    """The tasks that do requests, each in the context of its caller, until the nursery ends them. `wakeup` wakes the
    leader. Everything but `deliveries` is for the thread itself."""

    def __init__(self, nursery: trio.Nursery, wakeup: Wakeup) -> None:
        self._nursery = nursery
        self._leader: _Worker | None = None
        self.wakeup: Final = wakeup
        """The wake-up of the leader."""
        self.deliveries: Final = Deliveries(wakeup.wake)
        """The functions to run in the thread; any thread may add some."""
        self.idle: Final = list[_Worker]()
        """The tasks that wait for a request, without the leader."""
        self._start(None)

    def begin(self, request: ThreadRequest[Any]) -> None:
        """Begin a request. Only a function that was delivered may do so."""
        if self._leader is not None and self._leader.request is None:
            self._leader.give(request)
        elif self.idle:
            self.idle.pop().wake(request)
        else:
            self._start(request)

    def lead(self, leader: "_Worker | None") -> None:
        """Have a task lead, or, with None, any that waits."""
        self._leader = leader
        if leader is None:
            if self.idle:
                self.idle.pop().wake(None)
            else:
                self._start(None)

    def _start(self, request: ThreadRequest[Any] | None) -> None:
        self._nursery.start_soon(_Worker(self, request).run)


class _Worker:
    """A task that does requests. Without a first request it leads."""

    def __init__(self, workers: Workers, request: ThreadRequest[Any] | None) -> None:
        self._workers = workers
        self._scope = trio.CancelScope()
        self._task: trio.lowlevel.Task
        self.request: ThreadRequest[Any] | None = None
        if request is not None:
            self.give(request)

    def give(self, request: ThreadRequest[Any]) -> None:
        """Give it a request, which it does when it goes on."""
        self.request, request.scope = request, self._scope

    def wake(self, request: ThreadRequest[Any] | None) -> None:
        """Go on, with a request or as the leader."""
        if request is not None:
            self.give(request)
        trio.lowlevel.reschedule(self._task)

    async def run(self) -> None:
        """Do requests until one is cancelled."""
        self._task = trio.lowlevel.current_task()
        with self._scope:
            while True:
                if self.request is None:
                    await self._lead()
                await self._do()
                if self._scope.cancel_called or len(self._workers.idle) >= MOST_IDLE:
                    return
                await self._wait()

    async def _lead(self) -> None:
        """Run what other threads have added, until a request is among it."""
        workers = self._workers
        workers.lead(self)
        while self.request is None:
            await workers.wakeup.wait()
            workers.deliveries.run()
        workers.lead(None)

    async def _do(self) -> None:
        """Do the request, and keep nothing of it."""
        request, self.request = self.request, None
        assert request is not None  # nobody wakes a task for nothing
        doing = run_to_outcome(request.function, request.finish, SupervisorClosed)
        await in_context(request.context, doing)

    async def _wait(self) -> None:
        """Wait for a request, or to lead."""
        self._workers.idle.append(self)
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._workers.idle.remove(self)
        return trio.lowlevel.Abort.SUCCEEDED


@asynccontextmanager
async def open_workers() -> AsyncGenerator[Workers, None]:
    """Workers for a block. All that they do is cancelled at its end; what other threads add is run until it is over."""
    with Wakeup() as wakeup:
        async with open_bare_nursery() as nursery:
            workers = Workers(nursery, wakeup)
            try:
                yield workers
            finally:
                nursery.cancel_scope.cancel()
                wakeup.leave_to_trio(workers.deliveries.run)
