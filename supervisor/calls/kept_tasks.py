"""Tasks that outlive their callers: calls under way in tasks of the supervisor, recorded in its store, so that
another host can go on with them.

Such a call is a `KeptCall`, delivered like any other. When its server makes a task of it, that is recorded before
anybody has the handle, and from then on each change, and each answer to a question before it is sent. A host that goes
on with a recorded task puts a `KeptCall` where the first was when the server had answered with the task; the rest is
the same.

One host at a time follows a task: the one that has its lease (see `TaskRows`). Any other reads its record every two
seconds, and takes the lease once it is free. A host that loses a lease, because it was frozen for example, stops
following before it can send an answer: each write says whether the lease is still its own.
"""

import json
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar, cast, final

import trio
from attrs import define, evolve, field

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.errors import (
    CallError,
    CallTimeout,
    InvalidResult,
    NotApproved,
    NurseryError,
    ServerDown,
    ServerError,
    SupervisorClosed,
    TaskLost,
    UnknownServer,
    UnknownTask,
    UnknownTool,
)
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.outcomes import Answered
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.preload import RESULT_TYPES
from mcp_nursery.actors.process.orphans import this_host
from mcp_nursery.actors.protocol import MODERN_PROTOCOL_VERSIONS
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.session.base import BadResult
from mcp_nursery.actors.session.requests import PreparedRequest, PreparedTool

from ..decisions.task_records import TaskInfo, TaskRecord
from ..decisions.task_states import TaskState, TaskStatus
from ..events import TaskChanged
from ..security.untrusted_marks import MAX_RESULT_CHARS
from ..servers.given_up_tasks import CANCEL_WITHIN
from ..servers.observable import Observable
from ..servers.view import ServerView
from ..spec import spec_digest
from ..storage.store import StoreUnreadable
from ..storage.task_rows import MOST_RESULT, TaskRows, host_name
from ..tools.tool import Tool
from ..tools.tool_result import ToolResult, tool_result
from .attempts import deliver
from .call import Call, target_of
from .followed_task import ServerReplaced, TaskRequest
from .input_rounds import owner_of
from .tool_call import ToolCall

__all__ = ["Task", "TaskChanges"]

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_EVERY = 2.0
"""Seconds between two renewals of a host's leases, between two records of a task whose server says much, and between
two looks at a task that another host follows."""
CANCEL_GRACE = 1.0
"""Seconds for which a supervisor that is closed waits until servers know which tasks were cancelled."""


@define(eq=False)
class _Kept:
    """One task, as this host has it."""

    id: str
    info: Observable[TaskInfo | None] = field(factory=lambda: Observable[TaskInfo | None](None))
    """The facts about it; None until its server has answered."""
    record: TaskRecord | None = None
    """The record of it; None before it is made, and if its server answered at once."""
    written: TaskRecord | None = None
    """The record as it was written last."""
    written_at: float = -math.inf
    """The time of that, on Trio's clock."""
    ended: ToolResult | NurseryError | None = None
    """The end of it, for this host."""
    begun: trio.Event = field(factory=trio.Event)
    """Set once it is recorded or over."""
    left: trio.Event = field(factory=trio.Event)
    """Set once this host does not follow it any more."""
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    leading: trio.CancelScope | None = None
    """The scope in which this host follows it; None while another host does."""
    cancelled: trio.Event | None = None
    """Set once its server knows that it was cancelled, or cannot be told; None if it was not cancelled here."""


