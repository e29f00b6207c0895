"""The rows of the definition cache, in the state file. Several hosts write them: what was declared last stays."""

import sqlite3
import time
from typing import Any, Final

from .state_file import whole

FORMAT: Final = 1
"""Of what is in `declared`; rows of another are as good as none."""
LASTS: Final = 30 * 24 * 3600.0
"""Seconds for which cached definitions are offered since a server gave them."""
MOST_CACHED: Final = 64 * 2**20
"""Bytes of all cached definitions together; beyond that the oldest go."""

_READ = """
SELECT declared FROM definitions WHERE server = ? AND spec = ? AND format = ? AND at > ? AND length(declared) <= ?
"""
_WRITE = """
INSERT INTO definitions VALUES (?, ?, ?, ?, ?)
ON CONFLICT (server, spec) DO UPDATE SET format = excluded.format, at = excluded.at, declared = excluded.declared
WHERE excluded.at >= definitions.at OR definitions.at > ?
"""
"""A row of the future was written by a clock that went wrong: anything is newer."""
_EXPIRE = "DELETE FROM definitions WHERE at <= ?"
_MAKE_ROOM = """
DELETE FROM definitions WHERE rowid IN (
    SELECT rowid FROM (SELECT rowid, sum(length(declared)) OVER (ORDER BY at DESC, rowid) AS total FROM definitions)
    WHERE total > ?
)
"""


def cached_definitions(db: sqlite3.Connection, server: str, spec: str, most: int) -> bytes:
    """See `Store.definitions`."""
    most = min(most, MOST_CACHED)  # as much as SQLite can count, too
    row: Any = db.execute(_READ, (server, spec, FORMAT, time.time() - LASTS, most)).fetchone()
    return row[0] if row is not None and isinstance(row[0], bytes) else b""


def cache_definitions(db: sqlite3.Connection, server: str, spec: str, declared: bytes, at: float) -> None:
    """See `Store.remember_definitions`."""
    now = time.time()
    with whole(db):
        db.execute(_WRITE, (server, spec, FORMAT, at, declared, now))
        db.execute(_EXPIRE, (now - LASTS,))
        db.execute(_MAKE_ROOM, (MOST_CACHED,))
