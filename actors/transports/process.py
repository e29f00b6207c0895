"""A process tree with an owner: started in a session of its own, heard on stderr, ended to the last member."""

import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import cast

import trio
from attrs import evolve, field, frozen
from trio.lowlevel import RunVar

from .ledger import LEDGER, Ledger

logger = logging.getLogger(__name__)

MARKER = "MCP_NURSERY_INCARNATION"
"""The variable that every process of one tree inherits, so that those who left its session can be found."""

STDERR_KEPT = 64 << 10
"""Bytes of stderr that are remembered."""

CHUNK = 64 << 10
"""Bytes asked of a pipe at once: what a pipe holds by default."""

_PROC = "/proc"
_TAIL_LINES = 20
_KILL_SLACK = 0.5
"""Seconds that a killed tree gets to vanish."""
_POLL_FIRST, _POLL_MOST = 0.005, 0.05


@frozen
class ProcessId:
    """A process for certain: its number may be reused, the pair is not."""

    pid: int
    started: int
    """Clock ticks after the machine's boot; 0 where there is no /proc to tell."""
    in_group: bool = field(default=True, eq=False)
    """Whether a signal to the leader's group reaches it."""


@frozen
class Stat:
    """What the kernel tells of a process."""

    state: str
    group: int
    session: int
    started: int
    marker: str | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs: a zombie does not, and only its parent can remove it."""
        return self.state not in "ZX"


Table = Mapping[int, Stat]
"""Processes by number."""


class ProcessTree:
    """A process and all that descend from it. Whoever starts it runs `pump_stderr`, then calls `end`."""

    def __init__(self, process: trio.Process, marker: str, *, ledger: Ledger, secrets: Sequence[str]) -> None:
        self._process = process
        self._leader = identify(process.pid)
        self._ledger = ledger
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._ledger.started(marker, self._leader)
        self._stderr = cast("trio.lowlevel.FdStream", process.stderr)
        self._kept = bytearray()
        self.marker = marker
        """The value of its marker variable."""
        self.stdin = cast("trio.lowlevel.FdStream", process.stdin)
        self.stdout = cast("trio.lowlevel.FdStream", process.stdout)
        self.stderr_ended = trio.Event()
        """Set once nobody can write to stderr any more."""

    @property
    def pid(self) -> int:
        """Number of the first process, of its group and of its session."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The first process's exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    @property
    def stderr_tail(self) -> str:
        """The last lines written to stderr so far, also those nobody has pumped yet."""
        self._sweep_stderr()
        text = self._kept.decode(errors="replace")
        for secret in self._secrets:
            text = text.replace(secret, "[REDACTED]")
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    async def wait(self) -> None:
        """Wait for the first process's exit."""
        await self._process.wait()

    async def pump_stderr(self) -> None:
        """Take all that is written to stderr, keeping the last of it, so that no writer is ever held up."""
        await _pump(self._stderr, self._keep)
        self.stderr_ended.set()

    async def end(self, grace: float) -> None:
        """End every process of the tree and close all pipes. Takes at most 2 * `grace` + 0.5 s, cancelled or not.

        Stdin is closed, and the first process has `grace` seconds to exit; what is left then gets SIGTERM, and after
        `grace` seconds more SIGKILL. Descendants of a process that has exited get SIGTERM at once.
        """
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * grace + _KILL_SLACK) as bound:
            try:
                await self._wind_down(grace)
            finally:
                for pipe in (self.stdin, self.stdout, self._stderr):
                    pipe.close()
        if bound.cancelled_caught:
            logger.warning("the process tree of %d outlived SIGKILL and is left behind", self.pid)
        else:
            self._ledger.ended(self.marker)

    async def _wind_down(self, grace: float) -> None:
        self.stdin.close()
        async with trio.open_nursery() as nursery:
            # A process blocked on a full pipe would not see that its input ended.
            nursery.start_soon(_pump, self.stdout, _drop)
            nursery.start_soon(self.pump_stderr)
            with trio.move_on_after(grace):
                await self._process.wait()
            with trio.move_on_after(grace) as polite:
                await self._drive_out(signal.SIGTERM)
            if polite.cancelled_caught:
                self._signal_group(signal.SIGKILL)  # does not depend on a look at the process table
                await self._drive_out(signal.SIGKILL)
            await self._process.wait()
            nursery.cancel_scope.cancel()

    async def _drive_out(self, number: signal.Signals) -> None:
        """Signal the tree until a look at the process table finds nobody of it."""
        # Each process gets one signal: to many servers a second SIGTERM means that there is no time to clean up. Who
        # is forked after the group got its signal is not among those seen before, and gets its own in the next round.
        while left := await self._survivors():
            self._signal_group(number)
            for process in left:
                if not process.in_group:
                    signal_one(process, number)
            await self._vanished(left)

    async def _vanished(self, processes: Sequence[ProcessId]) -> None:
        pause = _POLL_FIRST
        while any(map(self._lives, processes)):
            await trio.sleep(pause)
            pause = min(2 * pause, _POLL_MOST)

    def _lives(self, process: ProcessId) -> bool:
        if process == self._leader and not process.started:
            return self._signal_group(0)
        return is_alive(process)

    def _signal_group(self, number: int) -> bool:
        return signal_group(self._leader, number, reaped=self.exit_code is not None)

    async def _survivors(self) -> Sequence[ProcessId]:
        if self._leader.started:
            table = await _looks().look(self._leader.started)
            return survivors(self._leader, self.marker, table)
        return [self._leader] if self._signal_group(0) else []

    def _keep(self, data: bytes) -> None:
        self._kept += data
        del self._kept[:-STDERR_KEPT]

    def _sweep_stderr(self) -> None:
        for _ in range(STDERR_KEPT // CHUNK + 1):
            data = read_some(self._stderr.fileno())
            if not data:
                return
            self._keep(data)


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
            env={**env, MARKER: marker},
            cwd=cwd,
            start_new_session=True,
        )
    except BaseException:
        ledger.ended(marker)
        raise
    return ProcessTree(process, marker, ledger=ledger, secrets=secrets)