@final
class Task:
    """A tool call under way that outlives its caller: see `Supervisor.submit` and `Supervisor.start_task`."""

    def __init__(self, tasks: "KeptTasks", kept: _Kept) -> None:
        self._tasks = tasks
        self._kept = kept

    def __repr__(self) -> str:
        return f"<Task {self.id} of {self.server}: {self.tool}: {self.status}>"

    @property
    def info(self) -> TaskInfo:
        """The facts about it now."""
        info = self._kept.info.value
        assert info is not None  # or there would be no handle
        return info

    @property
    def id(self) -> str:
        """The supervisor's name of it, by which another host finds it: `Supervisor.task`."""
        return self.info.id

    @property
    def server(self) -> str:
        """The name of its server."""
        return self.info.server

    @property
    def tool(self) -> str:
        """The server's own name of the tool."""
        return self.info.tool

    @property
    def status(self) -> TaskStatus:
        """`working`, `input_required`, `completed`, `failed` or `cancelled`, by the server's last word."""
        return self.info.status

    @property
    def message(self) -> str | None:
        """The server's last words about its progress, without secrets; None if it said nothing."""
        return self.info.message

    @property
    def created(self) -> float:
        """The Unix time at which its server made it, or had answered at once."""
        return self.info.created

    @property
    def expires(self) -> float | None:
        """The Unix time from which its server may have forgotten it; None if it does not say."""
        return self.info.expires

    @property
    def questions(self) -> tuple[str, ...]:
        """The questions that wait for an answer, in the server's words, without secrets."""
        return self.info.questions

    @property
    def is_over(self) -> bool:
        """True if `result` does not wait."""
        return self._kept.ended is not None

    async def result(self) -> ToolResult:
        """The result, once there is one. Cancelling the wait does not cancel the task.

        Raises:
            TaskLost: Nobody can say any more what becomes of it, or it was cancelled. If not `for_good`, a later
                `Supervisor.task` goes on with it.
            CallTimeout: Its time was over.
            ServerError, InvalidResult: As for `call_tool`.
            SupervisorClosed: The block was left: another host can go on.
        """
        ended: ToolResult | NurseryError = await self._kept.info.wait(lambda _: self._kept.ended)
        if isinstance(ended, NurseryError):
            raise ended
        return ended

    async def cancel(self) -> None:
        """Cancel it, unless it is over: its server is sent `tasks/cancel` by the host that follows it, and decides what
        that means. Returns once the server has answered to that, or has not within 10 seconds."""
        self._tasks.cancel(self._kept)
        await trio.lowlevel.checkpoint()
        if self._kept.cancelled is not None:
            await self._kept.cancelled.wait()

    def changes(self) -> "TaskChanges":
        """The facts about it, now and after each change, until it is over: `async for info in task.changes()`. A reader
        that is slow misses some, but never the last."""
        return TaskChanges(self._kept)


@final
class TaskChanges(AsyncIterator[TaskInfo]):
    """The facts about one task, now and after each change."""

    def __init__(self, kept: _Kept) -> None:
        self._kept = kept
        self._seen: TaskInfo | None = None

    async def __anext__(self) -> TaskInfo:
        kept = self._kept

        def new(info: TaskInfo | None) -> TaskInfo | bool | None:
            return info if info != self._seen else kept.ended is not None or None

        found = await kept.info.wait(new)
        if not isinstance(found, TaskInfo):
            raise StopAsyncIteration
        self._seen = found
        return found


