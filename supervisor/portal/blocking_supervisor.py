"""The supervisor of another thread, for plain code: with the names and results of `Supervisor`."""

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, final

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.records import evolve

from ..calls.call import Call
from ..calls.fan_out import CallOutcome, Until
from ..calls.task_handles import Task, TaskBlock
from ..decisions.restart_policy import WhenDown
from ..decisions.task_records import TaskInfo
from ..supervisor import Supervisor
from ..tools.tool import Tool
from ..tools.tool_result import ToolResult
from ..toolset import ToolForms, Toolset
from .async_supervisor import ThreadSupervisor
from .callbacks import loop_callback
from .proxy import KnownOffers, ThreadProxy, ThreadTaskBlock, ThreadTaskFacts, moment
from .signals import GRACE, ThreadSignal
from .stream import CrossingStream
from .thread_request import ThreadRequest
from .trio_thread import TrioThread, check_may_wait, is_in_thread

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def _block(thread: TrioThread, function: Callable[[], Awaitable[R]]) -> R:
    """Run a function in the thread, and wait. Ctrl-C cancels it there."""
    signal = ThreadSignal()
    request = ThreadRequest(function, signal)
    _begin_and_block(partial(thread.post, request), signal, signal, partial(thread.cancel, request))
    return request.unwrap()


def _begin_and_block(
    begin: Callable[[], object], signal: ThreadSignal, ended: ThreadSignal, cancel: Callable[[], object]
) -> None:
    """Begin something in the thread, and wait for a signal of it. If Ctrl-C comes meanwhile, `cancel` ends the other
    side, and the caller goes on when that has `ended`."""
    check_may_wait()
    try:
        begin()
        signal.wait()
    except BaseException:
        cancel()
        ended.wait(GRACE)
        raise


def _blocking(method: Callable[Concatenate[Any, P], Awaitable[R]]) -> Callable[Concatenate[Any, P], R]:
    """A coroutine method as a plain one, which waits."""

    @wraps(method)
    def crossing(self: Any, /, *args: P.args, **options: P.kwargs) -> R:
        found: R = _block(self._thread, self._bound(method, args, options))
        return found

    return crossing


class BlockingStream(CrossingStream[T, ThreadSignal]):
    """A stream of the thread, for a block of plain code: `with … as items: for item in items`."""

    def __enter__(self) -> Self:
        feed = self._make_feed(ThreadSignal)
        _begin_and_block(feed.begin, feed.opened, feed.ended, feed.cancel)
        feed.check_opened()
        self._feed = feed
        return self

    def __exit__(self, *_: object) -> None:
        feed = self._feed_in_block()
        if is_in_thread():  # as where garbage collection ends a generator: the thread would wait for itself
            feed.leave()
        else:
            _begin_and_block(feed.leave, feed.ended, feed.ended, feed.cancel)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """The next item.

        Raises:
            StopIteration: The stream has ended.
        """
        feed = self._feed_in_block()
        while (item := feed.take()) is None:
            if feed.has_ended:
                feed.check()
                raise StopIteration
            check_may_wait()
            signal = ThreadSignal()
            with feed.reading(signal) as has_to_wait:
                if has_to_wait:
                    signal.wait()
        return item


def _blocking_stream(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[AsyncIterable[T]]],
) -> Callable[Concatenate[Any, P], BlockingStream[T]]:
    """A method that opens a stream for plain code."""

    @wraps(method)
    def crossing(self: Any, /, *args: P.args, **options: P.kwargs) -> BlockingStream[T]:
        return BlockingStream(self._thread, self._bound(method, args, options))

    return crossing


