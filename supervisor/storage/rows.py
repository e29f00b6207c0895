"""The rows of stores that have rules of their own: eras, pins, notes about sessions, cached definitions, and
processes."""

import json
import math
import sqlite3
import time
from typing import Any, Final, cast

from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.process.orphans import HostProcess, Orphan
from mcp_nursery.actors.process.table import ProcessId
from mcp_nursery.actors.protocol import HANDSHAKE_PROTOCOL_VERSIONS, LEVELS
from mcp_nursery.actors.records import define

from ..session_notes import SessionNote
from ..tools.pins import DefinitionChange, UnusablePins, check_pinned
from .state_file import whole
from .store import DIGEST, DOUBT, MOST_LISTS, EraNote

# -- eras and pins: each is checked like the words of a server --------------------------------------------------------

_ERA_MEMORY: Final = 30 * 24 * 3600.0
"""Seconds after which an era is asked for again."""


def era_in(era: Any, answered: Any, at: Any) -> EraNote | None:
    """The era in a row; None if no version of ours can have written it."""
    if era not in {*Era, *HANDSHAKE_PROTOCOL_VERSIONS} or answered not in (0, 1) or not isinstance(at, float):
        return None
    age = time.time() - at
    seconds = math.inf if answered else min(DOUBT - age, DOUBT)  # a clock that was wrong is believed no longer
    known = Era(era) if era in set(Era) else era
    return EraNote(known, seconds) if age < _ERA_MEMORY and seconds > 0 else None


def pinned_change(
    server: object, spec: object, tool: object, text: object, differs: object
) -> tuple[str, DefinitionChange]:
    """The change in a row of pins, with the digest of its server's spec.

    Raises:
        UnusablePins: No version of ours can have written it.
    """
    return _text(spec), DefinitionChange(_text(server), _name_in(tool), check_pinned(text), check_pinned(differs))


def _text(column: object) -> str:
    if isinstance(column, str):
        return column
    raise UnusablePins


def _name_in(column: object) -> str:
    try:
        if isinstance(column, str) and isinstance(name := json.loads(column), str):
            return name
    except ValueError:
        pass
    raise UnusablePins


# -- notes about sessions ----------------------------------------------------------------------------------------------

SWEPT_NOTES: Final = 256
"""Changes of notes by one host between two sweeps of those that are not needed any more."""


def note_columns(note: SessionNote) -> tuple[bool, int, str]:
    """The columns of a note: `ended`, `version`, `said`."""
    return note.ended, note.version, json.dumps([note.level, sorted(note.subscribed)])


def note_in(ended: object, version: object, said: object) -> SessionNote:
    """The note in a row; one without a change if no version of ours can have written it."""
    try:
        level, subscribed = cast("list[Any]", json.loads(_text(said)))
        uris = frozenset(cast("list[Any]", subscribed))
    except (ValueError, TypeError, UnusablePins):
        return SessionNote()
    fits = isinstance(version, int) and ended in (0, 1) and (level is None or level in LEVELS)
    if fits and all(isinstance(uri, str) for uri in uris):
        return SessionNote(bool(ended), level, uris, cast("int", version))
    return SessionNote()


# -- definitions: several hosts write them, and what was declared last stays -------------------------------------------

ROW_FORMAT: Final = 1
"""The format of `declared`; rows of another are another version's, and are left alone as long as they last."""
LASTS: Final = 30 * 24 * 3600.0
"""Seconds for which cached definitions are offered since a server gave them."""
MOST_CACHED: Final = 64 * 2**20
"""Bytes of all cached definitions together; beyond that the oldest go."""

_SELECT = """
SELECT declared FROM definitions
WHERE server = ? AND spec = ? AND format = ? AND length(declared) <= ? AND typeof(at) = 'real' AND at > ?
"""
_WRITE = """
INSERT INTO definitions (server, spec, format, at, declared) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (server, spec, format) DO UPDATE SET at = excluded.at, declared = excluded.declared
WHERE excluded.at >= definitions.at OR definitions.at > ?
"""
"""The query. A row from the future was written by a wrong clock: anything is newer."""
_EXPIRE = "DELETE FROM definitions WHERE at <= ?"
_MAKE_ROOM = """
DELETE FROM definitions WHERE rowid IN (
    SELECT rowid FROM (
        SELECT rowid, sum(length(declared)) OVER (ORDER BY at > :now, at DESC, rowid) AS total,
            row_number() OVER (
                PARTITION BY server, substr(spec, 1, :digest) ORDER BY at > :now, at DESC, rowid
            ) AS lists
        FROM definitions
    )
    WHERE total > :most OR lists > :lists
)
"""
"""Rows from the future go first, however many there are, so that a new row always finds room."""
_SWEPT_EVERY = 3600.0
"""Most seconds between two sweeps, if anything is written."""
_SWEEP_SHARE = 64
"""The divisor of `MOST_CACHED` that gives the bytes after which a sweep follows."""


def cached_definitions(db: sqlite3.Connection, server: str, spec: str, most: int) -> bytes:
    """See `Store.definitions`."""
    most = min(most, MOST_CACHED)  # as much as SQLite can count, too
    row: Any = db.execute(_SELECT, (server, spec, ROW_FORMAT, most, time.time() - LASTS)).fetchone()
    return row[0] if row is not None and isinstance(row[0], bytes) else b""


@define
class Sweeps:
    """The times at which one host deletes rows that are too old or too many. That reads all rows: with each write, a
    thousand servers that start would take seconds."""

    _swept_at: float = -math.inf
    _written: int = 0
    """Bytes written since then."""

    def due(self, size: int) -> bool:
        """True if rows are to be swept when `size` bytes are written now."""
        self._written += size
        return self._written * _SWEEP_SHARE > MOST_CACHED or not 0 <= time.time() - self._swept_at < _SWEPT_EVERY

    def done(self) -> None:
        """Record that all rows were swept now."""
        self._swept_at, self._written = time.time(), 0


def room(now: float) -> dict[str, float]:
    """The parameters of the query by which a store keeps no more definitions than these, at this time."""
    return {"now": now, "most": MOST_CACHED, "digest": DIGEST, "lists": MOST_LISTS}


def write_definitions(
    db: sqlite3.Connection, sweeps: Sweeps, server: str, spec: str, declared: bytes, *, at: float
) -> None:
    """See `Store.remember_definitions`."""
    now = time.time()
    with whole(db):
        db.execute(_WRITE, (server, spec, ROW_FORMAT, at, declared, now))
        if sweeps.due(len(declared)):
            db.execute(_EXPIRE, (now - LASTS,))
            db.execute(_MAKE_ROOM, room(now))
            sweeps.done()


# -- processes ---------------------------------------------------------------------------------------------------------
#
# Rows are acted on by signals, so that each is checked like the words of a server: one that no version of ours can have
# written counts as lost, and is left as it is.

_PROCESS_MEMORY: Final = 30 * 24 * 3600.0
"""Seconds after which the processes of other machines are forgotten."""
_GREATEST_PID: Final = 2**31 - 1
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
    db.execute(_FORGET, (host.machine, time.time() - _PROCESS_MEMORY))
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
    # A process without a mark has an empty one, which belongs to no tree.
    if not isinstance(marker, str) or not marker:
        return None
    if (pid, started) == (None, None):
        return Orphan(marker, since, None)
    return Orphan(marker, since, ProcessId(pid, started)) if _is_process(pid, started) else None


def _is_process(pid: Any, started: Any) -> bool:
    return isinstance(pid, int) and isinstance(started, int) and 0 < pid <= _GREATEST_PID and started > 0
