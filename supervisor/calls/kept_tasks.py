"""Tasks that outlive their callers: calls under way in tasks of the supervisor, recorded in its store, so that
another host can go on with them.

Such a call is a `KeptCall`, delivered like any other. When its server makes a task of it, that is recorded before
anybody has the handle, and from then on each change, and each answer to a question before it is sent. A host that goes
on with a recorded task puts a `KeptCall` where the first was when the server had answered with the task; the rest is
the same.

One host at a time follows a task: the one that has its lease (see `TaskRows`). Any other reads its record every two
seconds, and takes the lease once it is free. A host that loses a lease, because it was frozen for example, stops
following before it can send an answer: each write says whether the lease is still its own. A host that cannot renew its
leases, because only it has lost the database for example, stops before they are over, and may take them again later.
"""

import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import trio

from mcp_nursery.actors.errors import NurseryError, SupervisorClosed, TaskLost, UnknownTask
from mcp_nursery.actors.process.orphans import this_host
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.actors.records import evolve
from mcp_nursery.actors.secrets import MAX_LINE

from ..decisions.task_records import RESULT_KEPT, TaskInfo, TaskRecord
from ..decisions.task_states import TaskState, TaskStatus
from ..events import TaskChanged
from ..security.untrusted_marks import MAX_RESULT_CHARS
from ..servers.given_up_tasks import CANCEL_LATER, CANCEL_WITHIN
from ..servers.view import ServerView
from ..spec import transport_digest
from ..storage.store import StoreUnreadable
from ..storage.task_rows import LEASE, TaskRows, host_name
from ..tools.tool_result import ToolResult
from .attempts import deliver
from .call import ActiveCall, Call
from .followed_task import ServerReplaced, TaskRequest, give_up
from .kept_call import KeptCall, check_server, first_record, lost
from .task_handles import KeptTask, Task, TaskBlock
from .task_outcomes import made_over, outcome_of, restored, status_of

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_EVERY = 2.0
"""Seconds between two renewals of a host's leases, between two records of a task whose server says much, and between
two looks at a task that another host follows."""
CANCEL_GRACE = 1.0
"""Seconds for which a supervisor that is closed waits until servers know which tasks were cancelled."""


