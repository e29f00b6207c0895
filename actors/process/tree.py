"""A process tree with an owner: started in a session of its own, read on stderr, ended to the last process.

Theory of operation
===================

A server is seldom one process. `npx` starts a shell that starts node, `uv` starts Python, a browser server starts a
browser, and any of them may leave its parent. The promise is that none of them outlives its connection, and that no
other process is ever signalled. Both need an answer to one question: which processes belong to this tree?

Identity. A process number alone is no identity, since the kernel reuses it. A `ProcessId` is the number with the start
time, and every signal to a single process goes to that pair (`table.signal_one`). Only the first process, which we reap
ourselves, can be addressed by its number: until it is reaped nobody else can get it.

Membership. The first process leads a session and a group of its own. Descendants that stay in the group get the
group's signals. Others have called `setsid` or were started by a daemon; these are found in `/proc` by inherited
marks: the session, the marker variable of the environment, the marker limit (`inherited_marks`), or the pipes of
the first process as standard output and standard error: those are of no other tree. Where there is no `/proc`, on
macOS, the group is all that can be reached.

The end is a ladder of three steps, each with a time limit of its own, so that a host that was suspended in one step
still takes the others:

1. Stdin is closed, and the first process has `grace` seconds to exit, as the protocol asks. Its output is read on and
   dropped meanwhile: a process that is blocked on a full pipe would not see the end of its input.
2. The group gets SIGTERM, and so does each descendant outside of it, once: to many programs a second SIGTERM means
   that there is no time to clean up. Processes that were forked after that get theirs when the earlier ones are gone.
3. After `grace` seconds more all get SIGKILL. The group is signalled before the process table is read, since that may
   come late where a thousand trees end at the same moment; those outside of it are signalled by the latest look.

The end is shielded from cancellation, since an owner that is cancelled must not leave processes behind. The steps
bound the shield: 2 * `grace` + 0.5 s, and 2.5 s more if the machine is too busy for a look at its processes.

If the host itself is killed, nobody runs these steps. So each tree is recorded in a `Ledger` before it is started, and
the record is removed when no process of the tree is left. The next host finds the record and ends the tree (`orphans`).
The record is written first because a tree without a record could never be found, while a record without a tree does no
harm.
"""

import logging
import math
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from secrets import token_hex
from typing import Final, cast

import trio

from mcp_nursery.actors.records import define

from ..threads import START_THREADS, open_process
from .command import ShownCommand, child_environment, find_program, start_failed
from .inherited_marks import VARIABLE, mark
from .orphans import LEDGER, Ledger
from .stderr_tail import Tail, pump
from .table import ProcessId, identify, is_alive, look, looks_begun, now_in_ticks, signal_group, signal_one, survivors

logger: Final = logging.getLogger(__name__)

_KILL_SLACK = 0.5
"""Seconds that a killed tree gets to vanish after a look at the process table."""
_LAST_LOOKS = 2.0, 0.5
"""Seconds for each of two tries of this look: the host's loop may have stood still during the first."""
_POLL_FIRST, _POLL_MOST = 0.005, 0.05
_FORK_TIME = 0.1
"""Seconds after which a fork that was under way at the first marking is over: it takes less than 1 ms of CPU."""


@define(eq=False)
class Leaving:
    """The moment at which a host began to end all its servers: written by the host, read by the trees.

    A host cannot begin to end a thousand trees at the same moment. If each tree counted its grace periods from its own
    turn, the last would end seconds late.
    """

    since: float = math.inf
    """The time at which the host began to close, on Trio's clock; infinite before that."""

    def step_end(self, began: float, step: int, grace: float) -> float:
        """The end of a step, from 1, of a close that began at `began`: `grace` seconds after the step began, but no
        later than without a queue. Half of `grace` is given to each step, however long the queue was."""
        now = trio.current_time()
        return min(now + grace, max(min(began, self.since) + step * grace, now + grace / 2))


LEAVING: ContextVar[Leaving] = ContextVar("mcp_nursery_leaving", default=Leaving())  # noqa: B039 - nobody writes to it
"""For the processes that the current task and its children start."""


