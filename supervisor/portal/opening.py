"""The block of a supervisor in a thread of its own."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Final, ParamSpec, final

import trio

from mcp_nursery.actors.argument_checks import check_setting, instance_of
from mcp_nursery.actors.callbacks import Callbacks
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.records import evolve, fields

from ..opening import open_supervisor
from ..supervisor import Supervisor
from .async_supervisor import ThreadSupervisor
from .blocking_supervisor import BlockingSupervisor
from .callbacks import CallbackWrap, loop_callback, thread_callback
from .interrupts import interrupts_held
from .signals import LoopSignal, ThreadSignal, running_loop
from .trio_thread import AT_EXIT, TrioThread

P = ParamSpec("P")


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
        self._thread_made = False

    def _make(self, wrap: CallbackWrap) -> TrioThread:
        if self._thread_made:
            raise RuntimeError("this block was entered before: call open_supervisor_thread again")
        self._thread_made = True
        self._thread = TrioThread(partial(self._opening, **_with_callbacks(self._options, wrap)))
        return self._thread

    async def __aenter__(self) -> ThreadSupervisor:
        opened = LoopSignal()
        thread = self._make(loop_callback)
        try:
            thread.start(opened)
            await opened.wait()
            return ThreadSupervisor(thread, thread.opened, loop_callback)
        except BaseException as error:
            await self._end(error)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end(error)
        self._thread.check(error)

    async def _end(self, error: BaseException | None) -> None:
        """End the thread, and wait for it, cancelled or not: it has limits of its own."""
        thread = self._thread
        if isinstance(error, GeneratorExit):  # the coroutine is closed: nothing may be awaited
            thread.end()
            self._join_outside_loops()
            return
        ended = LoopSignal()
        thread.end(ended)
        cancelled: BaseException | None = None
        while not thread.has_ended and thread.is_own:
            try:
                await ended.wait()
            except GeneratorExit:
                self._join_outside_loops()
                raise
            except BaseException as more:
                cancelled = more
                await ended.wait_cancelled()
        thread.join(AT_EXIT)  # it has only to return
        if cancelled is not None:
            raise cancelled

    def _join_outside_loops(self) -> None:
        """Wait for the thread if its loop has gone. One that runs would stand still: the thread ends beside it, and the
        interpreter waits for it at its exit."""
        if running_loop() is None and not trio.lowlevel.in_trio_run():
            self._thread.join(AT_EXIT)

    def __enter__(self) -> BlockingSupervisor:
        opened = ThreadSignal()
        thread = self._make(thread_callback)
        try:
            thread.start(opened)
            opened.wait()
            return BlockingSupervisor(thread, thread.opened, thread_callback)
        except BaseException:
            self._end_here()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_here()
        self._thread.check(error)

    def _end_here(self) -> None:
        with interrupts_held():
            self._thread.end()
            has_ended = self._thread.join(AT_EXIT)
        if not has_ended:
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
    @wraps(opening, assigned=())  # the signature alone
    def open_supervisor_thread(*args: P.args, **options: P.kwargs) -> SupervisorThread:
        """Open a supervisor in a thread of its own, for programs without Trio.

        `async with` gives a `ThreadSupervisor` to a program on asyncio, or on any backend of anyio; `with` gives a
        `BlockingSupervisor` to plain code and notebooks. Leaving the block ends the servers and the thread, as leaving
        that of `open_supervisor` does. A block that is never left ends with the interpreter. In a child that `fork`
        makes it is closed, and the servers stay those of the parent.

        Args:
            args: Those of `open_supervisor`.
            options: Those of `open_supervisor`, except `borrow`. Callbacks are functions of the caller: in a loop they
                run in that loop; in plain code a function runs in a thread of its own, a coroutine function on Trio.

        Raises:
            ConfigError: As for `open_supervisor`; or `borrow` is given.
        """
        return SupervisorThread(partial(opening, *args), options)

    return open_supervisor_thread


open_supervisor_thread: Final = _in_a_thread(open_supervisor)
