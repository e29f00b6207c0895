"""The processes of this machine: their identity, which tree they belong to, and signals that reach no other process."""

import math
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter

import trio
from trio.lowlevel import RunVar

from mcp_nursery.actors.records import evolve, field, frozen

from ..threads import LOOK_THREADS
from .inherited_marks import VARIABLE, read_tag, tag_of

_PROC = "/proc"
_KILL_SLACK = 1.0
"""Seconds in which a killed process has to end."""


@frozen
class ProcessId:
    """The identity of a process: its number may be reused, the pair is not."""

    pid: int
    started: int
    """Clock ticks after the machine's boot; 0 where there is no /proc."""
    in_group: bool = field(default=True, eq=False)
    """True if a signal to the leader's group reaches it."""


@frozen
class Stat:
    """The kernel's record of a process."""

    state: str
    group: int
    session: int
    started: int
    marker: str | None = None
    """The value of its marker variable. Not looked for if it has a tag."""
    tag: int | None = None
    outputs: frozenset[int] = frozenset()
    """The inodes of the pipes, if any, that are its standard output and standard error."""

    @property
    def alive(self) -> bool:
        """True if it runs: a zombie does not, and only its parent can remove it."""
        return self.state not in "ZX"


class Table:
    """The processes of the machine; the living ones can be found by mark, group and session."""

    def __init__(self, stats: Mapping[int, Stat]) -> None:
        self._stats = stats
        self._bearers: defaultdict[tuple[str, object], list[int]] = defaultdict(list)
        for pid, stat in stats.items():
            if stat.alive:
                self._bearers["group", stat.group].append(pid)
                self._bearers["session", stat.session].append(pid)
                self._bearers["marker", stat.marker].append(pid)
                self._bearers["tag", stat.tag].append(pid)
                for pipe in stat.outputs:
                    self._bearers["output", pipe].append(pid)

    def get(self, pid: int) -> Stat | None:
        """The process of this number, if any."""
        return self._stats.get(pid)

    def marked(self, marker: str) -> dict[int, Stat]:
        """The living processes with a mark of this tree."""
        return self._with(("marker", marker), ("tag", tag_of(marker)))

    def writers(self, pipes: Iterable[int]) -> dict[int, Stat]:
        """The living processes whose standard output or standard error is one of these pipes."""
        return self._with(*(("output", pipe) for pipe in pipes))

    def tree(self, leader: int) -> dict[int, Stat]:
        """The living processes of this leader: its group, its session, and those with its tag."""
        stat = self._stats.get(leader)
        # Where it could not be marked, it has the tag of this process, which its neighbours have too.
        tag = None if stat is None or stat.tag == read_tag(os.getpid()) else stat.tag
        return self.kin(leader) | ({} if tag is None else self._with(("tag", tag)))

    def kin(self, leader: int) -> dict[int, Stat]:
        """The living processes of this leader's group and of its session."""
        return self._with(("group", leader), ("session", leader))

    def _with(self, *signs: tuple[str, object]) -> dict[int, Stat]:
        return {pid: self._stats[pid] for sign in signs for pid in self._bearers.get(sign, ())}


def read_table(since: float) -> Table:
    """Every process of the machine, with the marks of those started `since`. Some 20 us a process."""
    with os.scandir(_PROC) as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    table: dict[int, Stat] = {}
    for pid in pids:
        stat = _read_stat(pid)
        if stat is not None:
            young = stat.alive and stat.started >= since
            table[pid] = _with_marks(pid, stat) if young else stat
    return Table(table)


def _with_marks(pid: int, stat: Stat) -> Stat:
    tag = read_tag(pid)
    return evolve(stat, tag=tag, marker=_read_marker(pid) if tag is None else None, outputs=_read_outputs(pid))


async def read_aside(since: float) -> Table:
    """`read_table` in a thread, abandoned when cancelled: reading another process's environment may block."""
    return await LOOK_THREADS.run(read_table, since, abandon_on_cancel=True)


async def look(since: int, after: int | None = None) -> Table:
    """The process table as it is at some time after the call, or, with `after`, a result of `looks_begun`, as it was at
    any time after that. It has the markers of all processes started `since`, in clock ticks after the machine's boot.

    One look serves all callers that asked before it began: many trees may be ended at once.
    """
    return await _looks().look(since, after)


def looks_begun() -> int:
    """The number of looks that have begun."""
    return _looks().begun


def _looks() -> "_Looks":
    try:
        return _LOOKS.get()
    except LookupError:
        looks = _Looks()
        _LOOKS.set(looks)
        return looks


