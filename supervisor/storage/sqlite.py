"""The store that lasts: one SQLite file in the user's state folder."""

import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from mcp_nursery.actors.enums import Remembered
from mcp_nursery.actors.process.orphans import HostProcess, Orphan
from mcp_nursery.actors.process.table import ProcessId

from ..security.trust import TrustRequest
from ..session_notes import NoteChange, SessionNote
from ..tools.pins import DefinitionChange, Pin, Room, check_pinned, means_the_same, pins_after
from ..user_folders import state_folder
from .rows import (
    SWEPT_NOTES,
    Sweeps,
    adopt_orphans,
    cached_definitions,
    era_in,
    note_columns,
    note_in,
    pinned_change,
    write_definitions,
)
from .state_file import (
    ADVICE,
    BUSY,
    INSERT_PINS,
    UnusableFile,
    file_for,
    open_state_file,
    own_file,
    pin_rows,
    whole,
)
from .store import MOST_NOTES, EraNote, Store, StoreUnreadable, next_note
from .task_rows import TaskRows, in_sqlite

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")


class SqliteStore(Store):
    """The store in one file, readable by its user alone, that several processes may use at once. Opened when first
    needed. By default the file is that in the user's state folder. A file that a version with another format has
    written is left alone; then the file is `state-6.sqlite3` beside `state.sqlite3`."""

    blocking = True  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    shared = False  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._named = None if path is None else Path(path)
        self._found: Path | None = None
        self._connection: sqlite3.Connection | None = None
        self._warned = False
        self._problem: str | None = None
        self._unopened: str | None = None
        """The reason why it could not be opened just now."""
        self._sweeps = Sweeps()
        self._noted = 0

    @property
    def path(self) -> Path:
        """The path of the open database. Until it is open, or if opening fails, the configured path."""
        if self._found is not None:
            return self._found
        return own_file(self._former) if self._named is None else self._named

    @property
    def _former(self) -> Path:
        """The file that a version with another format may have written."""
        if self._named is None:
            return state_folder() / "state.sqlite3"
        return self._named

    @property
    def problem(self) -> str | None:
        return self._problem

    @contextmanager
    def together(self) -> Generator[None, None, None]:
        # If another process writes for a second, or the file cannot be used, each write is done on its own, and none
        # waits again: many would wait for as many seconds.
        try:
            self._run(lambda db: db.execute("BEGIN IMMEDIATE"))
        except StoreUnreadable as problem:
            with self._without_waiting(str(problem)):
                yield
            return
        try:
            yield
        except BaseException:
            self._run(_undo)
            raise
        self._run(_commit)

    @contextmanager
    def _without_waiting(self, problem: str) -> Generator[None, None, None]:
        """Do what can be done at once. A file that could not be opened is not tried again."""
        db = self._connection
        self._unopened = problem
        if db is not None:
            db.execute("PRAGMA busy_timeout = 0")
        try:
            yield
        finally:
            self._unopened = None
            if db is not None:
                db.execute(f"PRAGMA busy_timeout = {BUSY * 1000:.0f}")

    def era(self, server: str, spec: str) -> EraNote | None:
        query = "SELECT era, answered, at FROM eras WHERE server = ? AND spec = ?"
        row: Any = self._try(lambda db: db.execute(query, (server, spec)).fetchone(), None)
        return None if row is None else era_in(*row)

    def remember_era(self, server: str, spec: str, era: Remembered, *, answered: bool) -> None:
        row = (server, spec, str(era), time.time(), answered)
        query = "INSERT OR REPLACE INTO eras (server, spec, era, at, answered) VALUES (?, ?, ?, ?, ?)"
        self._try(lambda db: db.execute(query, row), None)

    def definitions(self, server: str, spec: str, *, most: int) -> bytes:
        return self._try(lambda db: cached_definitions(db, server, spec, most), b"")

    def remember_definitions(self, server: str, spec: str, declared: bytes, at: float) -> None:
        self._try(lambda db: write_definitions(db, self._sweeps, server, spec, declared, at=at), None)

    def add_process(self, marker: str, host: HostProcess) -> None:
        row = (marker, host.machine, host.pid, host.started, time.time())
        query = "INSERT INTO processes (marker, machine, host, host_started, at) VALUES (?, ?, ?, ?, ?)"
        self._try(lambda db: db.execute(query, row), None)

    def name_process(self, marker: str, leader: ProcessId) -> None:
        row = (leader.pid, leader.started, marker)
        self._try(lambda db: db.execute("UPDATE processes SET pid = ?, started = ? WHERE marker = ?", row), None)

    def forget_process(self, marker: str) -> None:
        self._try(lambda db: db.execute("DELETE FROM processes WHERE marker = ?", (marker,)), None)

    def adopt_orphans(self, host: HostProcess, *, but: str | None) -> list[Orphan]:
        return self._try(lambda db: adopt_orphans(db, host, but), [])

    def agreed(self, digest: str) -> bool:
        if not self._is_there():  # nor is it made: nobody has agreed to anything
            return False
        return self._run(lambda db: _has_agreed(db, digest))

    def agree(self, request: TrustRequest) -> None:
        row = (request.digest, request.server, request.file, time.time())
        query = "INSERT OR REPLACE INTO consents (digest, server, file, at) VALUES (?, ?, ?, ?)"
        self._run(lambda db: db.execute(query, row))

    def pin(self, server: str, spec: str, declared: Mapping[str, str]) -> Mapping[str, str]:
        return self._run(lambda db: _pin(db, server, spec, declared))

    def pinned(self, server: str, spec: str) -> Sequence[str]:
        if not self._is_there():  # nor is it made: nothing was ever used
            return []
        query = "SELECT tool FROM pinned WHERE server = ? AND spec = ?"
        return self._run(lambda db: [json.loads(tool) for (tool,) in db.execute(query, (server, spec))])

    def accept_change(self, spec: str, change: DefinitionChange) -> None:
        self._run(lambda db: _accept(db, spec, change))

    def open_changes(self) -> list[tuple[str, DefinitionChange]]:
        if not self._is_there():  # nor is it made: nothing was ever used
            return []
        return self._run(_open_changes)

    def session_note(self, session: str) -> SessionNote:
        return self._try(lambda db: _note_of(db, session), SessionNote())

    def note_session(self, session: str, until: float, change: NoteChange) -> SessionNote | None:
        return self._try(lambda db: self._note(db, session, until, change), None)

    def _note(self, db: sqlite3.Connection, session: str, until: float, change: NoteChange) -> SessionNote:
        now = time.time()
        with whole(db):
            note = next_note(_note_of(db, session), change)
            row = (session, now, until, *note_columns(note))
            query = (
                "INSERT OR REPLACE INTO sessions (session, at, until, ended, version, said) VALUES (?, ?, ?, ?, ?, ?)"
            )
            db.execute(query, row)
            if self._noted % SWEPT_NOTES == 0:
                db.execute("DELETE FROM sessions WHERE until <= ?", (now,))
                db.execute(_FORGET_NOTES, (MOST_NOTES,))
        self._noted += 1
        return note

    def changed_notes(self, seconds: float) -> Mapping[str, SessionNote] | None:
        query = "SELECT session, ended, version, said FROM sessions WHERE at > ?"
        since = time.time() - seconds
        found: Any = self._try(lambda db: db.execute(query, (since,)).fetchall(), None)
        return None if found is None else {session: note_in(*row) for session, *row in found}

    def tasks(self, work: Callable[[TaskRows], T]) -> T:
        return self._run(lambda db: work(in_sqlite(db)))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _try(self, work: Callable[[sqlite3.Connection], T], instead: T) -> T:
        try:
            return self._run(work)
        except StoreUnreadable as error:
            if not self._warned:  # once: it will not be better the next time
                logger.warning("%s; nothing is remembered in this run", error)
            self._warned = True
            return instead

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        advice = ADVICE
        try:
            if self._connection is None:
                if self._unopened is not None:
                    raise StoreUnreadable(self._unopened)
                self._connection = self._open()
            done = work(self._connection)
        except UnusableFile as error:
            reason, advice = str(error), error.advice
        except (sqlite3.Error, OSError, ValueError, UnusableRow) as error:
            reason = getattr(error, "strerror", None) or str(error)
        else:
            self._problem = None
            return done
        self._problem = f"{self.path}: the state file cannot be used: {reason}; {advice}"
        raise StoreUnreadable(self._problem)

    def _open(self) -> sqlite3.Connection:
        path = self.path if self._named is None else file_for(self._named)
        connection = open_state_file(path, None if path == self._former else self._former)
        self._found = path
        return connection

    def _is_there(self) -> bool:
        """True if there is a file to be read."""
        return self._connection is not None or any(map(os.path.lexists, (self.path, self._former)))


