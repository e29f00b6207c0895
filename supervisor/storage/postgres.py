"""The store that several machines share: the tables of a PostgreSQL database.

Processes are no part of it. A record of a process is acted on by signals, only on the machine that wrote it; it has to
be written before the process is started, also while the database is away; and a writer of a shared database must not be
able to have processes ended elsewhere. They are recorded in the user's own state file, by a worker of its own.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mcp_nursery.actors.enums import Remembered
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.process.orphans import HostProcess, Orphan
from mcp_nursery.actors.process.table import ProcessId

from ..security.trust import TrustRequest
from ..session_notes import NoteChange, SessionNote
from ..tools.pins import DefinitionChange, Pin, Room, check_pinned, means_the_same, pins_after
from . import rows
from .postgres_connection import StateDatabase, lock_key
from .rows import SWEPT_NOTES, Sweeps, era_in, note_columns, note_in, pinned_change
from .store import MOST_NOTES, EraNote, Store, StoreUnreadable, next_note
from .task_rows import TaskRows

if TYPE_CHECKING:
    from .postgres_connection import Connection

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

_REMEMBER_ERA = """
INSERT INTO mcp_nursery.eras (server, spec, era, at, answered) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (spec, server) DO UPDATE SET era = excluded.era, at = excluded.at, answered = excluded.answered
"""
_AGREE = """
INSERT INTO mcp_nursery.consents (digest, server, file, at) VALUES (%s, %s, %s, %s)
ON CONFLICT (digest) DO UPDATE SET server = excluded.server, file = excluded.file, at = excluded.at
"""
_DEFINITIONS = """
SELECT declared FROM mcp_nursery.definitions
WHERE spec = %s AND server = %s AND format = %s AND octet_length(declared) <= %s AND at > %s
"""
_REMEMBER_DEFINITIONS = """
INSERT INTO mcp_nursery.definitions AS known (server, spec, format, at, declared) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (spec, server, format) DO UPDATE SET at = excluded.at, declared = excluded.declared
WHERE excluded.at >= known.at OR known.at > %s
"""
"""The query. A row from the future was written by a wrong clock: anything is newer."""
_EXPIRE = "DELETE FROM mcp_nursery.definitions WHERE at <= %s"
_MAKE_ROOM = """
DELETE FROM mcp_nursery.definitions AS known USING (
    SELECT spec, server, format,
        sum(octet_length(declared)) OVER (ORDER BY at > %(now)s, at DESC, spec, server, format) AS total,
        row_number() OVER (
            PARTITION BY server, left(spec, %(digest)s) ORDER BY at > %(now)s, at DESC, spec, format
        ) AS lists
    FROM mcp_nursery.definitions
) AS counted
WHERE (counted.total > %(most)s OR counted.lists > %(lists)s)
AND known.spec = counted.spec AND known.server = counted.server AND known.format = counted.format
"""
"""Rows from the future go first, however many there are, so that a new row always finds room."""
_PIN = """
INSERT INTO mcp_nursery.pinned (key, server, spec, tool, text, differs, at)
SELECT key, %s, %s, tool, text, differs, %s
FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]) AS new (key, tool, text, differs)
ON CONFLICT (key) DO UPDATE SET text = excluded.text, differs = excluded.differs, at = excluded.at
"""
_ROOM = """
SELECT count(*), coalesce(sum(length(text)), 0), coalesce(sum(length(differs)), 0)
FROM mcp_nursery.pinned WHERE spec = %s AND server = %s
"""
_OPEN_CHANGES = """
SELECT server, spec, tool, text, differs FROM mcp_nursery.pinned
WHERE differs IS NOT NULL ORDER BY server COLLATE "C", at, key
"""


MOST_REPLICAS: Final = 1_000
"""Replicas whose reports are read."""


class PostgresStore(Store):
    """The store of all but processes in a PostgreSQL database, whose URL is `postgresql://…`, as libpq takes it. It
    connects when first needed.

    Raises:
        ConfigError: It is no such URL, or psycopg is not installed.
    """

    blocking = True  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    shared = True  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]

    def __init__(self, url: str) -> None:
        self.database: Final = StateDatabase(url)
        """The database."""
        self._sweeps = Sweeps()
        self._noted = 0
        self._lost = False

    def __repr__(self) -> str:
        return f"PostgresStore({self.database.label!r})"

    @property
    @override
    def problem(self) -> str | None:
        return self.database.problem

    @override
    def together(self) -> AbstractContextManager[None]:
        return nullcontext()  # each write for itself: a host must not wait for another's batch

    @override
    def era(self, server: str, spec: str) -> EraNote | None:
        query = "SELECT era, answered, at FROM mcp_nursery.eras WHERE spec = %s AND server = %s"
        row: Any = self._try(lambda db: db.execute(query, (spec, server)).fetchone(), None)
        return None if row is None else era_in(*row)

    @override
    def remember_era(self, server: str, spec: str, era: Remembered, *, answered: bool) -> None:
        row = (server, spec, str(era), time.time(), answered)
        self._try(lambda db: db.execute(_REMEMBER_ERA, row), None)

    @override
    def definitions(self, server: str, spec: str, *, most: int) -> bytes:
        most = min(most, rows.MOST_CACHED)  # as much as the database can count, too
        wanted = (spec, server, rows.ROW_FORMAT, most, time.time() - rows.LASTS)
        row: Any = self._try(lambda db: db.cursor(binary=True).execute(_DEFINITIONS, wanted).fetchone(), None)
        return b"" if row is None else bytes(row[0])

    @override
    def remember_definitions(self, server: str, spec: str, declared: bytes, at: float) -> None:
        row = (server, spec, rows.ROW_FORMAT, at, declared, time.time())
        self._try(lambda db: db.execute(_REMEMBER_DEFINITIONS, row), None)
        if self._sweeps.due(len(declared)) and self._try(_sweep, None) is not None:
            self._sweeps.done()

    @override
    def add_process(self, marker: str, host: HostProcess) -> None:
        pass

    @override
    def name_process(self, marker: str, leader: ProcessId) -> None:
        pass

    @override
    def forget_process(self, marker: str) -> None:
        pass

    @override
    def adopt_orphans(self, host: HostProcess, *, but: str | None) -> list[Orphan]:
        del host, but
        return []

    @override
    def agreed(self, digest: str) -> bool:
        query = "SELECT 1 FROM mcp_nursery.consents WHERE digest = %s"
        return self.database.run(lambda db: db.execute(query, (digest,)).fetchone()) is not None

    @override
    def agree(self, request: TrustRequest) -> None:
        row = (request.digest, request.server, request.file, time.time())
        self.database.run(lambda db: db.execute(_AGREE, row))

    @override
    def pin(self, server: str, spec: str, declared: Mapping[str, str]) -> Mapping[str, str]:
        return self.database.run(lambda db: _pin(db, server, spec, declared))

    @override
    def pinned(self, server: str, spec: str) -> Sequence[str]:
        query = b"SELECT tool FROM mcp_nursery.pinned WHERE spec = %s AND server = %s"
        found: Any = self.database.run(lambda db: db.execute(query, (spec, server)).fetchall())
        return [json.loads(tool) for (tool,) in found]

    @override
    def accept_change(self, spec: str, change: DefinitionChange) -> None:
        self.database.run(lambda db: _accept(db, spec, change))

    @override
    def open_changes(self) -> list[tuple[str, DefinitionChange]]:
        return self.database.run(_open_changes)

    @override
    def session_note(self, session: str) -> SessionNote:
        return self._try(lambda db: _note_of(db, session), SessionNote())

    @override
    def note_session(self, session: str, until: float, change: NoteChange) -> SessionNote | None:
        note = self._try(lambda db: _note(db, session, until, change), None)
        if note is not None:
            if self._noted % SWEPT_NOTES == 0:
                self._try(_sweep_notes, None)
            self._noted += 1
        return note

    @override
    def changed_notes(self, seconds: float) -> Mapping[str, SessionNote] | None:
        query = _CHANGED_NOTES.encode()
        found: Any = self._try(lambda db: db.execute(query, (seconds,)).fetchall(), None)
        return None if found is None else {session: note_in(*row) for session, *row in found}

    @override
    def report(self, replica: str, report: str, seconds: float) -> Mapping[str, str] | None:
        found = self._try(lambda db: _report(db, replica, report, seconds), None)
        return None if found is None else {str(name): str(said) for name, said in found}

    @override
    def tasks(self, work: Callable[[TaskRows], T]) -> T:
        return self.database.run(lambda db: work(TaskRows(partial(_execute, db))))

    @override
    def close(self) -> None:
        self.database.close()

    def _try(self, work: "Callable[[Connection], T]", instead: T) -> T:
        try:
            done = self.database.run(work)
        except StoreUnreadable as error:
            if not self._lost:  # once, until it is back
                logger.warning("%s; nothing is remembered until it can", error)
            self._lost = True
            return instead
        if self._lost:
            logger.warning("%s: the state database can be used again", self.database.label)
        self._lost = False
        return done


def _sweep(db: "Connection") -> bool:
    """Delete definitions that are too old or too many, unless another host is doing so."""
    now = time.time()
    with db.transaction():
        row: Any = db.execute("SELECT pg_try_advisory_xact_lock(%s)", (lock_key("sweep"),)).fetchone()
        if row[0]:  # two at once could wait for each other
            db.execute(_EXPIRE, (now - rows.LASTS,))
            db.execute(_MAKE_ROOM, rows.room(now))
    return True


# -- notes about sessions: times of changes are the database's, since clocks of replicas differ -----------------------

_NOW = "extract(epoch FROM clock_timestamp())"
_NOTE = "SELECT ended, version, said FROM mcp_nursery.sessions WHERE session = %s AND until > %s"
_WRITE_NOTE = f"""
INSERT INTO mcp_nursery.sessions (session, at, until, ended, version, said) VALUES (%s, {_NOW}, %s, %s, %s, %s)
ON CONFLICT (session) DO UPDATE SET
    at = excluded.at, until = excluded.until, ended = excluded.ended, version = excluded.version, said = excluded.said
