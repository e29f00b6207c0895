"""The rows about processes, in the state file. What they say is acted on by signals, so that each is checked like the
words of a server: a row that none of us can have written is as good as lost, and stays what it is."""

import sqlite3
import time
from typing import Any, Final

from mcp_nursery.actors.process.orphans import HostProcess, Orphan
from mcp_nursery.actors.process.table import ProcessId

from .state_file import whole

_MEMORY: Final = 30 * 24 * 3600.0
"""Seconds after which the processes of other machines are forgotten."""
_MOST: Final = 2**31 - 1
"""The greatest number that a process can have anywhere."""

_FORGET = "DELETE FROM processes WHERE machine != ? AND at < ?"
_HOSTS = "SELECT DISTINCT host, host_started FROM processes WHERE machine = ?"
_ROWS = """
SELECT marker, pid, started, host_started FROM processes
WHERE machine = ? AND host = ? AND host_started = ? AND marker IS NOT ?
"""
_ADOPT = "UPDATE processes SET host = ?, host_started = ? WHERE marker = ?"


def adopt_orphans(db: sqlite3.Connection, host: HostProcess, but: str | None) -> list[Orphan]:
    """See `Store.adopt_orphans`."""
    db.execute(_FORGET, (host.machine, time.time() - _MEMORY))
    if not _orphans(db, host, but):
        return []
    with whole(db):
        orphans = _orphans(db, host, but)  # looked at again: another host may have been quicker
        db.executemany(_ADOPT, [(host.pid, host.started, orphan.marker) for orphan in orphans])
    return orphans


def _orphans(db: sqlite3.Connection, host: HostProcess, but: str | None) -> list[Orphan]:
    hosts = [each for each in db.execute(_HOSTS, (host.machine,)).fetchall() if _is_process(*each)]
    dead = [each for each in hosts if not HostProcess(host.machine, *each).alive]
    rows = [row for one in dead for row in db.execute(_ROWS, (host.machine, *one, but)).fetchall()]
    return [orphan for row in rows if (orphan := _orphan(*row)) is not None]


def _orphan(marker: Any, pid: Any, started: Any, since: int) -> Orphan | None:
    # Of what has no mark, the mark is empty: that of nobody's tree.
    if not isinstance(marker, str) or not marker:
        return None
    if (pid, started) == (None, None):
        return Orphan(marker, since, None)
    return Orphan(marker, since, ProcessId(pid, started)) if _is_process(pid, started) else None


def _is_process(pid: Any, started: Any) -> bool:
    return isinstance(pid, int) and isinstance(started, int) and 0 < pid <= _MOST and started > 0