_FORGET_NOTES = """
DELETE FROM sessions WHERE rowid IN (SELECT rowid FROM sessions ORDER BY at DESC LIMIT -1 OFFSET ?)
"""


def _note_of(db: sqlite3.Connection, session: str) -> SessionNote:
    query = "SELECT ended, version, said FROM sessions WHERE session = ? AND until > ?"
    row = db.execute(query, (session, time.time())).fetchone()
    return SessionNote() if row is None else note_in(*row)


class UnusableRow(ValueError):
    """A row that cannot be read."""


def _commit(db: sqlite3.Connection) -> None:
    try:
        db.execute("COMMIT")
    except BaseException:
        _undo(db)
        raise


def _undo(db: sqlite3.Connection) -> None:
    if db.in_transaction:  # some errors have undone it already
        db.execute("ROLLBACK")


def _has_agreed(db: sqlite3.Connection, digest: str) -> bool:
    row = db.execute("SELECT server, file, at FROM consents WHERE digest = ?", (digest,)).fetchone()
    if row is not None and [type(each) for each in row] != [str, str, float]:
        raise UnusableRow("a trust decision in it is damaged")
    return row is not None


# -- pins -------------------------------------------------------------------------------------------------------------

_PINS = """
SELECT json_group_array(json_array(tool, text, differs)) FROM pinned
WHERE server = ? AND spec = ? AND tool IN (SELECT value FROM json_each(?))
"""
"""The pins in one row: see `INSERT_PINS`."""