class TaskChangesIterator(ThreadProxy):
    """The facts about a task, now and after each change: `for info in task.changes()`."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TaskInfo:
        """The facts after the next change.

        Raises:
            StopIteration: The task is over.
        """
        try:
            found: TaskInfo = _block(self._thread, self._there.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None
        return found


@final
class BlockingTask(ThreadTaskFacts):
    """A `Task` of the thread, for plain code."""

    def changes(self) -> TaskChangesIterator:
        """See `Task`."""
        return TaskChangesIterator(self._thread, self._there.changes(), self._wrap)

    result: Final = _blocking(Task.result)
    cancel: Final = _blocking(Task.cancel)


class BlockingTaskBlock(ThreadTaskBlock[BlockingTask]):
    """A task for a block of plain code: `with … as task`."""

    def __enter__(self) -> BlockingTask:
        try:
            return self._handle(_block(self._thread, self._block.__aenter__))
        except BaseException:
            self._leave()
            raise

    def __exit__(self, *_: object) -> None:
        self._leave()


def _handled(method: Callable[Concatenate[Any, P], Awaitable[Task]]) -> Callable[Concatenate[Any, P], BlockingTask]:
    """A coroutine method that gives a task, as a plain one, which waits."""

    @wraps(method)
    def crossing(self: Any, /, *args: P.args, **options: P.kwargs) -> BlockingTask:
        return BlockingTask(self._thread, _block(self._thread, self._bound(method, args, options)), self._wrap)

    return crossing


def _in_block(method: Callable[Concatenate[Any, P], TaskBlock]) -> Callable[Concatenate[Any, P], BlockingTaskBlock]:
    """A method that gives a task for a block."""

    @wraps(method)
    def crossing(self: Any, /, *args: P.args, **options: P.kwargs) -> BlockingTaskBlock:
        block = self._thread.do(self._bound(method, args, options))
        return BlockingTaskBlock(self._thread, block, lambda task: BlockingTask(self._thread, task, self._wrap))

    return crossing


def _description(tool: Tool) -> Tool:
    """The tool as a description: plain code cannot await it."""
    return evolve(tool, invoke=None)


def _described(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    return tuple(map(_description, tools))


@final
class BlockingToolset(ThreadProxy, ToolForms):
    """A `Toolset` of the thread, for plain code."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """See `Toolset`. These are descriptions: `run` and `call` call one."""
        return _described(self._thread.do(lambda: self._there.tools))

    preamble: Final = moment(Toolset.preamble)

    def changed(self, since: tuple[Tool, ...]) -> tuple[Tool, ...]:
        """See `Toolset`."""
        return _described(_block(self._thread, lambda: self._there.changed(since)))

    call: Final = _blocking(Toolset.call)
    run: Final = _blocking(Toolset.run)


@final
class BlockingSupervisor(KnownOffers):
    """A `Supervisor` of the thread, for plain code and notebooks: its methods have the same names, arguments, results
    and errors, and wait. Any thread may call them. Callbacks may be plain functions, which run in threads."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """See `Supervisor`. These are descriptions: `call_tool` calls one."""
        return _described(self._thread.do(lambda: self._there.tools))

    def tool(self, name: str, *, server: str | None = None) -> Tool:
        """See `Supervisor`."""
        return _description(self._thread.do(lambda: self._there.tool(name, server=server)))

    def list_tools(self, server: str | None = None, *, refresh: bool = False) -> tuple[Tool, ...]:
        """See `Supervisor`."""
        return _described(_block(self._thread, lambda: self._there.list_tools(server, refresh=refresh)))

    def find_tool(self, name: str, *, server: str | None = None, when_down: WhenDown | None = None) -> Tool:
        """See `Supervisor`."""
        found = partial(self._there.find_tool, name, server=server, when_down=when_down)
        return _description(_block(self._thread, found))

    def find_tools(self, query: str, *, server: str | None = None) -> tuple[Tool, ...]:
        """See `Supervisor`."""
        return _described(_block(self._thread, lambda: self._there.find_tools(query, server=server)))

    def as_toolset(self, *, search: bool = False) -> BlockingToolset:
        """See `Supervisor`."""
        there = self._thread.do(lambda: self._there.as_toolset(search=search))
        return BlockingToolset(self._thread, there, self._wrap)

    def fan_out(
        self, calls: Iterable[Call], *, until: Until = "all", limit: int | None = None
    ) -> BlockingStream[CallOutcome]:
        """See `Supervisor`."""
        crossed = [self._crossed(call) for call in calls]
        return BlockingStream(self._thread, lambda: self._there.fan_out(crossed, until=until, limit=limit))

    def gather(self, calls: Iterable[Call], *, limit: int | None = None) -> list[ToolResult | NurseryError]:
        """See `Supervisor`."""
        crossed = [self._crossed(call) for call in calls]
        return _block(self._thread, lambda: self._there.gather(crossed, limit=limit))

    def awaitable(self) -> ThreadSupervisor:
        """The same supervisor for tasks of a loop, such as a framework runs behind a plain call."""
        return ThreadSupervisor(self._thread, self._there, loop_callback)

    call_tool: Final = _blocking(Supervisor.call_tool)
    submit: Final = _handled(Supervisor.submit)
    start_task: Final = _in_block(Supervisor.start_task)
    task: Final = _handled(Supervisor.task)
    tasks: Final = _blocking(Supervisor.tasks)
    list_resources: Final = _blocking(Supervisor.list_resources)
    list_prompts: Final = _blocking(Supervisor.list_prompts)
    read_resource: Final = _blocking(Supervisor.read_resource)
    servers_with: Final = _blocking(Supervisor.servers_with)
    list_skills: Final = _blocking(Supervisor.list_skills)
    get_skill: Final = _blocking(Supervisor.get_skill)
    read_skill_file: Final = _blocking(Supervisor.read_skill_file)
    list_skill_directory: Final = _blocking(Supervisor.list_skill_directory)
    get_prompt: Final = _blocking(Supervisor.get_prompt)
    complete: Final = _blocking(Supervisor.complete)
    agree: Final = _blocking(Supervisor.agree)
    refresh_old: Final = _blocking(Supervisor.refresh_old)
    accept_change: Final = _blocking(Supervisor.accept_change)
    wait_connected: Final = _blocking(Supervisor.wait_connected)
    wait_listed: Final = _blocking(Supervisor.wait_listed)
    reconnect: Final = _blocking(Supervisor.reconnect)
    start_server: Final = _blocking(Supervisor.start_server)
    stop_server: Final = _blocking(Supervisor.stop_server)
    add_server: Final = _blocking(Supervisor.add_server)
    remove_server: Final = _blocking(Supervisor.remove_server)
    reload: Final = _blocking(Supervisor.reload)
    set_roots: Final = _blocking(Supervisor.set_roots)
    broadcast: Final = _blocking_stream(Supervisor.broadcast)
    events: Final = _blocking_stream(Supervisor.events)
    stderr: Final = _blocking_stream(Supervisor.stderr)
    subscribe: Final = _blocking_stream(Supervisor.subscribe)
