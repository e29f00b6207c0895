"""A supervisor in a thread of its own, and the requests that cross to it."""

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import trio

from mcp_nursery.actors.errors import NurseryError, SupervisorClosed

from ..supervisor import Supervisor
from .deliveries import Deliveries
from .interrupts import interrupts_held
from .outcome import ThreadOutcome
from .signals import Signal, Signals, ThreadSignal
from .workers import ThreadRequest, Workers, open_workers

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
        self._watchers: list[Signal | ThreadSignal] = []
        self._failure: BaseException | None = None
        self._has_begun = threading.Event()
        self._has_returned = threading.Event()
        self._stop = trio.Event()
        self._deliveries: Deliveries | None = None
        """The functions to run in the thread, once it has begun."""
        self.signals: Final = Signals()
        """The maker of signals for its callers."""
        self._opening_scope: Final = trio.CancelScope()
        self._workers: Workers
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

    def start(self, watcher: Signal | ThreadSignal) -> None:
        """Start it. `watcher` is woken when the supervisor is open, and when everything has ended."""
        self._watchers.append(watcher)
        _RUNNING.add(self)
        self._thread.start()
        self._has_begun.wait()

    def end(self, watcher: Signal | ThreadSignal | None = None) -> None:
        """Have the thread end. `watcher` is woken when it has."""
        if not self.is_own:
            return  # a child: the servers are its parent's
        self._end_wanted = True  # for a loop that has not begun yet
        if self._thread.ident is None:
            self.has_ended = True  # it could not be started
        if watcher is not None:
            self._watchers.append(watcher)
        if not self.begin(self._end) and watcher is not None:
            watcher.set()

    def join(self, seconds: float | None = None) -> bool:
        """Wait for the thread, but not in the thread of a supervisor; false if it has not ended within `seconds`."""
        if not self.is_own or self._thread.ident is None or is_in_thread():
            return True
        return self._has_returned.wait(seconds)  # its own `join` takes it for ended once it was interrupted

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
        """Run a request. Its outcome is `SupervisorClosed` if the block is being left, or it was left, or this process
        is a child of the one that entered it."""
        if not self.begin(partial(self._start, request)):
            self._refuse(request)

    def cancel(self, request: ThreadRequest[Any]) -> None:
        """Cancel a request."""
        if not self.begin(request.cancel):
            self._refuse(request)

    def _refuse(self, request: ThreadRequest[Any]) -> None:
        error = SupervisorClosed()
        error.__cause__ = self._failure
        request.finish(ThreadOutcome(error=error))

    def do(self, function: Callable[[], T]) -> T:
        """Run a plain function in the thread, between two steps of its tasks, and wait for it.

        Raises:
            SupervisorClosed: The function cannot be run, as for `post`.
        """
        if threading.current_thread() is self._thread:
            return function()
        ended, found = ThreadSignal(), list[ThreadOutcome[T]]()

        def run() -> None:
            try:
                if self.has_ended:  # whatever asks Trio would fail
                    raise SupervisorClosed from self._failure
                found.append(ThreadOutcome(function()))
            except BaseException as error:
                found.append(ThreadOutcome(error=error))
            ended.set()

        if not self.begin(run):
            raise SupervisorClosed from self._failure
        ended.wait()
        return found[0].unwrap()

    def begin(self, function: Callable[[], object]) -> bool:
        """Run a plain function in the thread, soon; false if that is no longer possible."""
        if not self.is_own or self._deliveries is None or self.has_ended:
            return False
        with suppress(trio.RunFinishedError):  # then it is about to end
            self._deliveries.add(function)
        if self.has_ended:  # now, perhaps after all that waited was run
            self._deliveries.run()
        return True

    # -- in its own thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        _HERE.is_one = True
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = error
        self.has_ended = True
        if self._deliveries is not None:
            self._deliveries.run()  # requests that come from here on are refused, those that wait are ended
        self._has_begun.set()
        _RUNNING.discard(self)
        self._wake()
        self._has_returned.set()

    def _wake(self) -> None:
        for watcher in list(self._watchers):
            watcher.set()

    async def _main(self) -> None:
        async with open_workers() as self._workers:
            self._deliveries = self._workers.deliveries
            self._has_begun.set()
            if self._end_wanted:
                self._end()
            try:
                with self._opening_scope:
                    async with self._opening() as self.supervisor:
                        self._wake()
                        await self._stop.wait()
                        self._is_ending = True
            finally:
                self._is_ending = True

    def _end(self) -> None:
        self._stop.set()
        if self.supervisor is None:
            self._opening_scope.cancel()

    def _start(self, request: ThreadRequest[Any]) -> None:
        if self._is_ending or self.has_ended:
            self._refuse(request)
        else:
            self._workers.begin(request)


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