def read_some(fd: int, size: int = CHUNK) -> bytes | None:
    """Read without waiting: None if nothing is there now, b"" if nothing will ever be."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return None
    except OSError:  # closed by us, or the kernel gave it up
        return b""


async def _pump(stream: trio.lowlevel.FdStream, take: Callable[[bytes], None]) -> None:
    while True:
        data = read_some(stream.fileno())
        if data == b"":
            return
        if data is None:
            await trio.lowlevel.wait_readable(stream.fileno())
        else:
            take(data)
            await trio.lowlevel.checkpoint()


def _drop(data: bytes) -> None:
    del data


def identify(pid: int) -> ProcessId:
    """The process that has this number now, dead or alive, provided nobody has reaped it."""
    stat = _read_stat(pid)
    return ProcessId(pid, stat.started if stat else 0)


def is_alive(process: ProcessId) -> bool:
    """Whether this very process still runs."""
    if not process.started:
        return _exists(process.pid)
    stat = _read_stat(process.pid)
    return stat is not None and stat.alive and stat.started == process.started


def signal_group(leader: ProcessId, number: int, *, reaped: bool) -> bool:
    """Signal the process group; False if it has no member that could get the signal. Signal 0 only asks."""
    if reaped and _exists(leader.pid):
        # The kernel keeps a number out of use while a group bears it: this is somebody else's process.
        return False
    try:
        os.killpg(leader.pid, number)
    except (ProcessLookupError, PermissionError):  # gone, or (macOS) only zombies, or another user's by now
        return False
    return True


def signal_one(process: ProcessId, number: int) -> None:
    """Signal one process unless it is gone."""
    if not is_alive(process):
        return
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):  # it ended meanwhile, or runs as another user by now
        return


def survivors(leader: ProcessId, marker: str, table: Table) -> list[ProcessId]:
    """All that live of the leader's group and session, and all that carry the marker."""
    holder = table.get(leader.pid)
    ours = 0 if holder is not None and holder.started != leader.started else leader.pid
    return [
        ProcessId(pid, stat.started, in_group=stat.group == ours)
        for pid, stat in table.items()
        if stat.alive
        and stat.started >= leader.started
        and (stat.marker == marker or (ours and ours in (stat.group, stat.session)))
    ]


class _Looks:
    """Looks at the process table, each for all who asked before it began: many trees may be ended at once."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._begun = 0
        self._read = 0
        self._since = math.inf
        self._table: Table = {}

    async def look(self, since: int) -> Table:
        """The process table as it is some time after the call, with the markers of all processes started `since`."""
        asked = self._begun
        self._since = min(self._since, since)
        async with self._lock:
            if self._read <= asked:
                self._begun = number = self._begun + 1
                # In a thread, and abandoned at a deadline: reading another process's environment may block.
                self._table = await trio.to_thread.run_sync(read_table, self._since, abandon_on_cancel=True)
                self._read = number
            return self._table


_LOOKS: RunVar[_Looks] = RunVar("mcp_nursery_looks")


def _looks() -> _Looks:
    try:
        return _LOOKS.get()
    except LookupError:
        _LOOKS.set(_Looks())
        return _LOOKS.get()


def read_table(since: float) -> Table:
    """Every process of the machine, with the markers of those started `since`. Some 20 us a process."""
    with os.scandir(_PROC) as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    table: dict[int, Stat] = {}
    for pid in pids:
        stat = _read_stat(pid)
        if stat is not None:
            young = stat.alive and stat.started >= since
            table[pid] = evolve(stat, marker=_read_marker(pid)) if young else stat
    return table


def _read_stat(pid: int) -> Stat | None:
    if sys.platform != "linux":
        return None
    try:
        with open(f"{_PROC}/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(4096)
    except OSError:  # it ended, or /proc hides other users' processes (hidepid)
        return None
    # proc(5): field 2, the name, stands in parentheses and may hold any byte.
    fields = text[text.rfind(b")") + 1 :].split()
    return Stat(fields[0].decode("ascii"), int(fields[2]), int(fields[3]), int(fields[19]))


def _read_marker(pid: int) -> str | None:
    try:
        with open(f"{_PROC}/{pid}/environ", "rb", buffering=0) as file:
            environment = file.readall()
    except OSError:  # it ended, or is another user's
        return None
    _, found, rest = (b"\0" + environment).partition(f"\0{MARKER}=".encode())
    return rest.partition(b"\0")[0].decode(errors="replace") if found else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
