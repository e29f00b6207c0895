"""The rows of the definition cache, in the state file. Several hosts write them: what was declared last stays."""

import math
import sqlite3
import time
from typing import Any, Final

from attrs import define

from .state_file import whole

FORMAT: Final = 1
"""Of what is in `declared`; rows of another are another version's, and are left alone as long as they last."""
LASTS: Final = 30 * 24 * 3600.0
"""Seconds for which cached definitions are offered since a server gave them."""
MOST_CACHED: Final = 64 * 2**20
"""Bytes of all cached definitions together; beyond that the oldest go."""

_READ = """
SELECT declared FROM definitions
WHERE server = ? AND spec = ? AND format = ? AND length(declared) <= ? AND typeof(at) = 'real' AND at > ?
"""
_WRITE = """
INSERT INTO definitions (server, spec, format, at, declared) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (server, spec, format) DO UPDATE SET at = excluded.at, declared = excluded.declared
WHERE excluded.at >= definitions.at OR definitions.at > ?
"""
"""A row of the future was written by a clock that went wrong: anything is newer."""
_EXPIRE = "DELETE FROM definitions WHERE at <= ?"
_MAKE_ROOM = """
DELETE FROM definitions WHERE rowid IN (
    SELECT rowid FROM (
        SELECT rowid, sum(length(declared)) OVER (ORDER BY at > ?, at DESC, rowid) AS total FROM definitions
    )
    WHERE total > ?
)
"""
"""Those of the future first: however many there are, what is written now has room."""
_SWEPT_EVERY = 3600.0
"""Seconds between two sweeps at most, where anything is written."""
_SHARE = 64
"""A sweep follows when this part of what may be cached was written."""


def cached_definitions(db: sqlite3.Connection, server: str, spec: str, most: int) -> bytes:
    """See `Store.definitions`."""
    most = min(most, MOST_CACHED)  # as much as SQLite can count, too
    row: Any = db.execute(_READ, (server, spec, FORMAT, most, time.time() - LASTS)).fetchone()
    return row[0] if row is not None and isinstance(row[0], bytes) else b""


@define
class RowWriter:
    """Writes rows for one host, and throws out now and then what is too old or too much. To look for that, all rows are
    looked at: with each write, a thousand servers that start would take seconds."""

    _swept_at: float = -math.inf
    _written: int = 0
    """Bytes, since then."""

    def write(self, db: sqlite3.Connection, server: str, spec: str, declared: bytes, at: float) -> None:
        """See `Store.remember_definitions`."""
        now = time.time()
        self._written += len(declared)
        with whole(db):
            db.execute(_WRITE, (server, spec, FORMAT, at, declared, now))
            if self._written * _SHARE > MOST_CACHED or not 0 <= now - self._swept_at < _SWEPT_EVERY:
                db.execute(_EXPIRE, (now - LASTS,))
                db.execute(_MAKE_ROOM, (now, MOST_CACHED))
                self._swept_at, self._written = now, 0
