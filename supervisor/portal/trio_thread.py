"""A supervisor in a thread of its own, and the requests that cross to it."""

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, TypeVar

import trio

from mcp_nursery.actors.errors import NurseryError, SupervisorClosed
from mcp_nursery.actors.nurseries import open_bare_nursery

from ..supervisor import Supervisor
from .interrupts import interrupts_held
from .signals import Signal, ThreadSignal
from .thread_request import ThreadRequest

T = TypeVar("T")

logger: Final = logging.getLogger(__name__)

AT_EXIT: Final = 10.0
"""Seconds that the interpreter waits at its exit for all blocks that were never left, and for which Ctrl-C is held off
while a block is left."""
_HERE: Final = threading.local()
"""Has an attribute in the threads of supervisors alone."""


def is_in_thread() -> bool:
    """True in the thread of a supervisor. Nothing waits there, for this thread or another one: two might wait for each
    other. Garbage collection may run anything of the program there."""
    return hasattr(_HERE, "is_one")


def check_may_wait() -> None:
    """Check that plain code may wait here.

    Raises:
        RuntimeError: This is the thread of a supervisor.
    """
    if is_in_thread():
        raise RuntimeError("a callback that runs in the thread of the supervisor would wait for itself")


class TrioThread:
    """A Trio loop in a thread, with the supervisor that `opening` opens, for as long as a caller wants."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[Supervisor]]) -> None:
        self._opening = opening
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="mcp-nursery", daemon=True)
        self._token: trio.lowlevel.TrioToken | None = None
        """The token of its loop, once that has begun."""
        self._nursery: trio.Nursery
        self._unfinished = set[ThreadRequest[Any]]()
        """The requests without an outcome."""
        self._opening_scope: Final = trio.CancelScope()
        self._stop = trio.Event()
        self._opened: Signal
        self._ended: list[Signal] = []
        self._has_returned = ThreadSignal()
        self._failure: BaseException | None = None
        self._end_wanted = False
        self._is_ending = False
        self.has_ended: bool = False
        """True once nothing of it is left."""
        self.supervisor: Supervisor | None = None
        """The supervisor, once it is open."""

    @property
    def opened(self) -> Supervisor:
        """The supervisor, after it was waited for.

        Raises:
            BaseException: The error that has ended its opening.
        """
        if self.supervisor is None:
            self.check()
            raise SupervisorClosed
        return self.supervisor

    @property
    def is_own(self) -> bool:
        """True unless this process is a child of the one that has started it."""
        return self._process == os.getpid()

    # -- in any thread --------------------------------------------------------------------------------------------

    def start(self, opened: Signal) -> None:
        """Start it. The signal is set when the supervisor is open, or everything has ended."""
        self._opened = opened
        _RUNNING.add(self)
        try:
            with interrupts_held():  # nobody could tell whether it has begun
                self._thread.start()
        except Exception:
            self._finish()
            raise

    def end(self, ended: Signal | None = None) -> None:
        """Have the thread end. The signal is set when it has."""
        if not self.is_own:
            return  # a child: the servers are its parent's
        if ended is not None:
            self._ended.append(ended)
        self._end_wanted = True  # for a loop that has not begun yet
        self.begin(self._end)
        if self.has_ended and ended is not None:
            ended.set()

    def join(self, seconds: float = -1) -> bool:
        """Wait for the thread, but not in the thread of a supervisor; false if it has not ended within `seconds`."""
        if not self.is_own or is_in_thread():
            return True
        has_returned = self._has_returned.wait(seconds)  # its own `join` takes it for ended once it was interrupted
        if has_returned and self._thread.ident is not None:
            self._thread.join()
        return has_returned

    def check(self, error: BaseException | None = None) -> None:
        """Raise the error that has ended the thread, if there was one, in place of the errors that callers were given
        for it. If the block is left with an error that no caller is given, the error that has ended the thread is
        logged."""
        if self._failure is None or error is self._failure:
            return
        if error is None:
            raise self._failure
        if isinstance(error, NurseryError):
            raise self._failure from error
        logger.error("a supervisor in a thread has failed", exc_info=self._failure)

    def post(self, request: ThreadRequest[Any]) -> None:
        """Run a request in a task of its own. Its outcome is `SupervisorClosed` if the block is being left, or it was
        left, or this process is a child of the one that entered it."""
        self._unfinished.add(request)
        if not self.begin(partial(self._start, request)) or self.has_ended:
            self._refuse(request)

    def cancel(self, request: ThreadRequest[Any]) -> None:
        """Cancel a request."""
        if not self.begin(partial(self._cancel, request)):
            self._refuse(request)

    def do(self, function: Callable[[], T]) -> T:
        """Run a plain function in the thread, between two steps of its tasks, and wait for it.

        Raises:
            SupervisorClosed: The function cannot be run, as for `post`.
        """
        if threading.current_thread() is self._thread:
            return function()

        async def run() -> T:
            return function()

        signal = ThreadSignal()
        request = ThreadRequest(run, signal)
        self.post(request)
        signal.wait()
        return request.unwrap()

    def begin(self, function: Callable[[], object]) -> bool:
        """Call a plain function in the thread, soon; false if that is no longer possible."""
        if not self.is_own or self._token is None:
            return False
        try:
            self._token.run_sync_soon(function)
        except (trio.RunFinishedError, OSError):  # the latter where Trio itself has failed
            return False
        return True

    def _refuse(self, request: ThreadRequest[Any]) -> None:
        self._unfinished.discard(request)
        error = SupervisorClosed()
        error.__cause__ = self._failure
        request.finish(error=error)

    # -- in its own thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        _HERE.is_one = True
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = error
        self._finish()

    def _finish(self) -> None:
        self.has_ended = True
        for request in list(self._unfinished):  # where Trio itself has failed
            self._refuse(request)
        _RUNNING.discard(self)
        for signal in (self._opened, *self._ended, self._has_returned):
            signal.set()

    async def _main(self) -> None:
        async with open_bare_nursery() as self._nursery:
            self._token = trio.lowlevel.current_trio_token()
            if self._end_wanted:
                self._end()
            try:
                with self._opening_scope:
                    async with self._opening() as self.supervisor:
                        self._opened.set()
                        await self._stop.wait()
            finally:
                self._is_ending = True
                self._nursery.cancel_scope.cancel()

    def _end(self) -> None:
        self._is_ending = True
        self._stop.set()
        if self.supervisor is None:
            self._opening_scope.cancel()

    def _start(self, request: ThreadRequest[Any]) -> None:
        if self._is_ending:
            self._refuse(request)
        elif not request.is_there:  # Ctrl-C may have come while it was on its way
            request.has_begun = True
            request.context.run(self._nursery.start_soon, self._do, request)

    async def _do(self, request: ThreadRequest[Any]) -> None:
        try:
            await request.run()
        finally:
            self._unfinished.discard(request)

    def _cancel(self, request: ThreadRequest[Any]) -> None:
        request.scope.cancel()
        if not request.has_begun:
            self._refuse(request)


_RUNNING: "Final[weakref.WeakSet[TrioThread]]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End all blocks that were never left: the interpreter would stop the threads, and leave their servers behind."""
    with interrupts_held():
        running, until = list(_RUNNING), time.monotonic() + AT_EXIT
        for thread in running:
            thread.end()
        for thread in running:
            thread.join(max(0, until - time.monotonic()))
