"""Processes that a host left behind when it was killed: found by what it had written down, and ended. Linux only."""

import os
import signal
from collections.abc import Iterable, Sequence
from functools import cache

import trio
from attrs import frozen

from .process import MARKER, ProcessId, Table, identify, is_alive, read_table, signal_one, survivors

_PATIENCE = 2.0
"""Seconds between SIGTERM and SIGKILL."""

_LAST = 1.0
"""Seconds that those who were killed get to vanish."""

_POLL = 0.05


@frozen
class Host:
    """A process that starts servers, among all of all time."""

    machine: str
    """The machine's boot and its space of process numbers: elsewhere, numbers mean other processes."""
    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether it runs. Only for one of this machine."""
        return is_alive(ProcessId(self.pid, self.started))


@frozen
class Orphan:
    """A process tree whose host may be gone."""

    marker: str
    """The value of its marker variable."""
    since: int
    """When its host was started, in clock ticks after the machine's boot: before any process of the tree."""
    leader: ProcessId | None
    """Its first process; None if the host did not live to write it down."""


def this_host() -> Host | None:
    """This process; None where the system does not tell processes for certain."""
    machine, me = this_machine(), identify(os.getpid())
    return Host(machine, me.pid, me.started) if machine and me.started else None


@cache
def this_machine() -> str:
    """The machine since it was booted, and the space of process numbers; empty where that cannot be told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def own_marker() -> str | None:
    """The marker that this process inherited from a host that started it: a tree of which we are a part."""
    return os.environ.get(MARKER)


async def end_orphans(orphans: Sequence[Orphan]) -> bool:
    """End all that is left of these trees: SIGTERM, after 2 s SIGKILL, 1 s more to vanish; whether nobody is left.

    When cancelled, who is known to be left is killed at once.
    """
    told: set[ProcessId] = set()
    try:
        with trio.move_on_after(_PATIENCE):
            await _drive_out(orphans, signal.SIGTERM, told)
            return True
    except trio.Cancelled:
        _signal(told, signal.SIGKILL)
        raise
    with trio.move_on_after(_LAST):
        await _drive_out(orphans, signal.SIGKILL, set())
        return True
    return False


async def _drive_out(orphans: Sequence[Orphan], number: signal.Signals, told: set[ProcessId]) -> None:
    """Signal each of them once, and whoever they start meanwhile, until a look at the process table finds nobody."""
    since = min((orphan.since for orphan in orphans), default=0)
    while left := {process for orphan in orphans for process in left_of(orphan, await _table(since))}:
        _signal(left - told, number)
        told |= left
        await trio.sleep(_POLL)


async def _table(since: int) -> Table:
    # In a thread, and abandoned at a deadline: reading another process's environment may block.
    return await trio.to_thread.run_sync(read_table, since, abandon_on_cancel=True)


def left_of(orphan: Orphan, table: Table) -> list[ProcessId]:
    """Who is left of a tree: those who carry its marker and, as long as its leader is there, its group and session.

    Once the leader is gone, so that its number may be anybody's, only the marker proves who belongs to it.
    """
    leader = orphan.leader
    holder = None if leader is None else table.get(leader.pid)
    if leader is not None and holder is not None and holder.started == leader.started:
        return survivors(leader, orphan.marker, table)
    return [ProcessId(pid, stat.started) for pid, stat in table.items() if stat.alive and stat.marker == orphan.marker]


def _signal(processes: Iterable[ProcessId], number: int) -> None:
    for process in processes:
        signal_one(process, number)
