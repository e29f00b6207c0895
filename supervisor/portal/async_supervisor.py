"""The supervisor of another thread, for tasks of a loop: with the names and results of `Supervisor`."""

from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, final

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.records import evolve

from ..calls.call import Call
from ..calls.fan_out import CallOutcome, Until
from ..calls.task_handles import Task, TaskBlock, TaskChanges
from ..decisions.restart_policy import WhenDown
from ..supervisor import Supervisor
from ..tools.tool import Tool
from ..tools.tool_result import ToolResult
from ..toolset import ToolForms, Toolset
from .proxy import KnownOffers, ThreadProxy, ThreadTaskBlock, ThreadTaskFacts, moment
from .signals import LoopSignal, begin_and_wait
from .stream import CrossingStream
from .thread_request import ThreadRequest
from .trio_thread import TrioThread

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


async def _ask(thread: TrioThread, function: Callable[[], Awaitable[R]]) -> R:
    """Run a function in the thread. If this task is cancelled, so is the function, and the task goes on when that has
    ended."""
    signal = LoopSignal()
    request = ThreadRequest(function, signal)
    await begin_and_wait(partial(thread.post, request), signal, signal, partial(thread.cancel, request))
    return request.unwrap()


def _asked(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A coroutine method: it runs in the thread, for a task of the caller's loop."""

    @wraps(method)
    async def crossing(self: Any, /, *args: P.args, **options: P.kwargs) -> R:
        return await _ask(self._thread, self._bound(method, args, options))

    return crossing


class ThreadStream(CrossingStream[T, LoopSignal]):
    """A stream of the thread, for a block: `async with … as items: async for item in items`. A reader that falls behind
    holds back further items, as in the thread itself."""

    async def __aenter__(self) -> Self:
        feed = self._make_feed(LoopSignal)
        await begin_and_wait(feed.begin, feed.opened, feed.ended, feed.cancel)
        feed.check_opened()
        self._feed = feed
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        feed = self._feed_in_block()
        if isinstance(error, GeneratorExit):  # the coroutine is closed: nothing may be awaited
            feed.leave()
        else:
            await begin_and_wait(feed.leave, feed.ended, feed.ended, feed.cancel)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """The next item.

        Raises:
            StopAsyncIteration: The stream has ended.
        """
        feed = self._feed_in_block()
        while (item := feed.take()) is None:
            if feed.has_ended:
                feed.check()
                raise StopAsyncIteration
            signal = LoopSignal()
            with feed.reading(signal) as has_to_wait:
                if has_to_wait:
                    await signal.wait()
        return item


def _streamed(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[AsyncIterable[T]]],
) -> Callable[Concatenate[Any, P], ThreadStream[T]]:
    """A method that opens a stream."""

    @wraps(method)
    def crossing(self: Any, /, *args: P.args, **options: P.kwargs) -> ThreadStream[T]:
        return ThreadStream(self._thread, self._bound(method, args, options))

    return crossing


class TaskChangesStream(ThreadProxy):
    """The facts about a task, now and after each change: `async for info in task.changes()`."""

    def __aiter__(self) -> Self:
        return self

    __anext__: Final = _asked(TaskChanges.__anext__)


@final
class ThreadTask(ThreadTaskFacts):
    """A `Task` of the thread, for tasks of the caller's loop."""

    def changes(self) -> TaskChangesStream:
        """See `Task`."""
        return TaskChangesStream(self._thread, self._there.changes(), self._wrap)

    result: Final = _asked(Task.result)
    cancel: Final = _asked(Task.cancel)


class LoopTaskBlock(ThreadTaskBlock[ThreadTask]):
    """A task for a block: `async with … as task`."""

    async def __aenter__(self) -> ThreadTask:
        try:
            return self._handle(await _ask(self._thread, self._block.__aenter__))
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()


def _handled(
    method: Callable[Concatenate[Any, P], Awaitable[Task]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, ThreadTask]]:
    """A coroutine method that gives a task."""

    @wraps(method)
    async def crossing(self: Any, /, *args: P.args, **options: P.kwargs) -> ThreadTask:
        return ThreadTask(self._thread, await _ask(self._thread, self._bound(method, args, options)), self._wrap)

    return crossing


def _in_block(method: Callable[Concatenate[Any, P], TaskBlock]) -> Callable[Concatenate[Any, P], LoopTaskBlock]:
    """A method that gives a task for a block."""

    @wraps(method)
    def crossing(self: Any, /, *args: P.args, **options: P.kwargs) -> LoopTaskBlock:
        block = self._thread.do(self._bound(method, args, options))
        return LoopTaskBlock(self._thread, block, lambda task: ThreadTask(self._thread, task, self._wrap))

    return crossing


class ThreadTools(ThreadProxy):
    """Tools of the thread. Each can be awaited in the caller's loop: `await tool(arguments)`."""

    def _here(self, tool: Tool) -> Tool:
        return evolve(tool, invoke=self._invoke)

    async def _invoke(self, tool: Tool, arguments: Mapping[str, Any] | None, **options: Any) -> ToolResult:
        crossed = {name: self._given(value) for name, value in options.items()}

        async def call() -> ToolResult:
            there = await self._find(tool)
            return await there(arguments, **crossed)

        return await _ask(self._thread, call)

    async def _find(self, tool: Tool) -> Tool:
        """The tool of the thread that this one stands for."""
        supervisor = self._thread.supervisor
        assert supervisor is not None  # it is open
        return await supervisor.find_tool(tool.tool, server=tool.server)


