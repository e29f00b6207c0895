"""Processes that a host left behind when it was killed: found in its record, and ended. Linux only. Which hosts are
dead is known to the store (`StoreWorker`).

Every process tree is recorded when it is started, and removed from the record when no process of it is left.
"""

import os
import signal
from collections.abc import Sequence
from contextvars import ContextVar
from functools import cache
from typing import Protocol

import trio

from mcp_nursery.actors.records import frozen

from .inherited_marks import VARIABLE
from .table import ProcessId, Table, identify, is_alive, read_aside, signal_one, survivors

_TERM_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""

_KILL_WAIT = 1.0
"""Seconds that killed processes get to vanish."""

_POLL = 0.05


class Ledger(Protocol):
    """The record of every process tree that is started, by the value of its marker variable: the next host reads it."""

    async def starting(self, marker: str) -> None:
        """Record a tree that is about to be started; returns once that is written, or cannot be."""
        ...

    def started(self, marker: str, leader: ProcessId) -> None:
        """Record the first process of a tree, which leads its session and group. Never waits."""
        ...

    def ended(self, marker: str) -> None:
        """Remove the record of a tree: no process of it is left. Never waits."""
        ...


class NoLedger:
    """A ledger without records."""

    async def starting(self, marker: str) -> None:
        """Record nothing."""

    def started(self, marker: str, leader: ProcessId) -> None:
        """Record nothing."""

    def ended(self, marker: str) -> None:
        """Record nothing."""


LEDGER: ContextVar[Ledger] = ContextVar("mcp_nursery_ledger", default=NoLedger())  # noqa: B039 - it holds nothing
"""For the processes that the current task and its children start."""


@frozen
class HostProcess:
    """A process that starts servers, identified for certain."""

    machine: str
    """The machine's boot and its PID namespace: elsewhere the same number is another process."""
    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """True if it runs. Only for a process of this machine."""
        return is_alive(ProcessId(self.pid, self.started))


@frozen
class Orphan:
    """A process tree whose host may be gone."""

    marker: str
    """The value of its marker variable."""
    since: int
    """The start of the host, in clock ticks after the machine's boot: before any process of the tree."""
    leader: ProcessId | None
    """The first process of the tree; None if the host was killed before it recorded it."""


def this_host() -> HostProcess | None:
    """The identity of this process; None where the system cannot identify processes for certain."""
    machine, me = this_machine(), identify(os.getpid())
    return HostProcess(machine, me.pid, me.started) if machine and me.started else None


@cache
def this_machine() -> str:
    """The machine's boot and its PID namespace; empty where they are unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def own_marker() -> str | None:
    """The marker that this process inherited from a host that started it: a tree of which we are a part."""
    return os.environ.get(VARIABLE)


async def end_orphans(orphans: Sequence[Orphan], patience: trio.CancelScope) -> bool:
    """End all that is left of these trees: SIGTERM, 2 s later SIGKILL, 1 s more to vanish; return True if none is left.
    `patience` is a new scope: if it is cancelled, they are killed at once, and only the last second is waited for."""
    with patience:
        if await _drive_out(orphans, signal.SIGTERM, _TERM_GRACE):
            return True
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _KILL_WAIT):
        return await _drive_out(orphans, signal.SIGKILL, _KILL_WAIT)
    return False


async def _drive_out(orphans: Sequence[Orphan], number: signal.Signals, seconds: float) -> bool:
    """Signal each process once, and those that they start meanwhile, until a look at the process table finds none.

    Returns:
        True if none is left `seconds` after the first were signalled.
    """
    since = min((orphan.since for orphan in orphans), default=0)
    signalled: set[ProcessId] = set()
    with trio.CancelScope() as limit:
        while left := _all_left(orphans, await read_aside(since)):
            for process in left - signalled:
                signal_one(process, number)
            if not signalled:
                limit.deadline = trio.current_time() + seconds
            signalled |= left
            await trio.sleep(_POLL)
        return True
    return False


def _all_left(orphans: Sequence[Orphan], table: Table) -> set[ProcessId]:
    return {process for orphan in orphans for process in left_of(orphan, table)}


def left_of(orphan: Orphan, table: Table) -> Sequence[ProcessId]:
    """The processes left of a tree: those with its marks and, as long as its leader exists, its group and session.

    Once the leader is gone, its number may be reused, and only the marks prove which processes belong to the tree.
    """
    leader = orphan.leader
    holder = None if leader is None else table.get(leader.pid)
    if leader is not None and holder is not None and holder.started == leader.started:
        return survivors(leader, orphan.marker, table)
    return [ProcessId(pid, stat.started) for pid, stat in table.marked(orphan.marker).items()]
