"""A tool call whose task is recorded, by the host that has made the call or by one that goes on with its task."""

import math
import time
from typing import Any, Protocol, cast

import trio

from mcp_nursery.actors.deadlines import Deadline
from mcp_nursery.actors.errors import CallTimeout, NotApproved, ServerDown, TaskLost, UnknownServer, UnknownTool
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.outcomes import Answered
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.protocol import MODERN_PROTOCOL_VERSIONS
from mcp_nursery.actors.records import define, evolve, field
from mcp_nursery.actors.reply import ReplySlot

from ..decisions.task_records import TaskInfo, TaskRecord
from ..decisions.task_states import TaskState
from ..servers.view import ServerView
from ..spec import spec_digest, transport_digest
from ..tools.tool import Tool
from ..transports import Transport
from .call import ActiveCall, target_of
from .followed_task import give_up
from .task_handles import KeptTask
from .tool_call import ToolCall


class TaskKeeper(Protocol):
    """The writer of the records of tasks."""

    async def add(self, kept: KeptTask, record: TaskRecord) -> None:
        """Record a task that its server has just made.

        Raises:
            StoreUnreadable: It cannot be recorded.
        """
        ...

    async def change(self, kept: KeptTask, record: TaskRecord) -> None:
        """Record a change of a task, an answer at once. If its lease is lost, the caller is cancelled."""
        ...


@define(eq=False, repr=False)
class KeptCall(ToolCall):
    """A tool call whose task is recorded."""

    tasks: TaskKeeper = field(kw_only=True)
    kept: KeptTask = field(kw_only=True)
    gone_on_with: bool = field(default=False, init=False)
    """True if another call has begun the task."""
    said: tuple[str, str] | None = field(default=None, init=False)
    """The server's last words about its progress, and the same as they are shown."""
    questions: dict[str, str] = field(factory=dict[str, str], init=False)
    """The words of its open questions as they are shown, by key."""

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
            TaskLost: Its server is not there, or is another, or has not the tool as it was.
            CallTimeout: Its time is over.
        """
        from mcp_nursery.actors.session.requests import PreparedTool  # with what checks schemas, which no start needs

        self.gone_on_with = True
        self.begin(None)
        try:
            with self.in_time():
                found = await target_of(self).ready(patient=True)
        except (ServerDown, UnknownTool, UnknownServer, NotApproved) as error:
            raise lost(record, error.fact, for_good=False) from None
        except CallTimeout:
            check_server(record, self.servers)
            give_up(self, record.task, self.servers.snapshot(self.server_name).value.spec.transport)
            raise
        check_server(record, self.servers)  # again: it may have been replaced during the wait
        assert isinstance(found, Tool)  # as a call of a tool has it
        self.begin(found)
        if found.definition_hash != record.definition:
            raise lost(record, "its tool is not declared as it was when it was called", for_good=False)
        self.servers.counter.begin_call(found.server)
        snapshot = self.servers.snapshot(found.server).value
        self.sent_to: Transport | None = snapshot.spec.transport
        version = snapshot.introduction.protocol_version if snapshot.introduction else ""
        slot = ReplySlot()
        slot.take_over(
            snapshot.incarnation, PreparedTool(cast("Any", found.declared), protocol_version=version, stamp={})
        )
        modern = {"resultType": "task"} if version in MODERN_PROTOCOL_VERSIONS else {}
        slot.resolve(Answered({**modern, "taskId": record.task, "status": str(record.info.status)}))
        self.slot = slot

    @override
    async def task_made(self, task: TaskState) -> TaskState:
        if (record := self.kept.record) is not None:
            return _gone_on_with(task, record)
        await by_turns(self._read(task))
        if self.asked.timeout is None:  # the server's limit was for its answer
            self.deadline: Deadline | None = None
            self.timeout: float = math.inf
        record = first_record(self, self.kept.id, self.tool, task)
        await self.tasks.add(self.kept, self._changed(record, task))
        return task

    @override
    async def task_changed(self, task: TaskState) -> None:
        assert self.kept.record is not None  # it was made
        if not self._has_read(task):  # never after an answer, which is recorded at once
            await by_turns(self._read(task))
        record = self._changed(self.kept.record, task)
        await self.tasks.change(self.kept, record)
        if self.gone_on_with and (method := self._unanswerable(task)) is not None:
            raise lost(record, f"it asks a question ({method}) for which this host has no callback", for_good=False)

    def _unanswerable(self, task: TaskState) -> str | None:
        """The method of a question that nobody here can answer: it is left to another host."""
        callbacks = self.servers.settings.callbacks
        missing = {"elicitation/create": callbacks.elicit, "sampling/createMessage": callbacks.sample}
        methods = [_said_by(each).get("method") for key, each in task.questions.items() if key not in task.answers]
        return next((method for method in methods if method in missing and missing[method] is None), None)

    def _has_read(self, task: TaskState) -> bool:
        said = None if self.said is None else self.said[0]
        return said == task.message and task.questions.keys() <= self.questions.keys()

    def _read(self, task: TaskState) -> Steps[None]:
        """Make what is shown of the words of its server."""
        message, redactor = task.message, self.redactor
        self.said = None if message is None else (message, redactor.line(message))
        known, self.questions = self.questions, {}
        for key, question in task.questions.items():
            yield
            self.questions[key] = known.get(key) or redactor.line(_words(question))

    def _changed(self, record: TaskRecord, task: TaskState) -> TaskRecord:
        message = None if self.said is None else self.said[1]
        questions = tuple(self.questions[key] for key in task.questions if key not in task.answers)
        changed = _changed(record, task)
        return evolve(changed, info=evolve(changed.info, message=message, questions=questions))


def first_record(call: ActiveCall[Any, Any], name: str, tool: Tool, task: TaskState) -> TaskRecord:
    """The record of the task that the server of this tool has made of a call, without the server's words; `name`: the
    supervisor's name of it."""
    now = time.time()
    ends = None if call.asked.timeout is None or call.deadline is None else call.deadline.at
    deadline = None if ends is None else now + ends - trio.current_time()
    info = TaskInfo(name, tool.server, tool.tool, task.status, now - (trio.current_time() - task.begun_at))
    record = TaskRecord(info, transport_digest(call.sent_to) or "", tool.definition_hash, task.id, deadline)
    return _changed(record, task)