@define(eq=False, repr=False)
class KeptCall(ToolCall):
    """A tool call whose task is recorded."""

    tasks: "KeptTasks" = field(kw_only=True)
    kept: _Kept = field(kw_only=True)
    gone_on_with: bool = field(default=False, init=False)
    """True if another call has begun the task."""

    @property
    @override
    def outlived(self) -> bool:
        kept = self.kept
        return kept.record is not None and (kept.ended is None or kept.cancelled is not None)

    @override
    def made_task(self, raw: dict[str, Any]) -> dict[str, Any] | None:
        return super().made_task(raw) if self.kept.record is None else raw

    async def go_on(self, record: TaskRecord) -> None:
        """Come to where the call was when its server had answered with the task.

        Raises:
            TaskLost: Its server is not there, or has not the tool as it was.
            CallTimeout: Its time is over.
        """
        self.gone_on_with = True
        self.begin(None)
        try:
            with self.in_time():
                found = await target_of(self).ready(patient=True)
        except (ServerDown, UnknownTool, UnknownServer, NotApproved) as error:
            raise lost(record, error.fact, for_good=False) from None
        except CallTimeout:
            given_up = self.servers.registry.given_up_tasks
            given_up.cancel(self.server_name, owner_of(self), record.task, self.servers.timer)
            raise
        assert isinstance(found, Tool)  # as a call of a tool has it
        self.begin(found)
        if found.definition_hash != record.definition:
            raise lost(record, "its tool is not declared as it was when it was called", for_good=False)
        self.servers.counter.begin_call(found.server)
        snapshot = self.servers.snapshot(found.server).value
        version = snapshot.introduction.protocol_version if snapshot.introduction else ""
        slot = ReplySlot()
        slot.incarnation = snapshot.incarnation
        slot.codec = PreparedTool(cast("Any", found.declared), protocol_version=version, stamp={})
        slot.mark_sent()
        modern = {"resultType": "task"} if version in MODERN_PROTOCOL_VERSIONS else {}
        slot.resolve(Answered({**modern, "taskId": record.task, "status": str(record.info.status)}))
        self.slot = slot

    @override
    async def task_made(self, task: TaskState) -> TaskState:
        if (record := self.kept.record) is not None:
            return _gone_on_with(task, record)
        now = time.time()
        deadline = None
        if self.asked.timeout is None:  # the server's limit was for its answer
            self.deadline, self.timeout = None, math.inf
        elif self.deadline is not None:
            deadline = now + self.deadline.at - trio.current_time()
        spec = self.servers.snapshot(self.server_name).value.spec
        info = TaskInfo(self.kept.id, self.server_name, self.name, task.status, now)
        record = TaskRecord(info, spec_digest(spec) or "", self.tool.definition_hash, task.id, deadline)
        await self.tasks.add(self.kept, self._changed(record, task))
        return task

    @override
    async def task_changed(self, task: TaskState) -> None:
        assert self.kept.record is not None  # it was made
        record = self._changed(self.kept.record, task)
        await self.tasks.change(self.kept, record)
        if self.gone_on_with and (method := self._unanswerable(task)) is not None:
            raise lost(record, f"it asks a question ({method}) for which this host has no callback", for_good=False)

    def _unanswerable(self, task: TaskState) -> str | None:
        """The method of a question that nobody here can answer: it is left to another host."""
        callbacks = self.servers.settings.callbacks
        missing = {"elicitation/create": callbacks.elicit, "sampling/createMessage": callbacks.sample}
        methods = [_said_by(question).get("method") for question in _open(task)]
        return next((method for method in methods if method in missing and missing[method] is None), None)

    def _changed(self, record: TaskRecord, task: TaskState) -> TaskRecord:
        redactor = self.redactor
        lasts = task.expires_at - task.begun_at
        info = evolve(
            record.info,
            status=task.status,
            message=None if task.message is None else redactor.said(task.message),
            questions=tuple(redactor.said(_words(question)) for question in _open(task)),
            expires=None if lasts == math.inf else record.info.created + lasts,
        )
        return evolve(record, info=info, asked=task.asked, answers=task.answers)


def _open(task: TaskState) -> list[Any]:
    """The questions that nobody has answered."""
    return [question for key, question in task.questions.items() if key not in task.answers]


