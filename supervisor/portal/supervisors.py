"""The supervisor of another thread, as its caller has it: with the names and results of `Supervisor`."""

from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, final

from attrs import evolve, fields

from mcp_nursery.actors.argument_checks import check_setting, instance_of
from mcp_nursery.actors.callbacks import Callbacks
from mcp_nursery.actors.errors import ConfigError, NurseryError, SupervisorClosed
from mcp_nursery.actors.reply import ProgressCallback

from ..calls.call import Call
from ..calls.fan_out import CallOutcome, Until
from ..opening import open_supervisor
from ..resources import Prompt, Resource, ResourceTemplate
from ..supervisor import Supervisor
from ..tools.pins import DefinitionChange
from ..tools.tool import Tool
from ..tools.tool_result import ToolResult
from ..toolset import Toolset
from .signals import (
    GRACE,
    Callback,
    Signal,
    ThreadSignal,
    asyncio_callback,
    is_on_asyncio,
    signal_here,
    thread_callback,
    trio_callback,
)
from .thread import Feed, Request, TrioThread

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
CallbackWrap = Callable[[Callback], Callback]
"""Makes of a callback of the caller one that is awaited in the thread."""


class Crossing:
    """An object of the thread, as its caller has it.

    Args:
        thread: The thread.
        there: The object.
        wrap: For the callbacks of the caller.
    """

    def __init__(self, thread: TrioThread, there: Any, wrap: CallbackWrap) -> None:
        self._thread = thread
        self._there = there
        self._wrap = wrap

    def _bound(self, method: Callable[..., R], args: tuple[Any, ...], options: Mapping[str, Any]) -> Callable[[], R]:
        """The method of the object with these arguments, whose callbacks are the caller's."""
        crossed = {
            name: self._wrap(value) if name in ("on_progress", "approve") and callable(value) else value
            for name, value in options.items()
        }
        return partial(method, self._there, *args, **crossed)

    def _crossed(self, call: Call) -> Call:
        return call if call.on_progress is None else evolve(call, on_progress=self._wrap(call.on_progress))