def _changed(record: TaskRecord, task: TaskState) -> TaskRecord:
    lasts = task.expires_at - task.begun_at
    expires = None if lasts == math.inf else record.info.created + lasts
    info = evolve(record.info, status=task.status, expires=expires)
    return evolve(record, info=info, asked=task.asked, answers=task.answers)


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


def check_server(record: TaskRecord, servers: ServerView) -> None:
    """Refuse to ask another server than the one that made the task.

    Raises:
        TaskLost: There is no server of its name, or it is reached in another way.
    """
    observable = servers.snapshots.get(record.info.server)
    if observable is None:
        raise lost(record, f"there is no server {record.info.server!r} here", for_good=False)
    if record.is_made:
        raise lost(record, "a gateway makes the call, and tells its client alone", for_good=False)
    if not record.spec:
        raise lost(record, "its server was an object of another program")
    if spec_digest(observable.value.spec) != record.spec:
        raise lost(record, "its server is reached in another way than it was", for_good=False)


def lost(record: TaskRecord, why: str, *, for_good: bool = True, status: str | None = None) -> TaskLost:
    """The error of a recorded task that this host cannot follow; `status`: its server's last word, if the record says
    another."""
    info = record.info
    return TaskLost(
        why,
        server=info.server,
        tool=info.tool,
        incarnation=None,
        task_id=record.task,
        status=status or str(info.status),
        said=info.message,
        for_good=for_good,
    )