def _said_by(question: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", question) if isinstance(question, dict) else {}


def _words(question: Any) -> str:
    """The words of a question, or else its method."""
    said = _said_by(question)
    params = said.get("params")
    message = cast("dict[str, Any]", params).get("message") if isinstance(params, dict) else None
    return message if isinstance(message, str) else f"{said.get('method')!s:.80}"


def _gone_on_with(task: TaskState, record: TaskRecord) -> TaskState:
    """The task where an earlier host left it."""
    now, info = trio.current_time(), record.info
    begun_at = now - max(time.time() - info.created, 0.0)
    return evolve(
        task,
        begun_at=begun_at,
        message=info.message,
        expires_at=math.inf if info.expires is None else begun_at + info.expires - info.created,
        asked=record.asked,
        answers=record.answers,
    )


def lost(record: TaskRecord, why: str, *, for_good: bool = True) -> TaskLost:
    """The error of a recorded task that this host cannot follow."""
    info = record.info
    return TaskLost(
        why,
        server=info.server,
        tool=info.tool,
        incarnation=None,
        task_id=record.task,
        status=str(info.status),
        said=info.message,
        for_good=for_good,
    )


class KeptTasks:
    """The tasks of one supervisor that outlive their callers. Each has a task of the supervisor's nursery."""

    def __init__(self, servers: ServerView, nursery: trio.Nursery) -> None:
        self._servers = servers
        self._nursery = nursery
        self._worker = servers.settings.store_worker
        self._name = host_name(this_host(), secrets.token_hex(8))
        self._kept: dict[str, _Kept] = {}
        """The tasks that this host follows or watches, by id."""
        self._telling: set[_Kept] = set()
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
        kept = _Kept(secrets.token_urlsafe(16))
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
        return Task(self, kept)

    @asynccontextmanager
    async def block(self, asked: Call) -> AsyncGenerator[Task, None]:
        """A call for as long as a block lasts. One that is not over then is cancelled; none is recorded after that."""
        task = await self.start(asked)
        kept = task._kept  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        try:
            yield task
        finally:
            if kept.ended is None:
                self.cancel(kept, forget=True)
            elif kept.record is not None:
                self._worker.submit(lambda store: store.tasks(lambda rows: rows.forget(kept.id)))

    async def go_on(self, name: str) -> Task:
        """The task of this id: followed by this host from now on, unless another does.

        Raises:
            UnknownTask: It is not recorded.
            TaskLost: It cannot be followed here.
            StoreUnreadable: The records cannot be read.
        """
        self._servers.check_open()
        kept = self._kept.get(name)
        if kept is None or kept.info.value is None:
            record = await self._rows(lambda rows: rows.read(name))
            if record is None:
                raise UnknownTask(name)
            if record.info.finished is None:
                self._check_server(record)
            kept = self._kept.get(name) or _Kept(name)  # somebody else may have asked meanwhile
            if name not in self._kept:
                kept.record = record
                kept.info.set(record.info)
                self._follow(kept, None)
        return Task(self, kept)

    async def all(self) -> tuple[TaskInfo, ...]:
        """The tasks that are recorded, and those of this host, the oldest first.

        Raises:
            StoreUnreadable: The records cannot be read.
        """
        self._servers.check_open()
        known = {record.info.id: record.info for record in await self._rows(TaskRows.all)}
        known |= {name: kept.info.value for name, kept in self._kept.items() if kept.info.value is not None}
        return tuple(sorted(known.values(), key=lambda info: (info.created, info.id)))

    def cancel(self, kept: _Kept, *, forget: bool = False) -> None:
        """Stop following a task, unless it is over, and have its server told that it was cancelled. Never waits.
        `forget`: it is not to be recorded any more."""
        if kept.ended is not None:
            return
        record = kept.record
        if record is None:
            kept.ended = SupervisorClosed()  # nobody has a handle
            self._worker.submit(lambda store: store.tasks(lambda rows: rows.forget(kept.id)))
        else:
            kept.ended = lost(record, "it was cancelled here")
            kept.cancelled = trio.Event()
            self._telling.add(kept)
            self._nursery.start_soon(self._tell_cancelled, kept, record, forget)
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
        self._worker.submit(lambda store: _release_all(store.tasks, self._name))

    # -- records --------------------------------------------------------------------------------------------------

    async def _rows(self, work: Callable[[TaskRows], T]) -> T:
        return await self._worker.ask(lambda store: store.tasks(work))

    async def add(self, kept: _Kept, record: TaskRecord) -> None:
        """Record a task that its server has just made.

        Raises:
            StoreUnreadable: It cannot be recorded.
        """
        await self._rows(lambda rows: rows.add(record, self._name))
        kept.written, kept.written_at = record, trio.current_time()
        self._show(kept, record)
        kept.begun.set()

    async def change(self, kept: _Kept, record: TaskRecord) -> None:
        """Record a change of a task, an answer at once. If its lease is lost, the caller is cancelled."""
        before = kept.record
        if record == before or before is None:
            return
        if record.answers == before.answers and trio.current_time() < kept.written_at + LOOK_EVERY:
            self._show(kept, record)  # it is written with the next renewal
            return
        kept.written_at = trio.current_time()
        if not await self._write(record):
            self._lose(kept)
            await trio.lowlevel.checkpoint()
        kept.written = record
        self._show(kept, record)

    async def _write(self, record: TaskRecord) -> bool:
        """True unless the lease is lost."""
        try:
            return await self._rows(lambda rows: rows.write(record, self._name))
        except StoreUnreadable as problem:
            logger.warning("a task of %s is not recorded as it is now: %s", record.info.server, problem)
            return True

    def _show(self, kept: _Kept, record: TaskRecord) -> None:
        kept.record = record
        if kept.info.value != record.info:
            kept.info.set(record.info)
            self._servers.events.publish(TaskChanged(record.info.server, record.info, trio.current_time()))

    async def _renew(self) -> None:
        """Renew the leases of this host as long as it has any."""
        while any(kept.leading is not None for kept in self._kept.values()):
            recorded = [kept for kept in self._kept.values() if kept.leading is not None and kept.record is not None]
            held: Mapping[str, bool] = {}
            try:
                held = await self._rows(lambda rows: rows.renew(self._name))
            except StoreUnreadable:  # nobody else can take a lease meanwhile
                recorded = []
            for kept in recorded:
                if held.get(kept.id):
                    self.cancel(kept)
                elif kept.record is None or kept.record.info.finished is not None:
                    continue
                elif kept.id not in held:
                    self._lose(kept)
                elif kept.record != kept.written:
                    kept.written, kept.written_at = kept.record, trio.current_time()
                    await self._write(kept.record)
            await trio.sleep(LOOK_EVERY)
        self._renews = False

    def _lose(self, kept: _Kept) -> None:
        """Stop following a task that another host follows now."""
        if kept.leading is not None:
            kept.leading.cancel()

    # -- following ------------------------------------------------------------------------------------------------

    def _follow(self, kept: _Kept, call: KeptCall | None) -> None:
        self._used = True
        self._kept[kept.id] = kept
        self._nursery.start_soon(self._run, kept, call)

    async def _run(self, kept: _Kept, call: KeptCall | None) -> None:
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
            if kept.ended is None:
                kept.ended = SupervisorClosed()
            del self._kept[kept.id]
            kept.begun.set()
            kept.left.set()
            kept.info.notify()

    async def _lead(self, kept: _Kept, call: KeptCall) -> None:
        """Follow a task as the only host."""
        with trio.CancelScope() as kept.leading:
            if not self._renews:
                self._renews = True
                self._nursery.start_soon(self._renew)
            ended: ToolResult | NurseryError
            try:
                if kept.record is not None:
                    await call.go_on(kept.record)
                ended = await deliver(call)
            except SupervisorClosed as closed:
                kept.ended = closed
                return
            except NurseryError as error:
                ended = error
            await self._end(kept, call, ended)
        kept.leading = None

    async def _end(self, kept: _Kept, call: KeptCall, ended: ToolResult | NurseryError) -> None:
        now, record = time.time(), kept.record
        if isinstance(ended, TaskLost) and not ended.for_good:
            with trio.CancelScope(shield=True):  # bounded by the store
                await self._release(kept)
        elif record is not None:
            status, error = _status_of(ended, record.info.status), None if isinstance(ended, ToolResult) else ended.fact
            record = record.over(now, status, _outcome_of(ended, call), error)
            await self._write(record)
            self._show(kept, record)
        elif isinstance(ended, ToolResult):
            info = TaskInfo(kept.id, ended.server, ended.tool, TaskStatus.COMPLETED, now, finished=now)
            kept.info.set(info)
        kept.ended = ended

    async def _release(self, kept: _Kept) -> None:
        try:
            await self._rows(lambda rows: rows.release(kept.id, self._name))
        except StoreUnreadable as problem:
            logger.warning("the lease of a task is not given up before it ends: %s", problem)

    async def _claim(self, kept: _Kept) -> KeptCall | None:
        """The call that goes on with a task, if this host has its lease now. The end of a task that is over is read."""
        try:
            record, is_ours = await self._rows(lambda rows: rows.claim(kept.id, self._name))
        except StoreUnreadable:  # logged by the store; it is looked at again
            return None
        if record is None:
            assert kept.record is not None  # it was read before
            kept.ended = lost(kept.record, "its record is gone")
            return None
        self._show(kept, record)
        if record.outcome is not None:
            kept.ended = await self._restored(record, record.outcome)
            return None
        if not is_ours:
            return None
        info = record.info
        try:
            self._check_server(record)
        except NurseryError as error:
            await self._release(kept)
            kept.ended = error
            return None
        left = None if record.deadline is None else max(record.deadline - time.time(), 0.0)
        asked = Call(info.tool, server=info.server, timeout=math.inf if left is None else left, when_down="wait")
        return KeptCall(asked, self._servers, tasks=self, kept=kept)

    def _check_server(self, record: TaskRecord) -> None:
        """Refuse to ask another server than the one that made the task.

        Raises:
            TaskLost: There is no server of its name, or it is reached in another way.
        """
        observable = self._servers.snapshots.get(record.info.server)
        if observable is None:
            raise lost(record, f"there is no server {record.info.server!r} here", for_good=False)
        if not record.spec:
            raise lost(record, "its server was an object of another program")
        if spec_digest(observable.value.spec) != record.spec:
            raise lost(record, "its server is reached in another way than it was", for_good=False)

    async def _restored(self, record: TaskRecord, outcome: Mapping[str, Any]) -> ToolResult | NurseryError:
        """The end of a finished task, as it is recorded."""
        info, result = record.info, outcome.get("result")
        if not isinstance(result, dict):
            return _error_in(record, outcome)
        await RESULT_TYPES.ensure_loaded()
        codec = PreparedRequest("tools/call", protocol_version=max(MODERN_PROTOCOL_VERSIONS), stamp={})
        observable, incarnation = self._servers.snapshots.get(info.server), outcome.get("incarnation")
        try:
            typed = await by_turns(codec.result(cast("dict[str, Any]", result)))
        except BadResult:
            return lost(record, "its recorded result cannot be read")
        return await by_turns(
            tool_result(
                typed,
                server=info.server,
                tool=info.tool,
                max_chars=MAX_RESULT_CHARS if observable is None else observable.value.spec.max_result_chars,
                duration=(info.finished or info.created) - info.created,
                incarnation=incarnation if isinstance(incarnation, int) else 0,
            )
        )

    async def _tell_cancelled(self, kept: _Kept, record: TaskRecord, forget: bool) -> None:  # noqa: FBT001
        """Have its server told that a task was cancelled, and record that."""
        try:
            await kept.left.wait()
            _, is_ours = await self._rows(lambda rows: rows.claim(kept.id, self._name))
            over = record.over(time.time(), TaskStatus.CANCELLED, {"error": {"why": "it was cancelled"}}, "cancelled")
            if is_ours:
                await self._tell(record)
                await (self._rows(lambda rows: rows.forget(kept.id)) if forget else self._write(over))
            else:
                await self._have_cancelled(kept.id)
            self._show(kept, over)
        except StoreUnreadable as problem:
            logger.warning("a cancelled task of %s is still recorded: %s", record.info.server, problem)
        finally:
            assert kept.cancelled is not None  # it is being told
            kept.cancelled.set()
            self._telling.discard(kept)

    async def _tell(self, record: TaskRecord) -> None:
        info = record.info
        asked = Call(info.tool, server=info.server, timeout=CANCEL_WITHIN, when_down="wait")
        try:
            if record.spec:
                self._check_server(record)
            transport = self._servers.snapshot(info.server).value.spec.transport
            await TaskRequest(asked, self._servers, "tasks/cancel", {"taskId": record.task}, transport).answer()
        except (NurseryError, ServerReplaced) as error:
            logger.warning("%s: %s: it was not told that its task is cancelled: %s", info.server, info.tool, error)

    async def _have_cancelled(self, name: str) -> None:
        """Have the host that follows a task cancel it, and wait until it has."""
        await self._rows(lambda rows: rows.want_cancelled(name))
        with trio.move_on_after(CANCEL_WITHIN):
            while (record := await self._rows(lambda rows: rows.read(name))) is not None:
                if record.info.finished is not None:
                    return
                await trio.sleep(LOOK_EVERY)


def _release_all(tasks: Callable[[Callable[[TaskRows], Any]], Any], owner: str) -> None:
    tasks(lambda rows: rows.renew(owner, 0.0))


def _status_of(ended: ToolResult | NurseryError, last: TaskStatus) -> TaskStatus:
    if isinstance(ended, ToolResult):
        return TaskStatus.COMPLETED
    if isinstance(ended, TaskLost):
        return TaskStatus(ended.status)
    return TaskStatus.FAILED if isinstance(ended, ServerError) else last


def _outcome_of(ended: ToolResult | NurseryError, call: KeptCall) -> dict[str, Any] | None:
    """The outcome of a task, as it is recorded; None for one that is too large, or has no JSON form."""
    answer = call.slot.outcome
    match ended:
        case ToolResult():
            assert isinstance(answer, Answered)  # it was judged
            outcome = {"result": answer.result, "incarnation": ended.incarnation}
            if answer.size > MOST_RESULT:
                return None
        case ServerError():
            outcome = {"code": ended.code, "message": ended.message, "data": ended.data}
        case CallTimeout():
            outcome = {"timeout": ended.timeout}
        case TaskLost():
            outcome = {"why": ended.why}
        case _:
            outcome = {"why": ended.fact.removeprefix(f"{call.server_name}: {call.name}: ")}
    if isinstance(ended, NurseryError):
        outcome = {"error": {"type": type(ended).__name__, **outcome}}
    try:
        json.dumps(outcome)
    except (TypeError, ValueError, RecursionError):  # of an in-process server
        return None
    return outcome


def _error_in(record: TaskRecord, outcome: Mapping[str, Any]) -> CallError:
    """The error that is recorded as the end of a task."""
    info, said = record.info, outcome.get("error")
    error = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    why = str(error.get("why"))
    match error:
        case {"type": "ServerError", "code": int(code), "message": str(message)}:
            return ServerError(
                server=info.server, tool=info.tool, incarnation=None, code=code, message=message, data=error.get("data")
            )
        case {"type": "CallTimeout", "timeout": int() | float() as timeout}:
            delivery = Delivery.UNKNOWN
            return CallTimeout(server=info.server, tool=info.tool, incarnation=None, delivery=delivery, timeout=timeout)
        case {"type": "InvalidResult"}:
            return InvalidResult(why, server=info.server, tool=info.tool, incarnation=None)
        case _:
            return lost(record, why)