class _Looks:
    """The looks of one run of Trio, numbered."""

    def __init__(self) -> None:
        self.begun = 0
        self._lock = trio.Lock()
        self._since = math.inf
        self._last = 0, Table({})
        """The latest finished look, and what it found."""

    async def look(self, since: int, after: int | None = None) -> Table:
        """Look at the processes now, unless a look that began late enough is under way: all that wait share one."""
        asked = self.begun if after is None else after
        self._since = min(self._since, since)
        async with self._lock:
            if self._last[0] <= asked:
                self.begun += 1
                read = partial(self._read, self.begun, self._since)
                await LOOK_THREADS.run(read, abandon_on_cancel=True)
            return self._last[1]

    def _read(self, number: int, since: float) -> None:
        """Read it, in a thread. The result counts even if its caller gave up: others may wait for it."""
        found = number, read_table(since)
        self._last = max(self._last, found, key=itemgetter(0))


_LOOKS: RunVar[_Looks] = RunVar("mcp_nursery_looks")


def survivors(leader: ProcessId, marker: str, table: Table, pipes: Iterable[int] = ()) -> Sequence[ProcessId]:
    """The living processes of the leader's group and session, and those with a mark of its tree, or one of these pipes
    as an output."""
    holder = table.get(leader.pid)
    is_there = holder is None or holder.started == leader.started
    found = table.marked(marker) | table.writers(pipes) | (table.kin(leader.pid) if is_there else {})
    return [
        ProcessId(pid, stat.started, in_group=is_there and stat.group == leader.pid)
        for pid, stat in found.items()
        if stat.started >= leader.started
    ]


async def memory_of(pid: int) -> int | None:
    """Bytes of memory that a process of ours and its descendants take, swapped out or not: those that several of them
    share count once. 0 if the process has gone; None if the bytes cannot be known, as where there is no /proc."""
    if sys.platform != "linux":
        return None
    table = await look(identify(pid).started)
    return await LOOK_THREADS.run(_sum_memory, table.tree(pid), abandon_on_cancel=True)


def _sum_memory(pids: Iterable[int]) -> int | None:
    sizes = [_read_memory(pid) for pid in pids if _exists(pid)]
    return None if sizes and not any(sizes) else sum(sizes)


def _read_memory(pid: int) -> int:
    try:
        with open(f"{_PROC}/{pid}/smaps_rollup", "rb", buffering=0) as file:
            lines = file.read(4096).splitlines()
    except OSError:  # it ended, is another user's, or this kernel does not say
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith((b"Pss:", b"SwapPss:")))


def now_in_ticks() -> int:
    """The time by the clock of `ProcessId.started`; 0 where there is no /proc."""
    if sys.platform != "linux":
        return 0
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 10**9


def identify(pid: int) -> ProcessId:
    """The process that has this number now, dead or alive, provided nobody has reaped it."""
    stat = _read_stat(pid)
    return ProcessId(pid, stat.started if stat else 0)


def is_alive(process: ProcessId) -> bool:
    """True if this very process still runs."""
    if not process.started:
        return _exists(process.pid)
    stat = _read_stat(process.pid)
    return stat is not None and stat.alive and stat.started == process.started


def signal_group(leader: ProcessId, number: int, *, reaped: bool) -> bool:
    """Signal the process group; False if it has no member that could get the signal. Signal 0 only checks."""
    if reaped and _exists(leader.pid):
        # The kernel does not reuse a number while a group has it: this is another process, and the group is gone.
        return False
    try:
        os.killpg(leader.pid, number)
    except (ProcessLookupError, PermissionError):  # gone, or (macOS) only zombies, or another user's by now
        return False
    return True


async def kill_group(leader: trio.Process) -> None:
    """Kill the group of a process of ours, and wait for its end: cancelled or not, but for a bounded time."""
    signal_group(ProcessId(leader.pid, 0), signal.SIGKILL, reaped=leader.returncode is not None)
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _KILL_SLACK):
        await leader.wait()


def signal_one(process: ProcessId, number: int) -> None:
    """Signal one process unless it is gone."""
    if not is_alive(process):
        return
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):  # it ended meanwhile, or runs as another user by now
        return


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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


def _read_outputs(pid: int) -> frozenset[int]:
    return frozenset(pipe for number in (1, 2) if (pipe := _read_pipe(pid, number)) is not None)


def _read_pipe(pid: int, number: int) -> int | None:
    try:
        target = os.readlink(f"{_PROC}/{pid}/fd/{number}")
    except OSError:  # it ended, is another user's, or has closed that
        return None
    return int(target[len("pipe:[") : -1]) if target.startswith("pipe:[") else None


def _read_marker(pid: int) -> str | None:
    try:
        with open(f"{_PROC}/{pid}/environ", "rb", buffering=0) as file:
            environment = file.readall()
    except OSError:  # it ended, or is another user's
        return None
    _, found, rest = (b"\0" + environment).partition(f"\0{VARIABLE}=".encode())
    value = rest.partition(b"\0")[0] if found else b""  # an empty one is nobody's mark
    return value.decode(errors="replace") if value else None
