"""The store that lasts: one SQLite file in the user's state folder."""

import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mcp_nursery.actors.messages import Era
from mcp_nursery.actors.transports.orphans import Host, Orphan
from mcp_nursery.actors.transports.process_table import ProcessId

from .config.trust import TrustRequest
from .store import StoreUnreadable
from .tools.pins import DefinitionChange, Pins, UnusablePins

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FORMAT = 2
"""Format 1 had no pins; whatever is not there is added."""
_BUSY = 1.0
"""Seconds to wait for another process that is writing."""
_MEMORY = 30 * 24 * 3600.0
"""Seconds after which an era is asked for again, and the processes of other machines are forgotten."""

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS eras (
    server TEXT NOT NULL, spec TEXT NOT NULL, era TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (server, spec)
);
CREATE TABLE IF NOT EXISTS processes (
    marker TEXT PRIMARY KEY, pid INTEGER, started INTEGER,
    machine TEXT NOT NULL, host INTEGER NOT NULL, host_started INTEGER NOT NULL, at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS consents (
    digest TEXT PRIMARY KEY, server TEXT NOT NULL, file TEXT NOT NULL, at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS pins (
    server TEXT NOT NULL, spec TEXT NOT NULL, pins TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (server, spec)
);
PRAGMA user_version = {_FORMAT};
"""


class SqliteStore:
    """One file, readable by its user alone, that several processes may use at once. Opened when first needed.

    Args:
        path: The file; None for the one in the user's state folder.
    """

    blocking = True

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._connection: sqlite3.Connection | None = None
        self._problem: str | None = None

    @property
    def path(self) -> Path:
        """The file."""
        if self._path is None:
            from platformdirs import user_state_path

            self._path = user_state_path("mcp-nursery") / "state.sqlite3"
        return self._path

    def era(self, server: str, spec: str) -> Era | None:
        """See `Store`."""
        oldest = time.time() - _MEMORY
        query = "SELECT era FROM eras WHERE server = ? AND spec = ? AND at > ?"
        found: Any = self._tried(lambda db: db.execute(query, (server, spec, oldest)).fetchone(), None)
        return Era(found[0]) if found is not None and found[0] in set(Era) else None

    def remember_era(self, server: str, spec: str, era: Era) -> None:
        """See `Store`."""
        row = (server, spec, era.value, time.time())
        self._tried(lambda db: db.execute("INSERT OR REPLACE INTO eras VALUES (?, ?, ?, ?)", row), None)

    def add_process(self, marker: str, host: Host) -> None:
        """See `Store`."""
        row = (marker, None, None, host.machine, host.pid, host.started, time.time())
        self._tried(lambda db: db.execute("INSERT INTO processes VALUES (?, ?, ?, ?, ?, ?, ?)", row), None)

    def name_process(self, marker: str, leader: ProcessId) -> None:
        """See `Store`."""
        row = (leader.pid, leader.started, marker)
        self._tried(lambda db: db.execute("UPDATE processes SET pid = ?, started = ? WHERE marker = ?", row), None)

    def forget_process(self, marker: str) -> None:
        """See `Store`."""
        self._tried(lambda db: db.execute("DELETE FROM processes WHERE marker = ?", (marker,)), None)

    def adopt_orphans(self, host: Host, *, but: str | None) -> list[Orphan]:
        """See `Store`."""
        return self._tried(lambda db: _adopt_orphans(db, host, but), [])

    def agreed(self, digest: str) -> bool:
        """See `Store`. A file that is not there is not made: nobody has agreed to anything."""
        if self._connection is None and not os.path.lexists(self.path):
            return False
        row = self._certain(lambda db: db.execute("SELECT 1 FROM consents WHERE digest = ?", (digest,)).fetchone())
        return row is not None

    def agree(self, request: TrustRequest) -> None:
        """See `Store`."""
        row = (request.digest, request.server, request.file, time.time())
        self._certain(lambda db: db.execute("INSERT OR REPLACE INTO consents VALUES (?, ?, ?, ?)", row))

    def pin(self, server: str, spec: str, declared: Mapping[str, str]) -> Mapping[str, str]:
        """See `Store`."""
        return self._certain(lambda db: _change_pins(db, server, spec, lambda pins: pins.see(declared)))

    def accept_change(self, spec: str, change: DefinitionChange) -> None:
        """See `Store`."""
        self._certain(lambda db: _change_pins(db, change.server, spec, lambda pins: pins.accept(change)))

    def open_changes(self) -> list[tuple[str, DefinitionChange]]:
        """See `Store`. A file that is not there is not made: nothing was ever used."""
        if self._connection is None and not os.path.lexists(self.path):
            return []
        return self._certain(_open_changes)

    def close(self) -> None:
        """See `Store`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _tried(self, work: Callable[[sqlite3.Connection], T], instead: T) -> T:
        try:
            return self._certain(work)
        except StoreUnreadable as error:
            if self._problem is None:  # once: it will not be better at the next time
                logger.warning("%s; going on without a memory", error)
            self._problem = str(error)
            return instead

    def _certain(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = _open(self.path)
            return work(self._connection)
        except (sqlite3.Error, OSError, UnicodeError, UnusablePins) as error:
            reason = getattr(error, "strerror", None) or str(error)
        raise StoreUnreadable(f"{self.path}: the state file cannot be used: {reason}; mend or remove it")


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(0, "it is not a file of this user's alone (mode 0600)") from None
    # The owner sees to it that one thread at a time uses it.
    db = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version not in range(_FORMAT + 1):
            raise sqlite3.DatabaseError("another version of mcp-nursery wrote it")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        if version < _FORMAT:
            db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
    except BaseException:
        db.close()
        raise
    return db


def _change_pins(db: sqlite3.Connection, server: str, spec: str, change: Callable[[Pins], T]) -> T:
    """Read the pins of one server, change them, and write them down if that made a difference."""
    found, before, after = _changed_pins(db, server, spec, change)
    if after == before:
        return found
    db.execute("BEGIN IMMEDIATE")  # looked at again: another host may have been quicker
    try:
        found, _, after = _changed_pins(db, server, spec, change)
        db.execute("INSERT OR REPLACE INTO pins VALUES (?, ?, ?, ?)", (server, spec, after, time.time()))
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return found


def _changed_pins(
    db: sqlite3.Connection, server: str, spec: str, change: Callable[[Pins], T]
) -> tuple[T, str | None, str]:
    row = db.execute("SELECT pins FROM pins WHERE server = ? AND spec = ?", (server, spec)).fetchone()
    pins = Pins() if row is None else Pins.from_json(row[0])
    found = change(pins)
    return found, None if row is None else row[0], pins.to_json()


def _open_changes(db: sqlite3.Connection) -> list[tuple[str, DefinitionChange]]:
    rows = db.execute("SELECT server, spec, pins FROM pins ORDER BY server, at").fetchall()
    return [(spec, change) for server, spec, pins in rows for change in Pins.from_json(pins).changes(server)]


def _adopt_orphans(db: sqlite3.Connection, host: Host, but: str | None) -> list[Orphan]:
    db.execute("DELETE FROM processes WHERE machine != ? AND at < ?", (host.machine, time.time() - _MEMORY))
    rows = _rows_of_the_dead(db, host, but)
    if not rows:
        return []
    db.execute("BEGIN IMMEDIATE")  # looked at again: another host may have been quicker
    try:
        rows = _rows_of_the_dead(db, host, but)
        adopted = [(host.pid, host.started, marker) for marker, *_ in rows]
        db.executemany("UPDATE processes SET host = ?, host_started = ? WHERE marker = ?", adopted)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return [
        Orphan(marker, since, None if pid is None else ProcessId(pid, started)) for marker, pid, started, since in rows
    ]


def _rows_of_the_dead(db: sqlite3.Connection, host: Host, but: str | None) -> list[Any]:
    hosts = db.execute("SELECT DISTINCT host, host_started FROM processes WHERE machine = ?", (host.machine,))
    dead = [(pid, started) for pid, started in hosts.fetchall() if not Host(host.machine, pid, started).alive]
    query = (
        "SELECT marker, pid, started, host_started FROM processes"
        " WHERE machine = ? AND host = ? AND host_started = ? AND marker IS NOT ?"
    )
    return [row for one in dead for row in db.execute(query, (host.machine, *one, but)).fetchall()]