@final
class ThreadToolset(ThreadTools, ToolForms):
    """A `Toolset` of the thread, for a task of the caller's loop."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """See `Toolset`."""
        return tuple(map(self._here, self._thread.do(lambda: self._there.tools)))

    preamble: Final = moment(Toolset.preamble)

    async def changed(self, since: tuple[Tool, ...]) -> tuple[Tool, ...]:
        """See `Toolset`."""
        return tuple(map(self._here, await _ask(self._thread, lambda: self._there.changed(since))))

    async def _find(self, tool: Tool) -> Tool:
        # Some of its tools are of no server.
        own = next((each for each in self._there.tools if each.name == tool.name), None)
        return own or await super()._find(tool)

    call: Final = _asked(Toolset.call)
    run: Final = _asked(Toolset.run)


@final
class ThreadSupervisor(ThreadTools, KnownOffers):
    """A `Supervisor` of the thread, for tasks of the loop that has opened it: its methods have the same names,
    arguments, results and errors. Plain ones take a moment of the thread. Callbacks run in the loop of the caller."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """See `Supervisor`."""
        return tuple(map(self._here, self._thread.do(lambda: self._there.tools)))

    def tool(self, name: str, *, server: str | None = None) -> Tool:
        """See `Supervisor`."""
        return self._here(self._thread.do(lambda: self._there.tool(name, server=server)))

    async def list_tools(self, server: str | None = None, *, refresh: bool = False) -> tuple[Tool, ...]:
        """See `Supervisor`."""
        return tuple(map(self._here, await _ask(self._thread, lambda: self._there.list_tools(server, refresh=refresh))))

    async def find_tool(self, name: str, *, server: str | None = None, when_down: WhenDown | None = None) -> Tool:
        """See `Supervisor`."""
        found = partial(self._there.find_tool, name, server=server, when_down=when_down)
        return self._here(await _ask(self._thread, found))

    async def find_tools(self, query: str, *, server: str | None = None) -> tuple[Tool, ...]:
        """See `Supervisor`."""
        return tuple(map(self._here, await _ask(self._thread, lambda: self._there.find_tools(query, server=server))))

    def as_toolset(self, *, search: bool = False) -> ThreadToolset:
        """See `Supervisor`."""
        there = self._thread.do(lambda: self._there.as_toolset(search=search))
        return ThreadToolset(self._thread, there, self._wrap)

    def fan_out(
        self, calls: Iterable[Call], *, until: Until = "all", limit: int | None = None
    ) -> ThreadStream[CallOutcome]:
        """See `Supervisor`."""
        crossed = [self._crossed(call) for call in calls]
        return ThreadStream(self._thread, lambda: self._there.fan_out(crossed, until=until, limit=limit))

    async def gather(self, calls: Iterable[Call], *, limit: int | None = None) -> list[ToolResult | NurseryError]:
        """See `Supervisor`."""
        crossed = [self._crossed(call) for call in calls]
        return await _ask(self._thread, lambda: self._there.gather(crossed, limit=limit))

    call_tool: Final = _asked(Supervisor.call_tool)
    submit: Final = _handled(Supervisor.submit)
    start_task: Final = _in_block(Supervisor.start_task)
    task: Final = _handled(Supervisor.task)
    tasks: Final = _asked(Supervisor.tasks)
    list_resources: Final = _asked(Supervisor.list_resources)
    list_prompts: Final = _asked(Supervisor.list_prompts)
    read_resource: Final = _asked(Supervisor.read_resource)
    servers_with: Final = _asked(Supervisor.servers_with)
    list_skills: Final = _asked(Supervisor.list_skills)
    get_skill: Final = _asked(Supervisor.get_skill)
    read_skill_file: Final = _asked(Supervisor.read_skill_file)
    list_skill_directory: Final = _asked(Supervisor.list_skill_directory)
    get_prompt: Final = _asked(Supervisor.get_prompt)
    complete: Final = _asked(Supervisor.complete)
    agree: Final = _asked(Supervisor.agree)
    refresh_old: Final = _asked(Supervisor.refresh_old)
    accept_change: Final = _asked(Supervisor.accept_change)
    wait_connected: Final = _asked(Supervisor.wait_connected)
    wait_listed: Final = _asked(Supervisor.wait_listed)
    reconnect: Final = _asked(Supervisor.reconnect)
    start_server: Final = _asked(Supervisor.start_server)
    stop_server: Final = _asked(Supervisor.stop_server)
    add_server: Final = _asked(Supervisor.add_server)
    remove_server: Final = _asked(Supervisor.remove_server)
    reload: Final = _asked(Supervisor.reload)
    set_roots: Final = _asked(Supervisor.set_roots)
    broadcast: Final = _streamed(Supervisor.broadcast)
    events: Final = _streamed(Supervisor.events)
    stderr: Final = _streamed(Supervisor.stderr)
    subscribe: Final = _streamed(Supervisor.subscribe)
