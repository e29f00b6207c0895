"""A process tree with an owner: started in a session of its own, heard on stderr, ended to the last member."""

import logging
import signal
import subprocess
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Final, cast

import trio

from .leaving import LEAVING
from .ledger import LEDGER, Ledger
from .pipes import Tail, pump
from .process_mark import VARIABLE, mark
from .process_table import ProcessId, identify, is_alive, look, signal_group, signal_one, survivors

logger: Final = logging.getLogger(__name__)

_KILL_SLACK = 0.5
"""Seconds that a killed tree gets to vanish."""
_POLL_FIRST, _POLL_MOST = 0.005, 0.05


class ProcessTree:
    """A process and all that descend from it. Whoever starts it runs `stderr.pump`, then calls `end`."""

    def __init__(self, process: trio.Process, marker: str, *, ledger: Ledger, secrets: Sequence[str]) -> None:
        self._process = process
        self._leader = identify(process.pid)
        self._ledger = ledger
        self._leaving = LEAVING.get()
        self._ledger.started(marker, self._leader)
        self._left: Sequence[ProcessId] | None = None
        """Who was there at the last look, and got a signal; None before the first."""
        self.marker = marker
        """The value of its marker variable."""
        self.stdin: Final = cast("trio.lowlevel.FdStream", process.stdin)
        self.stdout: Final = cast("trio.lowlevel.FdStream", process.stdout)
        self.stderr: Final = Tail(cast("trio.lowlevel.FdStream", process.stderr), secrets)

    @property
    def pid(self) -> int:
        """Number of the first process, of its group and of its session."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The first process's exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    async def wait(self) -> None:
        """Wait for the first process's exit."""
        await self._process.wait()

    async def end(self, grace: float) -> None:
        """End every process of the tree and close all pipes. Takes at most 2 * `grace` + 0.5 s, cancelled or not.

        Stdin is closed, and the first process has `grace` seconds to exit; what is left then gets SIGTERM, and after
        `grace` seconds more SIGKILL. Descendants of a process that has exited get SIGTERM at once. Where a host that
        leaves ends many at once, these times count from when it left, and are no less than half as long.
        """
        gone = False
        # Each step has a time of its own, so that a host that was stopped in one of them (Ctrl-Z) takes all the others.
        with trio.CancelScope(shield=True):  # bounded by the steps
            try:
                gone = await self._wind_down(grace)
            finally:
                for pipe in (self.stdin, self.stdout, self.stderr):
                    pipe.close()
        if gone:
            self._ledger.ended(self.marker)
        else:
            logger.warning("the process tree of %d outlived SIGKILL and is left behind", self.pid)

    async def _wind_down(self, grace: float) -> bool:
        self.stdin.close()
        async with trio.open_nursery() as nursery:
            # A process blocked on a full pipe would not see that its input ended.
            nursery.start_soon(pump, self.stdout, _drop)
            nursery.start_soon(self.stderr.pump)
            gone = await self._ended_in_steps(grace)
            nursery.cancel_scope.cancel()
        return gone

    async def _ended_in_steps(self, grace: float) -> bool:
        began = trio.current_time()
        with trio.move_on_at(self._leaving.step_end(began, 1, grace)):
            await self._process.wait()
        with trio.move_on_at(self._leaving.step_end(began, 2, grace)):
            await self._drive_out(signal.SIGTERM)
            return True
        self._signal_group(signal.SIGKILL)  # does not depend on a look at the process table
        with trio.move_on_after(_KILL_SLACK):
            await self._drive_out(signal.SIGKILL)
            return True
        return self._nobody_left()  # where many are ended at once, the last look may come late

    async def _drive_out(self, number: signal.Signals) -> None:
        """Signal the tree until a look at the process table finds nobody of it, and the first process is reaped."""
        # Each process gets one signal: to many servers a second SIGTERM means that there is no time to clean up. Who
        # is forked after the group got its signal is not among those seen before, and gets its own in the next round.
        while left := await self._survivors():
            self._left = left
            self._signal_group(number)
            for process in left:
                if not process.in_group:
                    signal_one(process, number)
            await self._vanished(left)
        self._left = ()
        await self._process.wait()

    async def _vanished(self, processes: Sequence[ProcessId]) -> None:
        if self._leader in processes and self._leader.started:
            await self._process.wait()  # most trees are one process: no need to look for its end again and again
        pause = _POLL_FIRST
        while any(map(self._lives, processes)):
            await trio.sleep(pause)
            pause = min(2 * pause, _POLL_MOST)

    def _lives(self, process: ProcessId) -> bool:
        if process == self._leader and not process.started:
            return self._signal_group(0)
        return is_alive(process)

    def _nobody_left(self) -> bool:
        """Whether all that the last look found are gone by now. A zombie is; this reaps the first process."""
        return self.exit_code is not None and self._left is not None and not any(map(self._lives, self._left))

    def _signal_group(self, number: int) -> bool:
        return signal_group(self._leader, number, reaped=self.exit_code is not None)

    async def _survivors(self) -> Sequence[ProcessId]:
        if self._leader.started:
            table = await look(self._leader.started)
            return survivors(self._leader, self.marker, table)
        return [self._leader] if self._signal_group(0) else []


async def start_process(
    command: str,
    args: Sequence[str],
    *,
    executable: str,
    env: Mapping[str, str],
    cwd: str | None,
    secrets: Sequence[str] = (),
) -> ProcessTree:
    """Start a process in a session of its own, with pipes on all three streams.

    Args:
        command: What the process sees as its own name.
        args: Its arguments.
        executable: Path of the program.
        env: Its whole environment, but for the marker.
        cwd: Its working directory; the caller's if None.
        secrets: Values that are taken out of what is remembered of its stderr.

    Raises:
        OSError: It could not be started.
        ValueError: A string that no process can be given.
    """
    ledger = LEDGER.get()
    marker = token_hex(16)
    await ledger.starting(marker)  # before: whatever becomes of this host, its mark tells whose the process is
    try:
        process = await trio.lowlevel.open_process(
            [command, *args],
            executable=executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**env, VARIABLE: marker},
            cwd=cwd,
            start_new_session=True,
        )
    except BaseException:
        ledger.ended(marker)
        raise
    mark(process.pid, marker)
    return ProcessTree(process, marker, ledger=ledger, secrets=secrets)


def _drop(data: bytes) -> None:
    del data
