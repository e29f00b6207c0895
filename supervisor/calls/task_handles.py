"""The handles of tasks that outlive their callers."""

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import final

import trio

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.records import define, field

from ..decisions.task_records import TaskInfo, TaskRecord
from ..decisions.task_states import TaskStatus
from ..servers.given_up_tasks import CANCEL_WITHIN
from ..servers.observable import Observable
from ..tools.tool_result import ToolResult

__all__ = ["Task", "TaskBlock", "TaskChanges", "TaskFacts"]


@define(eq=False)
class KeptTask:
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
    ending: bool = False
    """True once its end is learnt here, which no cancellation changes any more."""
    ended: ToolResult | NurseryError | None = None
    """The end of it, for this host."""
    made: bool = False
    """True if a gateway of this host makes the call."""
    unwanted: bool = False
    """True if the host that follows it is to cancel it."""
    forgotten: bool = False
    """True if it is not to be recorded any more once it is over."""
    begun: trio.Event = field(factory=trio.Event)
    """Set once it is recorded or over."""
    left: trio.Event = field(factory=trio.Event)
    """Set once this host does not follow it any more."""
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    leading: trio.CancelScope | None = None
    """The scope in which this host follows it, until its lease may be over; None while it has no lease."""
    cancelled: trio.Event | None = None
    """Set once its server knows that the task was cancelled, or cannot be told; None unless this host follows the task
    and has cancelled it."""


class TaskFacts(ABC):
    """The facts about a task, as a handle of it shows them."""

    @property
    @abstractmethod
    def info(self) -> TaskInfo:
        """The facts about it now."""

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
        """`working`, `input_required`, `completed`, `failed` or `cancelled`: see `TaskInfo.status`."""
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


@final
class Task(TaskFacts):
    """A tool call under way that outlives its caller: see `Supervisor.submit` and `Supervisor.start_task`."""

    def __init__(self, kept: KeptTask, cancel: Callable[[KeptTask], None]) -> None:
        self._kept = kept
        self._cancel = cancel

    def __repr__(self) -> str:
        return f"<Task {self.id} of {self.server}: {self.tool}: {self.status}>"

    @property
    @override
    def info(self) -> TaskInfo:
        info = self._kept.info.value
        assert info is not None  # or there would be no handle
        return info

    @property
    def is_over(self) -> bool:
        """True if `result` does not wait."""
        return self._kept.ended is not None

    async def result(self) -> ToolResult:
        """The result, once there is one. Cancelling the wait does not cancel the task.

        Raises:
            TaskLost: The task was cancelled, or its outcome cannot be known any more. If not `for_good`, a later
                `Supervisor.task` goes on with the task.
            CallTimeout: Its time was over.
            ServerError, InvalidResult: As for `call_tool`.
            SupervisorClosed: The block was left: another host can go on.
        """
        ended: ToolResult | NurseryError = await self._kept.info.wait(lambda _: self._kept.ended)
        if isinstance(ended, NurseryError):
            raise ended
        return ended

    async def cancel(self) -> None:
        """Cancel it, unless it is over, or the host that follows it has learnt its end: its server is sent
        `tasks/cancel` by that host, and decides what that means. Returns once the server has answered to that, or has
        not within 10 seconds. A server that is away is told when it is connected again within 60 s, and a host that
        has lost the state is told when it reaches that again."""
        self._cancel(self._kept)
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(CANCEL_WITHIN):
            await self._kept.info.wait(lambda _: self._kept.ended)
        if self._kept.cancelled is not None:
            await self._kept.cancelled.wait()

    def changes(self) -> "TaskChanges":
        """The facts about it, now and after each change, until it is over: `async for info in task.changes()`. A reader
        that is slow misses some, but never the last."""
        return TaskChanges(self._kept)


@final
class TaskChanges(AsyncIterator[TaskInfo]):
    """The facts about one task, now and after each change."""

    def __init__(self, kept: KeptTask) -> None:
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


@final
class TaskBlock(AbstractAsyncContextManager[Task]):
    """A task for as long as a block lasts: `begin` begins it, and `leave` ends it."""

    def __init__(self, begin: Callable[[], Awaitable[Task]], leave: Callable[[KeptTask], None]) -> None:
        self._begin = begin
        self._leave = leave
        self._task: Task | None = None

    @override
    async def __aenter__(self) -> Task:
        self._task = await self._begin()
        return self._task

    @override
    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Cancel the task unless it is over, and have it recorded no more. Never waits."""
        if self._task is not None:
            self._leave(self._task._kept)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