class ProcessTree:
    """A process and all its descendants. Its owner runs `stderr.pump` and `mark_late_forks`, then calls `end`."""

    def __init__(self, process: trio.Process, marker: str, *, ledger: Ledger, secrets: Sequence[str]) -> None:
        self._process = process
        self._leader = identify(process.pid)
        self._ledger = ledger
        self._leaving = LEAVING.get()
        self._ledger.started(marker, self._leader)
        self._left: Sequence[ProcessId] | None = None
        """The processes that the last look found; None before the first."""
        self.marker = marker
        """The value of its marker variable."""
        self.stdin: Final = cast("trio.lowlevel.FdStream", process.stdin)
        self.stdout: Final = cast("trio.lowlevel.FdStream", process.stdout)
        stderr = cast("trio.lowlevel.FdStream", process.stderr)
        self.stderr: Final = Tail(stderr, secrets)
        self._pipes: Final = [os.fstat(pipe.fileno()).st_ino for pipe in (self.stdout, stderr)]

    @property
    def pid(self) -> int:
        """Number of the first process, of its group and of its session."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The first process's exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    async def wait(self) -> None:
        """Wait for the first process's exit; no checkpoint if that is known already."""
        if self.exit_code is None:
            await self._process.wait()

    async def mark_late_forks(self) -> None:
        """Mark the children whose fork was under way when the first process was marked; returns 0.1 s later."""
        await trio.sleep(_FORK_TIME)
        self._mark()

    def _mark(self) -> None:
        if self.exit_code is None:
            mark(self.pid, self.marker)

    async def end(self, grace: float) -> None:
        """End every process of the tree and close all pipes. Takes at most 2 * `grace` + 0.5 s, cancelled or not, and
        up to 2.5 s more where this host or machine is too busy for a look at the processes.

        Stdin is closed, and the first process has `grace` seconds to exit; what is left then gets SIGTERM, and after
        `grace` seconds more SIGKILL. Descendants of a process that has exited get SIGTERM at once. Where a closing host
        ends many trees, these times count from when it began to close, and are at least half as long.
        """
        gone: bool | None = None
        # Each step has a time of its own, so that a host that was stopped in one of them (Ctrl-Z) takes all the others.
        with trio.CancelScope(shield=True):  # bounded by the steps
            try:
                gone = await self._wind_down(grace)
            finally:
                for pipe in (self.stdin, self.stdout, self.stderr):
                    pipe.close()
        if gone:
            self._ledger.ended(self.marker)
        elif gone is None:
            logger.warning("could not find out in time whether the whole process tree of %d is gone", self.pid)
        else:
            logger.warning("the process tree of %d outlived SIGKILL and is left behind", self.pid)

    async def _wind_down(self, grace: float) -> bool | None:
        self._mark()
        self.stdin.close()
        async with trio.open_nursery() as nursery:
            # A process blocked on a full pipe would not see that its input ended.
            nursery.start_soon(pump, self.stdout, _drop)
            nursery.start_soon(self.stderr.pump)
            gone = await self._ended_in_steps(grace)
            nursery.cancel_scope.cancel()
        return gone

    async def _ended_in_steps(self, grace: float) -> bool | None:
        began = trio.current_time()
        with trio.move_on_at(self._leaving.step_end(began, 1, grace)):
            await self.wait()
        with trio.move_on_at(self._leaving.step_end(began, 2, grace)):
            signalled_at = self._terminate_group()
            await self._drive_out(signal.SIGTERM, await self._survivors(), signalled_at)
            return True
        return await self._kill()

    def _terminate_group(self) -> int | None:
        """Signal the group before its members are looked up: where many trees end at once, a look may come late.

        Returns:
            The time, in clock ticks; None if only a look can show whose the group is, the first process being reaped.
        """
        if self.exit_code is not None:
            return None
        signalled_at = now_in_ticks()
        self._signal_group(signal.SIGTERM)
        return signalled_at

    async def _kill(self) -> bool | None:
        """Kill what is left. Returns True if none is left; None if that could not be looked up."""
        looks = looks_begun()
        self._signal_group(signal.SIGKILL)  # needs no look at the process table, nor does the loop
        for process in self._left or ():
            if not process.in_group:
                signal_one(process, signal.SIGKILL)
        for patience in _LAST_LOOKS:
            looked = False
            with trio.move_on_after(patience) as slack:
                left, looked = await self._survivors(looks), True
                slack.deadline = trio.current_time() + _KILL_SLACK
                if all(process.in_group for process in left):  # all were killed before the look: no more are forked
                    await self._vanished(left)
                    await self.wait()
                else:
                    await self._drive_out(signal.SIGKILL, left)
                return True
            if looked:
                break
        return self._nobody_left()

    async def _drive_out(
        self, number: signal.Signals, left: Sequence[ProcessId], signalled_at: int | None = None
    ) -> None:
        """Signal those that are left until a look at the process table finds none, and the first process is reaped. The
        group got the signal at `signalled_at`, in clock ticks; None if it did not."""
        # Each process gets one signal: to many servers a second SIGTERM means that there is no time to clean up. One
        # forked after that, perhaps to clean up, gets its own in the next round, when those before it are gone.
        while left:
            here = left if signalled_at is None else [each for each in left if self._was_there(each, signalled_at)]
            for process in here:
                if signalled_at is None or not process.in_group:
                    self._signal(process, number)
            await self._vanished(here)
            left, signalled_at = await self._survivors(), None
        await self.wait()

    def _was_there(self, process: ProcessId, at: int) -> bool:
        return process == self._leader or process.started < at

    async def _vanished(self, processes: Sequence[ProcessId]) -> None:
        if self._leader in processes and self._leader.started:
            await self.wait()  # most trees are one process: no need to look for its end again and again
        pause = _POLL_FIRST
        while any(map(self._lives, processes)):
            await trio.sleep(pause)
            pause = min(2 * pause, _POLL_MOST)

    def _lives(self, process: ProcessId) -> bool:
        if process == self._leader and not process.started:
            return self._signal_group(0)
        return is_alive(process)

    def _nobody_left(self) -> bool | None:
        """True if all that the last look found are gone. A zombie counts as gone; this reaps the first process."""
        if self._left is None:
            return None
        return self.exit_code is not None and not any(map(self._lives, self._left))

    def _signal(self, process: ProcessId, number: int) -> None:
        if process.started:
            signal_one(process, number)
        else:
            self._signal_group(number)

    def _signal_group(self, number: int) -> bool:
        return signal_group(self._leader, number, reaped=self.exit_code is not None)

    async def _survivors(self, after: int | None = None) -> Sequence[ProcessId]:
        """The processes left, by a look that began after `after` looks; after this call if None."""
        if self._leader.started:
            table = await look(self._leader.started, after)
            self._left = survivors(self._leader, self.marker, table, self._pipes)
        else:
            self._left = [self._leader] if self._signal_group(0) else []
        return self._left