def _moment(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A plain method: it takes a moment of the thread, for which the caller's waits."""

    @wraps(method)
    def crossing(self: Crossing, *args: P.args, **options: P.kwargs) -> R:
        return self._thread.do(self._bound(method, args, options))  # pyright: ignore[reportPrivateUsage]

    return crossing


# -- in a loop --------------------------------------------------------------------------------------------------------


async def _ask(thread: TrioThread, function: Callable[[], Awaitable[R]]) -> R:
    """Run a function in the thread. Who is cancelled meanwhile has it cancelled there, and goes on when it has ended."""
    signal = signal_here()
    request = Request(function, signal)
    thread.post(request)
    await _wait(thread, request, signal, lambda: request.outcome is not None)
    assert request.outcome is not None  # that was waited for
    return request.outcome.unwrap()


async def _wait(thread: TrioThread, request: Request[Any], signal: Signal, holds: Callable[[], bool]) -> None:
    try:
        while not holds():
            await signal.wait()
    except GeneratorExit:  # the loop has gone: nothing can be waited for
        thread.cancel(request)
        raise
    except BaseException:
        thread.cancel(request)
        while request.outcome is None and await signal.wait_cancelled():
            pass
        raise


def _asked(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A coroutine method: it runs in the thread, for a task of the caller's loop."""

    @wraps(method)
    async def crossing(self: Crossing, *args: P.args, **options: P.kwargs) -> R:
        return await _ask(self._thread, self._bound(method, args, options))  # pyright: ignore[reportPrivateUsage]

    return crossing


class ThreadStream(Generic[T]):
    """A stream of the thread, for a block: `async with … as items: async for item in items`. A reader that falls behind
    holds back what comes, as in the thread itself."""

    def __init__(
        self, thread: TrioThread, opening: Callable[[], AbstractAsyncContextManager[AsyncIterable[T]]]
    ) -> None:
        self._thread = thread
        self._opening = opening
        self._signal: Signal
        self._feed: Feed[T]

    async def __aenter__(self) -> Self:
        self._signal = signal_here()
        feed = self._feed = Feed(self._thread, self._opening, self._signal)
        self._thread.post(feed.request)
        await _wait(self._thread, feed.request, self._signal, lambda: feed.is_open or feed.has_ended)
        if not feed.is_open:
            feed.check()
        return self

    async def __aexit__(self, *_: object) -> None:
        request = self._feed.request
        self._thread.cancel(request)
        await _wait(self._thread, request, self._signal, lambda: request.outcome is not None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """The next item.

        Raises:
            StopAsyncIteration: The stream has ended.
        """
        feed = self._feed
        item = feed.take()
        if item is None:
            await _wait(self._thread, feed.request, self._signal, lambda: feed.has_items or feed.has_ended)
            item = feed.take()
        if item is None:
            feed.check()
            raise StopAsyncIteration
        return item


def _streamed(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[AsyncIterable[T]]],
) -> Callable[Concatenate[Any, P], ThreadStream[T]]:
    """A method that opens a stream."""

    @wraps(method)
    def crossing(self: Crossing, *args: P.args, **options: P.kwargs) -> ThreadStream[T]:
        return ThreadStream(self._thread, self._bound(method, args, options))  # pyright: ignore[reportPrivateUsage]

    return crossing


class ThreadTools(Crossing):
    """Tools of the thread. Each can be awaited in the caller's loop: `await tool(arguments)`."""

    def _here(self, tool: Tool) -> Tool:
        return evolve(tool, invoke=self._invoke)

    async def _invoke(
        self,
        tool: Tool,
        arguments: Mapping[str, Any] | None,
        *,
        timeout: float | None,
        on_progress: ProgressCallback | None,
        meta: Mapping[str, Any] | None,
    ) -> ToolResult:
        there = await _ask(self._thread, partial(self._find, tool))
        options: dict[str, Any] = {"timeout": timeout, "on_progress": on_progress, "meta": meta}
        return await _ask(
            self._thread, self._bound(lambda _, *args, **more: there(*args, **more), (arguments,), options)
        )

    async def _find(self, tool: Tool) -> Tool:
        """The tool of the thread that this one stands for."""
        supervisor = self._thread.supervisor
        assert supervisor is not None  # it is open
        return await supervisor.find_tool(tool.tool, server=tool.server)


@final
class ThreadToolset(ThreadTools):
    """A `Toolset` of the thread, for a task of the caller's loop."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """As of `Toolset`."""
        return tuple(map(self._here, self._thread.do(lambda: self._there.tools)))

    as_openai = _moment(Toolset.as_openai)
    as_anthropic = _moment(Toolset.as_anthropic)
    as_langchain = _moment(Toolset.as_langchain)
    preamble = _moment(Toolset.preamble)
    call = _asked(Toolset.call)
    run = _asked(Toolset.run)
    changed = _asked(Toolset.changed)


class KnownOffers(Crossing):
    """What is known of servers, for a caller of any kind."""

    @property
    def resources(self) -> tuple[Resource, ...]:
        """As of `Supervisor`."""
        return self._thread.do(lambda: self._there.resources)

    @property
    def resource_templates(self) -> tuple[ResourceTemplate, ...]:
        """As of `Supervisor`."""
        return self._thread.do(lambda: self._there.resource_templates)

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """As of `Supervisor`."""
        return self._thread.do(lambda: self._there.prompts)

    @property
    def definition_changes(self) -> tuple[DefinitionChange, ...]:
        """As of `Supervisor`."""
        return self._thread.do(lambda: self._there.definition_changes)

    @property
    def unlisted(self) -> tuple[str, ...]:
        """As of `Supervisor`."""
        return self._thread.do(lambda: self._there.unlisted)

    status = _moment(Supervisor.status)
    statistics = _moment(Supervisor.statistics)
    recent_calls = _moment(Supervisor.recent_calls)
    spec = _moment(Supervisor.spec)
    hello = _moment(Supervisor.hello)
    offers = _moment(Supervisor.offers)
    protocol_version = _moment(Supervisor.protocol_version)


@final
class ThreadSupervisor(ThreadTools, KnownOffers):
    """A `Supervisor` of the thread, for tasks of the loop that has opened it: its methods have the names, arguments,
    results and errors of that. Plain ones take a moment of the thread. Callbacks run in the loop of the caller."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """As of `Supervisor`."""
        return tuple(map(self._here, self._thread.do(lambda: self._there.tools)))

    def tool(self, name: str, *, server: str | None = None) -> Tool:
        """As of `Supervisor`."""
        return self._here(self._thread.do(lambda: self._there.tool(name, server=server)))

    async def list_tools(self, server: str | None = None, *, refresh: bool = False) -> tuple[Tool, ...]:
        """As of `Supervisor`."""
        return tuple(map(self._here, await _ask(self._thread, lambda: self._there.list_tools(server, refresh=refresh))))

    async def find_tool(self, name: str, *, server: str | None = None) -> Tool:
        """As of `Supervisor`."""
        return self._here(await _ask(self._thread, lambda: self._there.find_tool(name, server=server)))

    async def find_tools(self, query: str, *, server: str | None = None) -> tuple[Tool, ...]:
        """As of `Supervisor`."""
        return tuple(map(self._here, await _ask(self._thread, lambda: self._there.find_tools(query, server=server))))

    def as_toolset(self, *, search: bool = False) -> ThreadToolset:
        """As of `Supervisor`."""
        there = self._thread.do(lambda: self._there.as_toolset(search=search))
        return ThreadToolset(self._thread, there, self._wrap)

    def fan_out(
        self, calls: Iterable[Call], *, until: Until = "all", limit: int | None = None
    ) -> ThreadStream[CallOutcome]:
        """As of `Supervisor`."""
        crossed = [self._crossed(call) for call in calls]
        return ThreadStream(self._thread, lambda: self._there.fan_out(crossed, until=until, limit=limit))

    async def gather(self, calls: Iterable[Call], *, limit: int | None = None) -> list[ToolResult | NurseryError]:
        """As of `Supervisor`."""
        crossed = [self._crossed(call) for call in calls]
        return await _ask(self._thread, lambda: self._there.gather(crossed, limit=limit))

    call_tool = _asked(Supervisor.call_tool)
    list_resources = _asked(Supervisor.list_resources)
    list_prompts = _asked(Supervisor.list_prompts)
    read_resource = _asked(Supervisor.read_resource)
    get_prompt = _asked(Supervisor.get_prompt)
    complete = _asked(Supervisor.complete)
    agree = _asked(Supervisor.agree)
    refresh_old = _asked(Supervisor.refresh_old)
    accept_change = _asked(Supervisor.accept_change)
    wait_connected = _asked(Supervisor.wait_connected)
    wait_listed = _asked(Supervisor.wait_listed)
    reconnect = _asked(Supervisor.reconnect)
    start_server = _asked(Supervisor.start_server)
    stop_server = _asked(Supervisor.stop_server)
    add_server = _asked(Supervisor.add_server)
    remove_server = _asked(Supervisor.remove_server)
    reload = _asked(Supervisor.reload)
    set_roots = _asked(Supervisor.set_roots)
    broadcast = _streamed(Supervisor.broadcast)
    events = _streamed(Supervisor.events)
    stderr = _streamed(Supervisor.stderr)
    subscribe = _streamed(Supervisor.subscribe)


# -- in plain code ----------------------------------------------------------------------------------------------------


def _block(thread: TrioThread, function: Callable[[], Awaitable[R]]) -> R:
    """Run a function in the thread, and wait. Ctrl-C cancels it there."""
    signal = ThreadSignal()
    request = Request(function, signal)
    thread.post(request)
    _block_until(thread, request, signal, lambda: request.outcome is not None)
    assert request.outcome is not None  # that was waited for
    return request.outcome.unwrap()


def _block_until(thread: TrioThread, request: Request[Any], signal: ThreadSignal, holds: Callable[[], bool]) -> None:
    try:
        while not holds():
            signal.wait()
    except BaseException:
        thread.cancel(request)
        while request.outcome is None and signal.wait(GRACE):
            pass
        raise


def _blocking(method: Callable[Concatenate[Any, P], Awaitable[R]]) -> Callable[Concatenate[Any, P], R]:
    """A coroutine method as a plain one, which waits."""

    @wraps(method)
    def crossing(self: Crossing, *args: P.args, **options: P.kwargs) -> R:
        return _block(self._thread, self._bound(method, args, options))  # pyright: ignore[reportPrivateUsage]

    return crossing


class BlockingStream(Generic[T]):
    """A stream of the thread, for a block of plain code: `with … as items: for item in items`."""

    def __init__(
        self, thread: TrioThread, opening: Callable[[], AbstractAsyncContextManager[AsyncIterable[T]]]
    ) -> None:
        self._thread = thread
        self._signal = ThreadSignal()
        self._feed = Feed(thread, opening, self._signal)

    def __enter__(self) -> Self:
        feed = self._feed
        self._thread.post(feed.request)
        _block_until(self._thread, feed.request, self._signal, lambda: feed.is_open or feed.has_ended)
        if not feed.is_open:
            feed.check()
        return self

    def __exit__(self, *_: object) -> None:
        request = self._feed.request
        self._thread.cancel(request)
        _block_until(self._thread, request, self._signal, lambda: request.outcome is not None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """The next item.

        Raises:
            StopIteration: The stream has ended.
        """
        feed = self._feed
        item = feed.take()
        if item is None:
            _block_until(self._thread, feed.request, self._signal, lambda: feed.has_items or feed.has_ended)
            item = feed.take()
        if item is None:
            feed.check()
            raise StopIteration
        return item


def _blocking_stream(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[AsyncIterable[T]]],
) -> Callable[Concatenate[Any, P], BlockingStream[T]]:
    """A method that opens a stream for plain code."""

    @wraps(method)
    def crossing(self: Crossing, *args: P.args, **options: P.kwargs) -> BlockingStream[T]:
        return BlockingStream(self._thread, self._bound(method, args, options))  # pyright: ignore[reportPrivateUsage]

    return crossing


@final
class BlockingToolset(Crossing):
    """A `Toolset` of the thread, for plain code."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """As of `Toolset`; they are descriptions: `run` and `call` call one."""
        return tuple(evolve(tool, invoke=None) for tool in self._thread.do(lambda: self._there.tools))

    as_openai = _moment(Toolset.as_openai)
    as_anthropic = _moment(Toolset.as_anthropic)
    as_langchain = _moment(Toolset.as_langchain)
    preamble = _moment(Toolset.preamble)
    call = _blocking(Toolset.call)
    run = _blocking(Toolset.run)
    changed = _blocking(Toolset.changed)


@final
class BlockingSupervisor(KnownOffers):
    """A `Supervisor` of the thread, for plain code and notebooks: its methods have the names, arguments, results and
    errors of that, and wait. Any thread may call them. Callbacks may be plain functions, which run in threads."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """As of `Supervisor`; they are descriptions: `call_tool` calls one."""
        return tuple(evolve(tool, invoke=None) for tool in self._thread.do(lambda: self._there.tools))

    def tool(self, name: str, *, server: str | None = None) -> Tool:
        """As of `Supervisor`."""
        return evolve(self._thread.do(lambda: self._there.tool(name, server=server)), invoke=None)

    def as_toolset(self, *, search: bool = False) -> BlockingToolset:
        """As of `Supervisor`."""
        there = self._thread.do(lambda: self._there.as_toolset(search=search))
        return BlockingToolset(self._thread, there, self._wrap)

    def fan_out(
        self, calls: Iterable[Call], *, until: Until = "all", limit: int | None = None
    ) -> BlockingStream[CallOutcome]:
        """As of `Supervisor`."""
        crossed = [self._crossed(call) for call in calls]
        return BlockingStream(self._thread, lambda: self._there.fan_out(crossed, until=until, limit=limit))

    def gather(self, calls: Iterable[Call], *, limit: int | None = None) -> list[ToolResult | NurseryError]:
        """As of `Supervisor`."""
        crossed = [self._crossed(call) for call in calls]
        return _block(self._thread, lambda: self._there.gather(crossed, limit=limit))

    call_tool = _blocking(Supervisor.call_tool)
    list_tools = _blocking(Supervisor.list_tools)
    find_tool = _blocking(Supervisor.find_tool)
    find_tools = _blocking(Supervisor.find_tools)
    list_resources = _blocking(Supervisor.list_resources)
    list_prompts = _blocking(Supervisor.list_prompts)
    read_resource = _blocking(Supervisor.read_resource)
    get_prompt = _blocking(Supervisor.get_prompt)
    complete = _blocking(Supervisor.complete)
    agree = _blocking(Supervisor.agree)
    refresh_old = _blocking(Supervisor.refresh_old)
    accept_change = _blocking(Supervisor.accept_change)
    wait_connected = _blocking(Supervisor.wait_connected)
    wait_listed = _blocking(Supervisor.wait_listed)
    reconnect = _blocking(Supervisor.reconnect)
    start_server = _blocking(Supervisor.start_server)
    stop_server = _blocking(Supervisor.stop_server)
    add_server = _blocking(Supervisor.add_server)
    remove_server = _blocking(Supervisor.remove_server)
    reload = _blocking(Supervisor.reload)
    set_roots = _blocking(Supervisor.set_roots)
    broadcast = _blocking_stream(Supervisor.broadcast)
    events = _blocking_stream(Supervisor.events)
    stderr = _blocking_stream(Supervisor.stderr)
    subscribe = _blocking_stream(Supervisor.subscribe)


# -- opening ----------------------------------------------------------------------------------------------------------


@final
class SupervisorThread:
    """The block of `open_supervisor_thread`, of either kind. It can be entered once."""

    def __init__(
        self, opening: Callable[..., AbstractAsyncContextManager[Supervisor]], options: Mapping[str, Any]
    ) -> None:
        if options.get("borrow") is not None:
            problem = "belongs to the loop that it was opened in: a thread has servers of its own"
            raise ConfigError(problem, field="borrow")
        self._opening = opening
        self._options = options
        self._thread: TrioThread

    def _begin(self, wrap: CallbackWrap) -> None:
        self._thread = TrioThread(partial(self._opening, **_with_callbacks(self._options, wrap)))

    async def __aenter__(self) -> ThreadSupervisor:
        wrap = asyncio_callback if is_on_asyncio() else trio_callback
        self._begin(wrap)
        thread, signal = self._thread, signal_here()
        thread.start(signal)
        try:
            while thread.supervisor is None and not thread.has_ended:
                await signal.wait()
        except BaseException:
            await self._end()
            raise
        if thread.supervisor is None:
            thread.check()
            raise SupervisorClosed
        return ThreadSupervisor(thread, thread.supervisor, wrap)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end()
        if error is None:
            self._thread.check()

    async def _end(self) -> None:
        """End the thread, and wait for it, cancelled or not: it has limits of its own."""
        signal = signal_here()
        self._thread.end(signal)
        cancelled: BaseException | None = None
        while not self._thread.has_ended and self._thread.is_own:
            try:
                await signal.wait()
            except BaseException as error:
                cancelled = error
                await signal.wait_cancelled()
        if cancelled is not None:
            raise cancelled

    def __enter__(self) -> BlockingSupervisor:
        self._begin(thread_callback)
        thread, signal = self._thread, ThreadSignal()
        thread.start(signal)
        try:
            while thread.supervisor is None and not thread.has_ended:
                signal.wait()
        except BaseException:
            self._end_here()
            raise
        if thread.supervisor is None:
            thread.check()
            raise SupervisorClosed
        return BlockingSupervisor(thread, thread.supervisor, thread_callback)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_here()
        if error is None:
            self._thread.check()

    def _end_here(self) -> None:
        self._thread.end()
        self._thread.join()


def _with_callbacks(options: Mapping[str, Any], wrap: CallbackWrap) -> dict[str, Any]:
    """The options of `open_supervisor`, with the callbacks of the caller as the thread awaits them."""
    crossed = dict(options)
    for name in ("approve", "trust", "roots"):
        if callable(crossed.get(name)):
            crossed[name] = wrap(crossed[name])
    if (callbacks := crossed.get("callbacks")) is not None:
        check_setting("callbacks", callbacks, instance_of(Callbacks))
        given = {each.name: getattr(callbacks, each.name) for each in fields(Callbacks)}
        crossed["callbacks"] = evolve(
            callbacks, **{name: wrap(value) for name, value in given.items() if callable(value)}
        )
    return crossed


def _in_a_thread(opening: Callable[P, AbstractAsyncContextManager[Supervisor]]) -> Callable[P, SupervisorThread]:
    @wraps(opening)
    def opened(*args: P.args, **options: P.kwargs) -> SupervisorThread:
        return SupervisorThread(partial(opening, *args), options)

    return opened


open_supervisor_thread = _in_a_thread(open_supervisor)
"""Open a supervisor in a thread of its own, for programs without Trio: `async with` in asyncio and anyio, `with` in plain
code. Takes the arguments of `open_supervisor`; callbacks are functions of the caller, and run in its loop."""