def _pin(db: sqlite3.Connection, server: str, spec: str, declared: Mapping[str, str]) -> Mapping[str, str]:
    known = _pins_of(db, server, spec, declared)
    if pins_after(declared, known, lambda: _room_taken(db, server, spec)):
        with whole(db):
            known = _pins_of(db, server, spec, declared)  # looked at again: another host may have been quicker
            changed = pins_after(declared, known, lambda: _room_taken(db, server, spec))
            _write(db, server, spec, changed)
            known = {**known, **changed}
    return {tool: pin.text if pin.text == declared[tool] else check_pinned(pin.text) for tool, pin in known.items()}


def _accept(db: sqlite3.Connection, spec: str, change: DefinitionChange) -> None:
    with whole(db):
        known = _pins_of(db, change.server, spec, [change.tool])
        pin = known.get(change.tool, Pin(change.before))
        check_pinned(pin.text)
        _write(db, change.server, spec, {change.tool: pin.accepted(change.after)})


def _pins_of(db: sqlite3.Connection, server: str, spec: str, tools: Iterable[str]) -> dict[str, Pin]:
    names = {json.dumps(tool): tool for tool in tools}
    (rows,) = db.execute(_PINS, (server, spec, json.dumps(list(names)))).fetchone()
    return {names[tool]: Pin(text, differs) for tool, text, differs in json.loads(rows)}


def _write(db: sqlite3.Connection, server: str, spec: str, pins: Mapping[str, Pin]) -> None:
    if pins:
        db.execute(INSERT_PINS, (server, spec, time.time(), pin_rows(pins)))


def _room_taken(db: sqlite3.Connection, server: str, spec: str) -> Room:
    query = "SELECT count(*), total(length(text)), total(length(differs)) FROM pinned WHERE server = ? AND spec = ?"
    names, pinned, differing = db.execute(query, (server, spec)).fetchone()
    return Room(names, int(pinned), int(differing))


def _open_changes(db: sqlite3.Connection) -> list[tuple[str, DefinitionChange]]:
    rows = db.execute(
        "SELECT server, spec, tool, text, differs FROM pinned WHERE differs IS NOT NULL ORDER BY server, at"
    ).fetchall()
    return [pinned_change(*row) for row in rows if not means_the_same(row[3], row[4])]