async def start_process(
    command: str, args: Sequence[str], *, env: Mapping[str, str], cwd: str | None, shown: ShownCommand | None = None
) -> ProcessTree:
    """Start a program in a session of its own, with pipes on all three streams. The program sees `command` as its own
    name: see `find_program`. It inherits a few variables, to which `env` is added. Errors show `shown`; None: command
    and cwd themselves.

    Raises:
        StartFailed: There is no such program, or it could not be started.
    """
    shown = shown or ShownCommand(command, cwd)
    ledger, marker = LEDGER.get(), token_hex(16)
    whole = {**child_environment(env), VARIABLE: marker}
    try:
        program = await START_THREADS.run(find_program, command, whole, cwd, shown)
        await ledger.starting(marker)  # first: whatever becomes of this host, its mark shows whose the process is
        try:
            process = await open_process(
                [command, *args],
                begun=partial(mark, marker=marker),
                executable=program,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=whole,
                cwd=cwd,
                start_new_session=True,
            )
        except BaseException:
            ledger.ended(marker)
            raise
    except (OSError, ValueError, RuntimeError) as error:
        raise start_failed(shown, error, cwd) from error
    return ProcessTree(process, marker, ledger=ledger, secrets=shown.secrets)


def _drop(data: bytes) -> None:
    del data