"""  # noqa: S608 - a function of the database
_CHANGED_NOTES = f"SELECT session, ended, version, said FROM mcp_nursery.sessions WHERE at > {_NOW} - %s"  # noqa: S608
_FORGET_NOTES = """
DELETE FROM mcp_nursery.sessions
WHERE session IN (SELECT session FROM mcp_nursery.sessions ORDER BY at DESC, session OFFSET %s)
"""


# -- tasks -----------------------------------------------------------------------------------------------------------

_NAMES: Final = {
    "tasks": "mcp_nursery.tasks",
    "now": _NOW,
    "alone": f"(SELECT pg_try_advisory_xact_lock({lock_key('sweep tasks')}))",
}
"""The names in statements of `TaskRows`: two hosts that delete at once could wait for each other."""


def _execute(db: "Connection", statement: str, values: Sequence[object]) -> Any:
    return db.execute(statement.format(**_NAMES).replace("?", "%s").encode(), values)


# -- reports of replicas ----------------------------------------------------------------------------------------------

_REPORT = f"""
INSERT INTO mcp_nursery.replicas (replica, at, report) VALUES (%s, {_NOW}, %s)
ON CONFLICT (replica) DO UPDATE SET at = excluded.at, report = excluded.report
"""  # noqa: S608 - a function of the database
_REPORTS = f"SELECT replica, report FROM mcp_nursery.replicas WHERE at > {_NOW} - %s ORDER BY replica LIMIT %s"  # noqa: S608
_FORGET_REPORTS = f"DELETE FROM mcp_nursery.replicas WHERE at < {_NOW} - %s"  # noqa: S608


def _report(db: "Connection", replica: str, report: str, seconds: float) -> list[Any]:
    with db.transaction():
        db.execute(_FORGET_REPORTS.encode(), (seconds,))
        db.execute(_REPORT.encode(), (replica, report))
    return db.execute(_REPORTS.encode(), (seconds, MOST_REPLICAS)).fetchall()


def _note_of(db: "Connection", session: str) -> SessionNote:
    row: Any = db.execute(_NOTE, (session, time.time())).fetchone()
    return SessionNote() if row is None else note_in(*row)


def _note(db: "Connection", session: str, until: float, change: NoteChange) -> SessionNote:
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key("session", session),))
        note = next_note(_note_of(db, session), change)
        db.execute(_WRITE_NOTE.encode(), (session, until, *note_columns(note)))
    return note


def _sweep_notes(db: "Connection") -> None:
    """Delete notes that are not needed any more, or too many, unless another host is doing so."""
    with db.transaction():
        row: Any = db.execute("SELECT pg_try_advisory_xact_lock(%s)", (lock_key("sweep notes"),)).fetchone()
        if row[0]:
            db.execute("DELETE FROM mcp_nursery.sessions WHERE until <= %s", (time.time(),))
            db.execute(_FORGET_NOTES, (MOST_NOTES,))


# -- pins -------------------------------------------------------------------------------------------------------------


def _pin(db: "Connection", server: str, spec: str, declared: Mapping[str, str]) -> Mapping[str, str]:
    known = _pins_of(db, server, spec, declared)
    if pins_after(declared, known, lambda: _room_taken(db, server, spec)):
        with db.transaction():
            _lock_pins(db, server, spec)
            known = _pins_of(db, server, spec, declared)  # looked at again: another host may have been quicker
            changed = pins_after(declared, known, lambda: _room_taken(db, server, spec))
            _write(db, server, spec, changed)
            known = {**known, **changed}
    return {tool: pin.text if pin.text == declared[tool] else check_pinned(pin.text) for tool, pin in known.items()}


def _accept(db: "Connection", spec: str, change: DefinitionChange) -> None:
    with db.transaction():
        _lock_pins(db, change.server, spec)
        known = _pins_of(db, change.server, spec, [change.tool])
        pin = known.get(change.tool, Pin(change.before))
        check_pinned(pin.text)
        _write(db, change.server, spec, {change.tool: pin.accepted(change.after)})


def _lock_pins(db: "Connection", server: str, spec: str) -> None:
    """Hold the pins of one server until the end of the transaction."""
    db.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key("pins", server, spec),))


def _key(server: str, spec: str, tool: str) -> str:
    """The key of a pin: names are as long as a server likes, and an index takes none of more than 2,700 bytes."""
    return sha256(json.dumps([server, spec, tool]).encode()).hexdigest()


def _pins_of(db: "Connection", server: str, spec: str, tools: Iterable[str]) -> dict[str, Pin]:
    names = {_key(server, spec, tool): tool for tool in tools}
    query = "SELECT key, text, differs FROM mcp_nursery.pinned WHERE key = ANY(%s)"
    found: Any = db.execute(query, (list(names),)).fetchall()
    return {names[key]: Pin(text, differs) for key, text, differs in found}


def _write(db: "Connection", server: str, spec: str, pins: Mapping[str, Pin]) -> None:
    # Names are JSON in ASCII: they may hold what no other encoding can.
    columns = (
        [_key(server, spec, tool) for tool in pins],
        [json.dumps(tool) for tool in pins],
        [pin.text for pin in pins.values()],
        [pin.differs for pin in pins.values()],
    )
    if pins:
        db.execute(_PIN, (server, spec, time.time(), *columns))


def _room_taken(db: "Connection", server: str, spec: str) -> Room:
    row: Any = db.execute(_ROOM, (spec, server)).fetchone()
    return Room(*map(int, row))


def _open_changes(db: "Connection") -> list[tuple[str, DefinitionChange]]:
    found: Any = db.execute(_OPEN_CHANGES).fetchall()
    return [pinned_change(*row) for row in found if not means_the_same(row[3], row[4])]
