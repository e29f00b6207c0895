"""The worker of the store: the one task that owns it. Everybody else sends it jobs, and may wait for their answers.

All jobs that wait are done together, in one thread and one transaction: the way to a thread and back takes as long as a
turn of a busy loop. Jobs are short, and each caller has one or two in line, so that first come, first served is fair.
"""

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import trio

from mcp_nursery.actors.mailbox import Mailbox
from mcp_nursery.actors.process.orphans import HostProcess, Orphan, end_orphans, own_marker, this_host
from mcp_nursery.actors.process.table import ProcessId
from mcp_nursery.actors.records import define, field
from mcp_nursery.actors.threads import SLOW_THREADS, UNCOUNTED_THREADS

from ..decisions.statistics import StoreStatistics
from ..security.trust import TrustRequest
from ..session_notes import NoteChange, SessionNote
from .store import Store, StoreUnreadable

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

STORE_TIMEOUT = 2.0
"""Seconds that anybody waits for the store while it gets nothing done, however many others are in line."""
_PROGRESS_CHECKS = 4
"""The number of checks of progress in that time."""
BATCH = 256
"""Jobs that are done together at most."""


@define(eq=False)
class _Job:
    work: Callable[[Store], None] | None
    """The function; None once it is not wanted any more."""
    done: trio.Event = field(factory=trio.Event)
    refusal: StoreUnreadable | None = None