class KeptTasks:
    """The tasks of one supervisor that outlive their callers. Each has a task of the supervisor's nursery."""

    def __init__(self, servers: ServerView, nursery: trio.Nursery) -> None:
        self._servers = servers
        self._nursery = nursery
        self._worker = servers.settings.store_worker
        self._name = host_name(this_host(), secrets.token_hex(8))
        self._kept: dict[str, KeptTask] = {}
        """The tasks that this host follows or watches, by id."""
        self._telling: set[KeptTask] = set()
        """The tasks whose servers are being told that they were cancelled."""
        self._renews = False
        self._used = False

    # -- handles --------------------------------------------------------------------------------------------------

    async def start(self, asked: Call) -> Task:
        """Make a call. Returns once its server has answered, and its task is recorded.

        Raises:
            NurseryError: It has failed before that: see `Supervisor.submit`.
        """
        self._servers.check_open()
        kept = KeptTask(secrets.token_hex(16))  # never begins with a dash: it is an argument of commands
        call = KeptCall(asked, self._servers, tasks=self, kept=kept)
        self._follow(kept, call)
        try:
            await kept.begun.wait()
        except BaseException:
            self.cancel(kept, forget=True)
            raise
        if kept.info.value is None:
            assert isinstance(kept.ended, NurseryError)
            raise kept.ended
        return Task(kept, self.cancel)

    def block(self, asked: Call) -> TaskBlock:
        """A call for as long as a block lasts. One that is not over then is cancelled; none is recorded after that."""
        return TaskBlock(partial(self.start, asked), self._leave)

    def _leave(self, kept: KeptTask) -> None:
        self.cancel(kept, forget=True)
        is_told = kept.cancelled is None or kept.cancelled.is_set()
        if kept.ended is not None and is_told and kept.record is not None:
            self._submit(lambda rows: rows.forget(kept.id))

    def keep(self, call: ActiveCall[Any, Any], task: TaskState) -> bool:
        """Go on with the task of a call whose caller has gone, as if it had been submitted. Never waits. False: its
        record would be of no use."""
        tool = self._servers.catalogue.value.find(call.name, call.server_name)
        if tool is None or transport_digest(call.sent_to) is None:
            return False
        kept = KeptTask(secrets.token_hex(16))
        self._nursery.start_soon(self._keep, kept, call, task, first_record(call, kept.id, tool, task))
        return True

    async def _keep(self, kept: KeptTask, call: ActiveCall[Any, Any], task: TaskState, record: TaskRecord) -> None:
        try:
            with trio.CancelScope(shield=True):  # bounded by the store
                await self._rows(lambda rows: rows.add(record, self._name))
        except StoreUnreadable as problem:
            logger.warning("%s: a task whose client has gone is cancelled: %s", record.info.server, problem)
            give_up(call, task.id, call.sent_to)
            return
        self._show(kept, record)
        self._follow(kept, None)

    async def go_on(self, name: str) -> Task:
        """The task of this id: followed by this host from now on, unless another does.

        Raises:
            UnknownTask: It is not recorded.
            TaskLost: It cannot be followed here.
            StoreUnreadable: The records cannot be read.
        """
        self._servers.check_open()
        kept = self._kept.get(name)
        if kept is not None and kept.made and kept.record is not None:
            check_server(kept.record, self._servers)
        if kept is None or kept.info.value is None:
            record = await self._rows(lambda rows: rows.read(name))
            if record is None:
                raise UnknownTask(name)
            if record.info.finished is None:
                check_server(record, self._servers)
            kept = self._kept.get(name) or KeptTask(name)  # somebody else may have asked meanwhile
            if name not in self._kept:
                kept.record = record
                kept.info.set(record.info)
                self._follow(kept, None)
        return Task(kept, self.cancel)

    async def all(self) -> tuple[TaskInfo, ...]:
        """The tasks that are recorded, and those of this host, the oldest first.

        Raises:
            StoreUnreadable: The records cannot be read.
        """
        self._servers.check_open()
        known = {record.info.id: record.info for record in await self._rows(self._list)}
        known |= {name: kept.info.value for name, kept in self._kept.items() if kept.info.value is not None}
        return tuple(sorted(known.values(), key=lambda info: (info.created, info.id)))

    def _list(self, rows: TaskRows) -> Sequence[TaskRecord]:
        for name in rows.abandoned():
            self._read_made(rows, name)
        return rows.all()

    def cancel(self, kept: KeptTask, *, forget: bool = False) -> None:
        """Cancel a task, unless its end is known or being recorded. The host that follows it stops, and tells its
        server; any other has that host do so, and learns the end. Never waits. `forget`: it is not to be recorded any
        more."""
        kept.forgotten = kept.forgotten or forget
        record = kept.record
        if kept.ended is not None or kept.ending or (record is not None and record.info.finished is not None):
            return
        if record is None:
            kept.ended = SupervisorClosed()  # nobody has a handle
            self._submit(lambda rows: rows.forget(kept.id))
        elif not kept.made and (kept.leading is None or kept.leading.cancel_called):
            kept.unwanted = True  # recorded again with each look, because the store may be away
            self._submit(lambda rows: rows.want_cancelled(kept.id))
            return
        else:
            kept.ended = lost(record, "it was cancelled here")
            kept.cancelled = trio.Event()
            self._telling.add(kept)
            self._nursery.start_soon(self._tell_cancelled, kept, record)
        kept.info.notify()
        kept.scope.cancel()

    async def stop(self) -> None:
        """Stop following: the tasks go on, and other hosts can go on with them. Cancelled or not."""
        if not self._used:
            return
        with trio.CancelScope(shield=True) as bound:
            bound.deadline = trio.current_time() + CANCEL_GRACE
            for kept in list(self._telling):
                assert kept.cancelled is not None  # it is being told
                await kept.cancelled.wait()
        with trio.CancelScope(shield=True):  # they end at once
            for kept in list(self._kept.values()):
                kept.scope.cancel()
                await kept.left.wait()
        self._submit(lambda rows: rows.release_all(self._name))

    # -- records --------------------------------------------------------------------------------------------------

    def _submit(self, work: Callable[[TaskRows], None]) -> None:
        self._worker.submit(lambda store: store.tasks(work))

    async def _rows(self, work: Callable[[TaskRows], T]) -> T:
        return await self._worker.ask(lambda store: store.tasks(work))

    async def add(self, kept: KeptTask, record: TaskRecord) -> None:
        """Record a task that its server has just made.

        Raises:
            StoreUnreadable: It cannot be recorded.
        """
        since = trio.current_time()
        await self._rows(lambda rows: rows.add(record, self._name))
        assert kept.leading is not None  # its call is under way
        kept.leading.deadline = since + LEASE
        kept.written, kept.written_at = record, trio.current_time()
        self._show(kept, record)
        kept.begun.set()

    async def change(self, kept: KeptTask, record: TaskRecord) -> None:
        """Record a change of a task, an answer at once: one that cannot be recorded is kept, and tried again. If its
        lease is lost, the caller is cancelled."""
        before = kept.record
        if record == before or before is None:
            return
        if record.answers == before.answers and trio.current_time() < kept.written_at + LOOK_EVERY:
            self._show(kept, record)  # it is written with the next renewal
            return
        kept.written_at, kept.record = trio.current_time(), record  # its answers outlast the lease
        is_ours = await self._write(record)
        while is_ours is None and record.answers != before.answers:
            await trio.sleep(LOOK_EVERY)
            is_ours = await self._write(record)
        if is_ours is False:
            self._lose(kept)
            await trio.lowlevel.checkpoint()
        if is_ours:
            kept.written = record
        self._show(kept, record)

    async def _write(self, record: TaskRecord) -> bool | None:
        """False if the lease is lost; None if nothing can be recorded."""
        try:
            return await self._rows(lambda rows: rows.write(record, self._name))
        except StoreUnreadable as problem:
            logger.warning("a task of %s is not recorded as it is now: %s", record.info.server, problem)
            return None

    def _show(self, kept: KeptTask, record: TaskRecord) -> None:
        kept.record = record
        if kept.info.value != record.info:
            kept.info.set(record.info)
            self._servers.events.publish(TaskChanged(record.info.server, record.info, trio.current_time()))

    def _begin_renewing(self) -> None:
        if not self._renews:
            self._renews = True
            self._nursery.start_soon(self._renew)

    async def _renew(self) -> None:
        """Renew the leases of this host as long as it has any."""
        while any(kept.leading is not None for kept in self._kept.values()):
            recorded = [kept for kept in self._kept.values() if kept.leading is not None and kept.record is not None]
            held = await self._hold(recorded)
            for kept in recorded:
                if held is None:
                    break
                if held.get(kept.id):
                    self.cancel(kept)
                elif kept.record is None or kept.record.info.finished is not None:
                    continue
                elif kept.id not in held:
                    self._lose(kept)
                elif kept.record != kept.written:
                    record, kept.written_at = kept.record, trio.current_time()
                    if await self._write(record):
                        kept.written = record
            await trio.sleep(LOOK_EVERY)
        self._renews = False

    async def _hold(self, recorded: Sequence[KeptTask]) -> Mapping[str, bool] | None:
        """The tasks whose leases are renewed, as `TaskRows.renew` has them; None if that is not known. Others may reach
        the database meanwhile, so the leases last no longer than they were renewed for."""
        since = trio.current_time()
        names = [*self._kept, *(kept.id for kept in self._telling)]  # a row that is nobody's here runs out
        try:
            held = await self._rows(lambda rows: rows.renew(self._name, only=names))
        except StoreUnreadable:
            return None
        for kept in recorded:
            if kept.leading is not None and kept.id in held:
                kept.leading.deadline = since + LEASE
        return held

    def _lose(self, kept: KeptTask) -> None:
        """Stop following a task that another host follows now, or a call whose result nobody can have any more."""
        if kept.leading is not None:
            kept.leading.cancel()
        if kept.made and not kept.ending:
            kept.scope.cancel()

    # -- calls of gateways ----------------------------------------------------------------------------------------

    async def make(
        self,
        name: str,
        server: str,
        tool: str,
        end: Callable[[], Awaitable[bytes | JsonRpcError | None]],
        left: Callable[[], None],
        *,
        ttl: float,
    ) -> TaskInfo | None:
        """Make a task of a call that a gateway has under way. Returns once it is recorded; None: it is not.

        Args:
            name: The id under which it is recorded: the digest of the client, or `ANYBODY`, a dot, and the rest.
            server: The server of the call.
            tool: The server's own name of the tool.
            end: Waits for the end of the call: the result as JSON, or the error; None: it was cancelled with its
                gateway. Cancelled if the task is.
            left: Called once that is recorded, or cannot be.
            ttl: Seconds for which the end is recorded.
        """
        self._servers.check_open()
        kept = KeptTask(name, leading=trio.CancelScope(), made=True)
        record = TaskRecord(TaskInfo(name, server, tool, TaskStatus.WORKING, time.time()), "", "", "")
        try:
            if not await self._rows(lambda rows: rows.add_made(record, self._name)):
                return None
        except BaseException as problem:
            self._submit(lambda rows: rows.forget(name))  # it may be recorded all the same, only later
            if not isinstance(problem, StoreUnreadable):
                raise
            logger.warning("no task is made of a call of %s: %s", server, problem)
            return None
        self._used = True
        self._kept[name] = kept
        kept.written = record
        self._show(kept, record)
        self._nursery.start_soon(self._run_made, kept, record, end, left, ttl)
        return record.info

    async def _run_made(
        self,
        kept: KeptTask,
        record: TaskRecord,
        end: Callable[[], Awaitable[bytes | JsonRpcError | None]],
        left: Callable[[], None],
        ttl: float,
    ) -> None:
        """Wait for the end of a call of a gateway, and record it."""
        self._begin_renewing()
        try:
            with kept.scope:
                ended = await end()
                if kept.ended is not None:
                    return  # it was cancelled first
                kept.ending = True
                over = made_over(record, ended, time.time(), ttl)

                def write(rows: TaskRows) -> None:
                    nonlocal over
                    if not rows.write(over, self._name):  # another host has recorded that it has failed
                        over = rows.read(kept.id) or over

                problem: StoreUnreadable | None = None
                with trio.CancelScope(shield=True):  # bounded by the store: nobody else has the result
                    problem = await self._try(write)
                if problem:
                    await self._insist(record, write, trio.Event())
                self._show(kept, over)
        finally:
            left()
            kept.ended = kept.ended or SupervisorClosed()
            if kept.cancelled is None:  # else it is ours until that is recorded
                del self._kept[kept.id]
            kept.left.set()
            kept.info.notify()

    async def made(self, name: str) -> TaskRecord | None:
        """The record of a task that a gateway has made; None if there is none. If its gateway has ended, it has failed.

        Raises:
            StoreUnreadable: It cannot be read.
        """

        record = await self._rows(lambda rows: self._read_made(rows, name))
        if record is not None and (record.info.expires or math.inf) < time.time():  # it has been over for so long
            return None
        return record

    def _read_made(self, rows: TaskRows, name: str) -> TaskRecord | None:
        """The record of a task of a gateway. If that gateway is gone, it has failed, and that is recorded."""
        record = rows.read(name)
        if record is None or record.info.finished is not None or name in self._kept:
            return record
        record, is_free = rows.claim(name, self._name)
        if record is not None and is_free:
            record = made_over(record, None, time.time(), RESULT_KEPT)
            rows.write(record, self._name)
        return record

    async def cancel_made(self, name: str) -> None:
        """Cancel a task that a gateway has made, or have the host of that gateway do so.

        Raises:
            StoreUnreadable: That host cannot be told.
        """
        if (kept := self._kept.get(name)) is not None:
            self.cancel(kept)
        else:
            await self._rows(lambda rows: rows.want_cancelled(name))

    # -- following ------------------------------------------------------------------------------------------------

    def _follow(self, kept: KeptTask, call: KeptCall | None) -> None:
        self._used = True
        self._kept[kept.id] = kept
        self._nursery.start_soon(self._run, kept, call)

    async def _run(self, kept: KeptTask, call: KeptCall | None) -> None:
        """Follow a task to its end, or watch another host do so; `call`: the call that may become it."""
        try:
            with kept.scope:
                while kept.ended is None:
                    call = call or await self._claim(kept)
                    if call is not None:
                        await self._lead(kept, call)
                        call = None
                    elif kept.ended is None:
                        await trio.sleep(LOOK_EVERY)
        finally:
            if kept.forgotten and kept.cancelled is None and (kept.ending or kept.ended is not None):
                self._submit(lambda rows: rows.forget(kept.id))
            kept.ended = kept.ended or SupervisorClosed()
            del self._kept[kept.id]
            kept.begun.set()
            kept.left.set()
            kept.info.notify()

    async def _lead(self, kept: KeptTask, call: KeptCall) -> None:
        """Follow a task as the only host, until it is over or the lease is."""
        ended: ToolResult | NurseryError | None = None
        kept.leading = kept.leading or trio.CancelScope()
        with kept.leading:
            self._begin_renewing()
            try:
                if kept.record is not None:
                    await call.go_on(kept.record)
                ended = await deliver(call)
            except SupervisorClosed as closed:
                kept.ended = kept.ended or closed
                return
            except NurseryError as error:
                ended = error
        if ended is not None:
            await self._end(kept, call, ended)
        kept.leading = None

    async def _end(self, kept: KeptTask, call: KeptCall, ended: ToolResult | NurseryError) -> None:
        if kept.ended is not None:
            return  # it was cancelled first
        now, record = time.time(), kept.record
        kept.ending = True
        was_over = record is not None and record.info.finished is not None  # its result was not kept
        if was_over or (isinstance(ended, TaskLost) and not ended.for_good):
            with trio.CancelScope(shield=True):  # bounded by the store
                await self._release(kept)
        elif record is not None:
            error = None if isinstance(ended, ToolResult) else ended.fact[:MAX_LINE]
            record = record.over(now, status_of(ended), outcome_of(ended, call), error)
            await self._write(record)
            self._show(kept, record)
        elif isinstance(ended, ToolResult):
            info = TaskInfo(kept.id, ended.server, ended.tool, TaskStatus.COMPLETED, now, finished=now)
            kept.info.set(info)
        kept.ended = ended

    async def _release(self, kept: KeptTask) -> None:
        if problem := await self._try(lambda rows: rows.release(kept.id, self._name)):
            logger.warning("the lease of a task is not given up before it ends: %s", problem)

    async def _claim(self, kept: KeptTask) -> KeptCall | None:
        """The call that goes on with a task, if this host has its lease now. The end of a task that is over is read."""
        since = trio.current_time()

        def claim(rows: TaskRows) -> tuple[TaskRecord | None, bool]:
            if kept.unwanted:
                rows.want_cancelled(kept.id)
            return rows.claim(kept.id, self._name)

        try:
            record, is_ours = await self._rows(claim)
        except StoreUnreadable:  # logged by the store; it is looked at again
            return None
        if record is None:
            assert kept.record is not None  # it was read before
            kept.ended = lost(kept.record, "its record is gone")
            return None
        recorded = record.answers
        if kept.record is not None and record.info.finished is None:  # an answer of this host may not be recorded yet
            record = evolve(record, answers={**kept.record.answers, **recorded})
        self._show(kept, record)
        if record.outcome is not None:
            observable = self._servers.snapshots.get(record.info.server)
            most = MAX_RESULT_CHARS if observable is None else observable.value.spec.max_result_chars
            kept.ended = await restored(record, record.outcome, max_chars=most)
            return None
        if not is_ours or (record.answers != recorded and not await self._write(record)):
            return None
        info = record.info
        try:
            check_server(record, self._servers)
        except NurseryError as error:
            await self._release(kept)
            kept.ended = error
            return None
        asked = Call(info.tool, server=info.server, timeout=_time_left(record), when_down="wait")
        kept.leading = trio.CancelScope(deadline=since + LEASE)
        if kept.unwanted:
            self.cancel(kept)
        return KeptCall(asked, self._servers, tasks=self, kept=kept)

    async def _tell_cancelled(self, kept: KeptTask, record: TaskRecord) -> None:
        """Have its server told that a task was cancelled, and record that, as soon as the store can be used."""
        over = record.over(time.time(), TaskStatus.CANCELLED, {"error": {"why": "it was cancelled"}}, "cancelled")

        def put_right(rows: TaskRows) -> None:
            if not rows.write(over, self._name):
                rows.want_cancelled(kept.id)  # another host has taken it over meanwhile
            elif kept.forgotten:
                rows.forget(kept.id)

        assert kept.cancelled is not None  # it is being told
        try:
            await kept.left.wait()
            if not kept.made:
                await self._tell(record)
            self._show(kept, over)
            await self._insist(record, put_right, kept.cancelled)
        finally:
            kept.cancelled.set()
            self._telling.discard(kept)
            if kept.made:
                del self._kept[kept.id]

    async def _insist(self, record: TaskRecord, work: Callable[[TaskRows], None], tried: trio.Event) -> None:
        """Do this with the rows as soon as the store can be used, within a minute; `tried` is set once it cannot."""
        until = trio.current_time() + CANCEL_LATER
        while (problem := await self._try(work)) and trio.current_time() < until:
            tried.set()
            await trio.sleep(LOOK_EVERY)
        if problem:
            logger.warning("the end of a task of %s is not recorded: %s", record.info.server, problem)

    async def _try(self, work: Callable[[TaskRows], None]) -> StoreUnreadable | None:
        """Do this with the rows. Returns the reason if that is not possible."""
        try:
            await self._rows(work)
        except StoreUnreadable as problem:
            return problem
        return None

    async def _tell(self, record: TaskRecord) -> None:
        info = record.info
        asked = Call(info.tool, server=info.server, timeout=CANCEL_WITHIN, when_down="wait")
        request: TaskRequest | None = None
        try:
            if record.spec:
                check_server(record, self._servers)
            transport = self._servers.snapshot(info.server).value.spec.transport
            request = TaskRequest(asked, self._servers, "tasks/cancel", {"taskId": record.task}, transport)
            await request.answer()
        except (NurseryError, ServerReplaced) as error:
            if request is not None and not request.failed:
                give_up(request, record.task, request.transport)
            logger.warning("%s: %s: it was not told that its task is cancelled: %s", info.server, info.tool, error)


def _time_left(record: TaskRecord) -> float | None:
    """Seconds that its caller gives a recorded task; None once it is over, because they are not for its result."""
    if record.info.finished is not None:
        return None
    return math.inf if record.deadline is None else max(record.deadline - time.time(), 0.0)
