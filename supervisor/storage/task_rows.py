"""The rows of tasks, the same statements for every store, and the leases by which each task has one host that follows
it.

A lease is the name of a host and a time in the row of the task. The host puts the time off while it lives; when that
has stopped, any other host may take the lease. The name says which process the host is: on the same machine its death
is known at once. All times in rows are those of the database's own clock, because the clocks of hosts differ; a record
has them by the clock of its reader.

A call that a gateway has made a task of has a name with a dot, after the digest of its client. Such a task that is over
has no lease, and the time in its row is when it is forgotten.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mcp_nursery.actors.process.orphans import HostProcess, this_machine
from mcp_nursery.actors.records import frozen

from ..decisions.task_records import ANYBODY, LONGEST_KEPT, RESULT_KEPT, TaskRecord, record_in

LEASE: Final = 7.0
"""Seconds for which a host that was last heard of is believed to follow its tasks."""
MOST_TASKS: Final = 10_000
"""Tasks that are recorded; beyond it the oldest are forgotten, those that are over first."""
MOST_RESULT: Final = 1 << 20
"""Bytes of one result that is recorded; of a larger one only the status is."""
MOST_RESULTS: Final = 64 << 20
"""Bytes of all recorded results together; beyond that those of the oldest tasks go."""

MOST_MADE: Final = 1_000
"""Calls under way of which gateways have made tasks; beyond it a call stays a call."""
MOST_MADE_OF_CLIENT: Final = 100
"""The same of one client, where clients are told apart; and its tasks of that kind that are over."""
MOST_RESULTS_OF_CLIENT: Final = 16 << 20
"""Bytes of all recorded results of one such client."""

_NAMES_AT_ONCE: Final = 1_000
"""Tasks that one statement names: databases take 32,766 or 65,535 values."""
_MADE: Final = "%.%"
"""The pattern of the ids of tasks that gateways have made."""
COLUMNS: Final = (
    "id TEXT PRIMARY KEY, created REAL NOT NULL, finished REAL, owner TEXT, until REAL,"
    " about TEXT NOT NULL, state TEXT NOT NULL, outcome TEXT, size INTEGER NOT NULL, unwanted INTEGER NOT NULL"
)
"""The columns, as SQLite has them."""

_ADD = """
INSERT INTO {tasks} (id, created, finished, owner, until, about, state, outcome, size, unwanted)
VALUES (?, ?, NULL, ?, {now} + ?, ?, ?, NULL, 0, 0) ON CONFLICT (id) DO NOTHING
"""
_READ = "SELECT id, created, finished, about, state, outcome FROM {tasks}"
_LIST = """
SELECT id, created, finished, about, state, NULL FROM {tasks}
WHERE finished IS NULL OR coalesce(until, finished + ?) >= {now} ORDER BY created, id
"""
_LEASED = "(until > {now} AND until <= {now} + ?)"
"""True for a lease that lasts. No host writes one that lasts longer than `LEASE`: such a row is damaged, or the clock
was put back, and the next renewal by its host puts it right."""
_HOLDER = f"SELECT owner FROM {{tasks}} WHERE id = ? AND {_LEASED}"  # noqa: S608 - a condition of ours
_CLAIM = f"""
UPDATE {{tasks}} SET owner = ?, until = {{now}} + ?
WHERE id = ? AND outcome IS NULL AND (owner IS NULL OR owner IN (?, ?) OR until IS NULL OR NOT {_LEASED})
"""  # noqa: S608
_WRITE = "UPDATE {tasks} SET state = ? WHERE id = ? AND owner = ?"
_FINISH = """
UPDATE {tasks} SET state = ?, finished = ?, outcome = ?, size = ?, owner = NULL, until = ?
WHERE id = ? AND owner = ?
"""
_ABANDONED = f"""
SELECT id FROM {{tasks}} WHERE finished IS NULL AND id LIKE ? AND (until IS NULL OR NOT {_LEASED})
"""  # noqa: S608
_UNDER_WAY = f"SELECT count(*) FROM {{tasks}} WHERE finished IS NULL AND id LIKE ? AND {_LEASED}"  # noqa: S608
_RENEW = "UPDATE {tasks} SET until = {now} + ? WHERE owner = ?"
_EXPIRE = f"""
DELETE FROM {{tasks}}
WHERE {{alone}} AND (
    (finished IS NOT NULL AND coalesce(until, finished + ?) < {{now}})
    OR (finished IS NULL AND created < {{now}} - ? AND (until IS NULL OR NOT {_LEASED}))
)
"""  # noqa: S608
_MAKE_ROOM = """
DELETE FROM {tasks} WHERE {alone} AND id IN (
    SELECT id FROM {tasks} ORDER BY CASE WHEN finished IS NULL THEN 0 ELSE 1 END, created DESC, id
    LIMIT 1000000 OFFSET ?
)
"""
_FORGET_OF_CLIENT = """
DELETE FROM {tasks} WHERE id IN (
    SELECT id FROM (
        SELECT id, sum(size) OVER (ORDER BY finished DESC, id) AS total,
            row_number() OVER (ORDER BY finished DESC, id) AS number
        FROM {tasks} WHERE id LIKE ? AND finished IS NOT NULL
    ) AS sized WHERE total > ? OR number > ?
)
"""
_SHRINK = """
UPDATE {tasks} SET outcome = NULL, size = 0 WHERE {alone} AND id IN (
    SELECT id FROM (
        SELECT id, sum(size) OVER (ORDER BY finished DESC, id) AS total FROM {tasks} WHERE size > 0
    ) AS sized WHERE total > ?
)
"""


def host_name(host: HostProcess | None, nonce: str) -> str:
    """The name of a supervisor as the holder of leases: its process, where that can be identified, and a random
    text."""
    return json.dumps([*(() if host is None else (host.machine, host.pid, host.started)), nonce])


def _bounds_of_client(name: str) -> tuple[str, int, int]:
    """The pattern of the ids of all tasks that gateways have made for the client of this one, how many of them there
    may be, under way or over, and the bytes of their results."""
    client, _, _ = name.partition(".")
    most, room = (MOST_MADE, MOST_RESULTS) if client == ANYBODY else (MOST_MADE_OF_CLIENT, MOST_RESULTS_OF_CLIENT)
    return f"{client}.%", most, room


def _is_dead(owner: str) -> bool:
    """True if the holder of a lease was a process of this machine that is gone."""
    try:
        machine, pid, started, _ = json.loads(owner)
        known = isinstance(pid, int) and isinstance(started, int) and machine == this_machine()
        return known and not HostProcess(machine, pid, started).alive
    except (ValueError, TypeError, RecursionError, OverflowError):  # no name that we have written
        return False


@frozen
class TaskRows:
    """The rows of tasks in one database, while a statement of it can be executed."""

    execute: Callable[[str, Sequence[object]], Any]
    """Executes a statement with these values, after the names in braces are replaced. Returns the cursor."""

    def all(self) -> list[TaskRecord]:
        """All tasks, the oldest first, without their outcomes. A row that cannot be read counts as lost."""
        rows = self.execute(_LIST, (RESULT_KEPT,)).fetchall()
        ahead = self._ahead() if rows else 0.0
        return [record.moved(-ahead) for row in rows if (record := record_in(row)) is not None]

    def _ahead(self) -> float:
        """Seconds by which the database's clock is ahead of this host's: whole ones, because two readings of clocks
        that agree differ a little."""
        (now,) = self.execute("SELECT {now}", ()).fetchone()
        return float(round(float(now) - time.time()))

    def add(self, record: TaskRecord, owner: str) -> None:
        """Record a new task, with the lease for its host."""
        record = record.moved(self._ahead())
        about, state, _ = record.columns()
        self.execute(_EXPIRE, (RESULT_KEPT, LONGEST_KEPT, LEASE))
        self.execute(_ADD, (record.info.id, record.info.created, owner, LEASE, about, state))
        (number,) = self.execute("SELECT count(*) FROM {tasks}", ()).fetchone()
        if number > MOST_TASKS:
            self.execute(_MAKE_ROOM, (MOST_TASKS,))

    def add_made(self, record: TaskRecord, owner: str) -> bool:
        """Record a new task that a gateway has made. False, and nothing is recorded, if too many are under way."""
        of_client, most, _ = _bounds_of_client(record.info.id)
        for ids, limit in ((of_client, most), (_MADE, MOST_MADE)):
            (number,) = self.execute(_UNDER_WAY, (ids, LEASE)).fetchone()
            if number >= limit:
                return False
        self.add(record, owner)
        return True

    def read(self, name: str) -> TaskRecord | None:
        """The task of this id; None if there is none, or its row cannot be read."""
        row = self.execute(f"{_READ} WHERE id = ?", (name,)).fetchone()
        record = None if row is None else record_in(row)
        return None if record is None else record.moved(-self._ahead())

    def claim(self, name: str, owner: str) -> tuple[TaskRecord | None, bool]:
        """The task as it is recorded, and whether this host has the lease now. Nobody has the lease of a task whose
        outcome is known."""
        holder = self.execute(_HOLDER, (name, LEASE)).fetchone()
        rival = holder[0] if holder is not None and isinstance(holder[0], str) else owner
        ousted = rival if rival != owner and _is_dead(rival) else owner
        is_ours = self.execute(_CLAIM, (owner, LEASE, name, owner, ousted, LEASE)).rowcount == 1
        return self.read(name), is_ours

    def write(self, record: TaskRecord, owner: str) -> bool:
        """Write how a task is now. False, and nothing is written, if this host has not its lease."""
        record = record.moved(self._ahead())
        _, state, outcome = record.columns()
        if record.info.finished is None:
            return bool(self.execute(_WRITE, (state, record.info.id, owner)).rowcount == 1)
        outcome = None if outcome is None or len(outcome) > MOST_RESULT else outcome
        size = 0 if outcome is None else len(outcome)
        kept = record.info.expires if record.is_made else None
        finished = self.execute(_FINISH, (state, record.info.finished, outcome, size, kept, record.info.id, owner))
        if record.is_made:
            ids, most, room = _bounds_of_client(record.info.id)
            self.execute(_FORGET_OF_CLIENT, (ids, room, most))
        (total,) = self.execute("SELECT coalesce(sum(size), 0) FROM {tasks}", ()).fetchone()
        if total > MOST_RESULTS:
            self.execute(_SHRINK, (MOST_RESULTS,))
        return bool(finished.rowcount == 1)

    def renew(self, owner: str, seconds: float = LEASE, only: Sequence[str] | None = None) -> Mapping[str, bool]:
        """Put the time of all leases of this host off, or only of those of some tasks. Returns the tasks of which it
        has the lease, and whether each is to be cancelled."""
        if only is None:
            self.execute(_RENEW, (seconds, owner))
        else:
            for at in range(0, len(only), _NAMES_AT_ONCE):
                names = only[at : at + _NAMES_AT_ONCE]
                marks = ", ".join("?" * len(names))
                self.execute(f"{_RENEW} AND id IN ({marks})", (seconds, owner, *names))
        held = self.execute("SELECT id, unwanted FROM {tasks} WHERE owner = ?", (owner,)).fetchall()
        return {name: unwanted == 1 for name, unwanted in held}

    def abandoned(self) -> list[str]:
        """The tasks that gateways have made, and whose hosts have let their leases run out."""
        return [name for (name,) in self.execute(_ABANDONED, (_MADE, LEASE)).fetchall()]

    def want_cancelled(self, name: str) -> None:
        """Have the host that follows a task cancel it, unless it is over."""
        self.execute("UPDATE {tasks} SET unwanted = 1 WHERE id = ? AND finished IS NULL", (name,))

    def release(self, name: str, owner: str) -> None:
        """Give the lease of one task up."""
        self.execute("UPDATE {tasks} SET owner = NULL, until = NULL WHERE id = ? AND owner = ?", (name, owner))

    def release_all(self, owner: str) -> None:
        """Give all leases of this host up."""
        self.renew(owner, 0.0)

    def forget(self, name: str) -> None:
        """Forget a task."""
        self.execute("DELETE FROM {tasks} WHERE id = ?", (name,))


_IN_SQLITE: Final = {"tasks": "tasks", "now": "((julianday('now') - 2440587.5) * 86400.0)", "alone": "1 = 1"}
"""The names in statements, as SQLite has them: the table, the Unix time, and whether no other host does the same."""


def in_sqlite(db: sqlite3.Connection) -> TaskRows:
    """The rows in the table `tasks` of a file."""
    return TaskRows(lambda statement, values: db.execute(statement.format(**_IN_SQLITE), values))


def in_memory() -> TaskRows:
    """Rows that last as long as they are referred to."""
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.execute(f"CREATE TABLE tasks ({COLUMNS})")
    return in_sqlite(db)