@define(eq=False)
class StoreWorker:
    """The owner of a store. Before its first job it looks for processes that hosts of earlier runs left behind when
    they were killed; those are ended while it goes on."""

    _store: Store
    _jobs: Mailbox[_Job] = field(factory=lambda: Mailbox(math.inf), init=False)
    _host: HostProcess | None = field(default=None, init=False)
    _begun: bool = field(default=False, init=False)
    _finishing: bool = field(default=False, init=False)
    _last: _Job | None = field(default=None, init=False)
    """The job after which the store is closed."""
    _closed: bool = field(default=False, init=False)
    """True once the store is closed after the last job."""
    _left: bool = field(default=False, init=False)
    """True once nobody waits for a thread in the store any more."""
    _inside: threading.Lock = field(factory=threading.Lock, init=False)
    """Held by the thread that is in the store."""
    _finished_jobs: int = field(default=0, init=False)
    _refused: int = field(default=0, init=False)
    _hangs: bool = field(default=False, init=False)
    """True once a caller has waited in vain, until a job is done again."""
    _warned: set[str] = field(factory=set[str], init=False)
    _sweep: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _swept: trio.Event | None = field(default=None, init=False)
    """The event that those processes are gone; None if there are none."""

    async def run(self) -> None:
        """Do jobs, in order."""
        batch: list[_Job] = []
        try:
            async with trio.open_nursery() as nursery:
                while self._last is None or self._last not in batch:
                    batch = await self._jobs.take(BATCH)
                    await self._do_all(batch, nursery)
                    _finish_all(batch)
                nursery.cancel_scope.cancel()
        finally:
            _finish_all([*batch, *self._jobs.close()])
            self._leave()

    async def finish(self) -> None:
        """Do the jobs that wait, and close the store. Takes at most two seconds, cancelled or not."""
        self._finishing = True
        self._sweep.cancel()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STORE_TIMEOUT):
            if self._swept is not None:
                await self._swept.wait()
            self._last = _Job(None)
            self._put(self._last)
            await self._last.done.wait()

    def _leave(self) -> None:
        """Have the store closed if the last job was not done: by the thread that is still in it, or by another thread.
        Nobody waits for either, because the disk may hang."""
        self._left = True
        if self._store.blocking and not self._closed:
            trio.lowlevel.start_thread_soon(partial(self._alone, lambda: None), lambda _: None)

    def _alone(self, work: Callable[[], T]) -> T:
        """Do work in a thread, alone in the store: another thread may still be in it if nobody waits for that one any
        more."""
        with self._inside:
            try:
                return work()
            finally:
                if self._left:
                    self._store.close()

    # -- trust: a `Memory` -----------------------------------------------------------------------------------------

    async def found(self, request: TrustRequest) -> TrustRequest:
        """The request with the present content of its file. The store does not read it: it would wait for that file's
        disk."""
        if request.reader is None:
            return request
        return await SLOW_THREADS.run(request.as_found, abandon_on_cancel=True)

    async def is_agreed(self, request: TrustRequest) -> bool:
        """True if the user has agreed to exactly this."""
        return await self.ask(lambda store: store.agreed(request.digest))

    async def agree(self, request: TrustRequest) -> None:
        """Record that the user has agreed to this."""
        await self.ask(lambda store: store.agree(request))

    # -- sessions: `SessionNotes` ----------------------------------------------------------------------------------

    @property
    def others_write(self) -> bool:
        """True if several machines share the store."""
        return self._store.shared

    async def session_note(self, session: str) -> SessionNote:
        """The note about a session; one without a change if it cannot be read."""
        with suppress(StoreUnreadable):
            return await self.ask(lambda store: store.session_note(session))
        return SessionNote()

    async def note_session(self, session: str, until: float, change: NoteChange) -> SessionNote | None:
        """Change the note about a session; None if it could not be written."""
        with suppress(StoreUnreadable):
            return await self.ask(lambda store: store.note_session(session, until, change))
        return None

    async def changed_notes(self, seconds: float) -> Mapping[str, SessionNote] | None:
        """The notes that have changed in the last `seconds`; None if they cannot be read."""
        with suppress(StoreUnreadable):
            return await self.ask(lambda store: store.changed_notes(seconds))
        return None

    async def report(self, replica: str, report: str, seconds: float) -> Mapping[str, str] | None:
        """Write the report of this replica. Returns the reports that count; None if they cannot be read."""
        with suppress(StoreUnreadable):
            return await self.ask(lambda store: store.report(replica, report, seconds))
        return None

    # -- processes: a `Ledger` ------------------------------------------------------------------------------------

    async def starting(self, marker: str) -> None:
        """Record that this host is about to start a process tree; returns even if that is not possible."""

        def record(store: Store) -> None:
            if self._host is not None:
                store.add_process(marker, self._host)

        if self._store.blocking:
            with suppress(StoreUnreadable):  # as good as lost, and the store has logged why
                await self.ask(record)

    def started(self, marker: str, leader: ProcessId) -> None:
        """Record its first process."""
        if leader.started:
            self.submit(lambda store: store.name_process(marker, leader))

    def ended(self, marker: str) -> None:
        """Remove the record."""
        if self._store.blocking:
            self.submit(lambda store: store.forget_process(marker))

    def warn_once(self, problem: str) -> None:
        """Log why it is not known what tools were, only once: it will not be better the next time."""
        if problem not in self._warned:
            logger.warning("it is not known whether tools have changed: %s", problem)
        self._warned.add(problem)

    # -- jobs -----------------------------------------------------------------------------------------------------

    async def ask(self, question: Callable[[Store], T]) -> T:
        """The store's answer.

        Raises:
            StoreUnreadable: It has none, or gets nothing done for two seconds.
        """
        answers: list[T] = []
        job = _Job(lambda store: answers.append(question(store)))
        self._put(job)
        try:
            await self._wait_while_progressing(job.done)
        finally:
            job.work = None
        if job.refusal is not None or not answers:
            self._refused += 1
            self._hangs = job.refusal is None
            raise job.refusal or StoreUnreadable("the user's state file does not respond")
        return answers[0]

    def statistics(self) -> StoreStatistics:
        """Figures of the store."""
        usable = self._store.problem is None and not self._hangs
        return StoreStatistics(usable, self._refused, self._jobs.statistics().waiting)

    async def _wait_while_progressing(self, done: trio.Event) -> None:
        """Wait for this as long as the store makes progress."""
        in_vain = 0
        while in_vain < _PROGRESS_CHECKS:
            before = self._finished_jobs
            with trio.move_on_after(STORE_TIMEOUT / _PROGRESS_CHECKS):
                await done.wait()
                return
            in_vain = in_vain + 1 if self._finished_jobs == before else 0

    def submit(self, work: Callable[[Store], None]) -> trio.Event:
        """Queue a job. Never waits. The event is set when it is done, or dropped."""
        return self._put(_Job(work)).done

    def _put(self, job: _Job) -> _Job:
        try:
            self._jobs.put_nowait(job)
        except trio.BrokenResourceError:  # finished: what is wrong in the store by now, the next run finds out
            job.done.set()
        return job

    async def _do_all(self, batch: Sequence[_Job], nursery: trio.Nursery) -> None:
        if not self._begun and self._finishing:  # nothing was ever needed, and nothing is touched now
            return
        if not self._begun:
            self._begun = True
            await self._adopt_orphans(nursery)
        closing = self._last in batch
        if self._store.blocking:
            work = partial(self._alone, partial(self._work, batch, closing=closing))
            await UNCOUNTED_THREADS.run(work, abandon_on_cancel=True)
        else:
            self._work(batch, closing=closing)

    def _work(self, batch: Sequence[_Job], *, closing: bool) -> None:
        try:
            with self._store.together():
                for job in batch:
                    work = job.work  # withdrawn by another thread, perhaps
                    try:
                        if work is not None:
                            work(self._store)
                    except StoreUnreadable as refusal:
                        job.refusal = refusal
                    self._finished_jobs += 1
                    self._hangs = False
        except StoreUnreadable as refusal:  # none of it was recorded
            for job in batch:
                job.refusal = refusal
        if closing:
            self._store.close()
            self._closed = True

    # -- what killed hosts left behind ------------------------------------------------------------------------------

    async def _adopt_orphans(self, nursery: trio.Nursery) -> None:
        self._host = host = this_host() if self._store.blocking else None
        if host is None:
            return
        adopt = partial(self._store.adopt_orphans, host, but=own_marker())
        orphans = await UNCOUNTED_THREADS.run(self._alone, adopt, abandon_on_cancel=True)
        if orphans:
            self._swept = trio.Event()
            nursery.start_soon(self._end_orphans, orphans, self._swept)

    async def _end_orphans(self, orphans: Sequence[Orphan], swept: trio.Event) -> None:
        if await end_orphans(orphans, self._sweep):
            for orphan in orphans:
                self.ended(orphan.marker)
        swept.set()


def _finish_all(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        job.done.set()
