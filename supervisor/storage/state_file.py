"""The SQLite file that outlasts a run: its owner, its format, and how it is opened.

It holds the agreements of a user. A program that can write or replace it can agree in the user's place; and a database
of another program must not get our tables. So both are checked before anything is written.

Versions live beside each other: two applications of a user may bring two. Without a new format a version may only add
tables, and columns that need no value; other versions leave alone what they do not know. A format that cannot be shared
has a file with a name of its own, which begins with the content of the file of the format before, and leaves that as it
is.
"""

import json
import os
import sqlite3
import stat
import time
from collections.abc import Collection, Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, cast

from ..tools.pins import Pin, UnusablePins, repin
from .task_rows import COLUMNS

APPLICATION: Final = 0x6D63706E
"""`mcpn`: the application id that marks the file as ours."""
FORMAT: Final = 6
"""The present format. Format 1 had no pins, format 2 those of a server in one row; neither had the application id. Up
to format 3 an era did not say whether a server had answered. Up to format 4 no definitions were cached, and up to
format 5 those of one version alone, in a file that versions shared by name."""
_SIGNED: Final = 3
"""The first format with the application id."""
BUSY: Final = 1.0
"""Seconds to wait for another process that is writing."""

_TABLES: Final[Mapping[str, str]] = {
    "eras": "server TEXT NOT NULL, spec TEXT NOT NULL, era TEXT NOT NULL, at REAL NOT NULL,"
    " answered INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (server, spec)",
    "processes": "marker TEXT PRIMARY KEY, pid INTEGER, started INTEGER,"
    " machine TEXT NOT NULL, host INTEGER NOT NULL, host_started INTEGER NOT NULL, at REAL NOT NULL",
    "consents": "digest TEXT PRIMARY KEY, server TEXT NOT NULL, file TEXT NOT NULL, at REAL NOT NULL",
    "pinned": "server TEXT NOT NULL, spec TEXT NOT NULL, tool TEXT NOT NULL, text TEXT NOT NULL, differs TEXT,"
    " at REAL NOT NULL, PRIMARY KEY (server, spec, tool)",
    "definitions": "server TEXT NOT NULL, spec TEXT NOT NULL, format INTEGER NOT NULL, at REAL NOT NULL,"
    " declared BLOB NOT NULL, PRIMARY KEY (server, spec, format)",
}
_LATER: Final[Mapping[str, str]] = {
    "sessions": "session TEXT PRIMARY KEY, at REAL NOT NULL, until REAL NOT NULL, ended INTEGER NOT NULL,"
    " version INTEGER NOT NULL, said TEXT NOT NULL",
    "tasks": COLUMNS,
}
"""The tables that came later: of notes about sessions, and of tasks. Versions of the same format that do not know them
do them no harm."""
_COLUMNS: Final = {
    "eras": ("server", "spec", "era", "at", "answered"),
    "processes": ("marker", "pid", "started", "machine", "host", "host_started", "at"),
    "consents": ("digest", "server", "file", "at"),
    "pinned": ("server", "spec", "tool", "text", "differs", "at"),
    "definitions": ("server", "spec", "format", "at", "declared"),
    "pins": ("server", "spec", "pins", "at"),
}
_OLD_ERAS: Final = _COLUMNS["eras"][:4]
_ANSWERED_FORMAT: Final = 4
"""The first format whose eras say whether a server has answered."""
_OF_FORMAT: Final = {
    0: frozenset[str](),
    1: frozenset({"eras", "processes", "consents"}),
    2: frozenset({"eras", "processes", "consents", "pins"}),
    3: frozenset(_TABLES) - {"definitions"},
    4: frozenset(_TABLES) - {"definitions"},
    5: frozenset(_TABLES),
    FORMAT: frozenset(_TABLES),
}

INSERT_PINS: Final = """
INSERT OR REPLACE INTO pinned (server, spec, tool, text, differs, at)
SELECT ?, ?, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), ? FROM json_each(?)
"""
"""The pins of a server and spec, with the time, from a JSON array of (name, text, difference or null): one statement,
because Python's own thread may have to wait for its turn after each."""


ADVICE: Final = "repair it, or move it away to begin anew"
"""The advice to a user whose file is damaged."""


class UnusableFile(Exception):
    """The error of a file or folder that cannot be used, with advice."""

    def __init__(self, problem: str, advice: str = ADVICE) -> None:
        super().__init__(problem)
        self.advice = advice


def own_file(path: Path) -> Path:
    """The file of this format beside that of another: `state-6.sqlite3` beside `state.sqlite3`."""
    return path.with_name(f"{path.stem}-{FORMAT}{path.suffix}")


def file_for(path: Path) -> Path:
    """The file that is opened if this file is named: the same, or a file beside it if this file has another format of
    ours.

    Raises:
        UnusableFile: It or its folder is not this user's alone, or it is another program's.
        OSError, sqlite3.Error: It cannot be read.
    """
    if not os.path.lexists(path):
        return path
    make_folder(path.parent)
    check_file(path)
    _check_journals(path)
    with closing(_connect(path)) as db:
        return path if _format_of(db) in (0, FORMAT) else own_file(path)


def open_state_file(path: Path, former: Path | None = None) -> sqlite3.Connection:
    """Open a file, after making it if it is not there. A new one begins with the content of `former`, a file of an
    earlier format, if there is one; that file stays as it is. The caller ensures that one thread at a time uses it.

    Raises:
        UnusableFile: It or its folder is not this user's alone, or it is another program's.
        OSError, sqlite3.Error: It cannot be opened.
    """
    make_folder(path.parent)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        check_file(path)
    _check_journals(path)
    db = _connect(path)
    try:
        if (found := _format_of(db)) not in (0, FORMAT):
            raise UnusableFile(f"it is of format {found}", "name another file")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        if not found:
            _begin(db, former)
        there = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in _LATER.keys() - there:
            db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({_LATER[table]})")
    except BaseException:
        db.close()
        raise
    return db


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY, isolation_level=None, check_same_thread=False)
    db.text_factory = _text_or_bytes
    return db


def _check_journals(path: Path) -> None:
    for end in ("-wal", "-shm", "-journal"):
        check_file(path.with_name(path.name + end), said=f"its {end[1:]} file: ")


def _text_or_bytes(data: bytes) -> str | bytes:
    """The text, or the bytes if they are no text. These are like any value of a wrong type: the row is wrong, not the
    whole file."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


@contextmanager
def whole(db: sqlite3.Connection) -> Generator[None, None, None]:
    """A transaction: all of the block is done or nothing; a block within another one joins it."""
    if db.in_transaction:
        yield
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # some errors have undone it already
            db.execute("ROLLBACK")
        raise


# -- whose it is ------------------------------------------------------------------------------------------------------


def make_folder(folder: Path) -> None:
    """Make a folder that is this user's alone, unless it is there.

    Raises:
        UnusableFile: Others may put files there.
        OSError: It cannot be made.
    """
    missing = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
    there = Path(os.path.realpath(missing[-1].parent if missing else folder))
    for each in (there, *there.parents):
        _check_folder(each, nearest=each == there and not missing)
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def _check_folder(folder: Path, *, nearest: bool) -> None:
    """Refuse a folder in which another user could put another file in the place of ours.

    In a folder like `/tmp` no user can move another's file. But any user could put a file next to ours that SQLite
    takes for its journal.
    """
    found = folder.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise UnusableFile(f"its folder {folder} belongs to another user", "name a file in a folder of your own")
    others = found.st_mode & stat.S_IWOTH
    # Where every user has a group of their own, folders are made writable by that group.
    group = found.st_mode & stat.S_IWGRP and found.st_uid != 0 and found.st_gid != os.getegid()
    if (others or group) and (nearest or not found.st_mode & stat.S_ISVTX):
        raise UnusableFile(f"others may write in its folder {folder}", f"chmod go-w {folder}, or name another file")


def check_file(path: Path, said: str = "") -> None:
    """Refuse a file that is not this user's alone; a missing one is fine.

    Raises:
        UnusableFile: It is not this user's alone.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UnusableFile(f"{said}it is not a file of this user's alone (mode 0600)")


# -- what it is -------------------------------------------------------------------------------------------------------


def _format_of(db: sqlite3.Connection) -> int:
    """The format of a file, 0 if it is empty. A file of a newer format may hold anything.

    Raises:
        UnusableFile: It has no format of ours.
    """
    with _one_moment(db):  # another process may be making it
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
        tables = frozenset(name for (name,) in db.execute(names).fetchall())
        if application == APPLICATION and version > FORMAT:
            return cast("int", version)
        ours = application == (APPLICATION if version >= _SIGNED else 0)
        if ours and _has_our_tables(tables, version) and _has_our_columns(db, version):
            return cast("int", version)
    if application == APPLICATION:
        raise UnusableFile("its tables are damaged")
    raise UnusableFile("it is another program's database", "name another file")


@contextmanager
def _one_moment(db: sqlite3.Connection) -> Generator[None, None, None]:
    if db.in_transaction:
        yield
        return
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("ROLLBACK")


def _has_our_tables(tables: Collection[str], version: int) -> bool:
    wanted = _OF_FORMAT.get(version)
    return wanted is not None and (wanted <= set(tables) if version == FORMAT else wanted == tables)


def _has_our_columns(db: sqlite3.Connection, version: int) -> bool:
    columns = "SELECT name FROM pragma_table_info(?)"
    wanted = _COLUMNS if version >= _ANSWERED_FORMAT else {**_COLUMNS, "eras": _OLD_ERAS}
    found = {each: tuple(name for (name,) in db.execute(columns, (each,))) for each in _OF_FORMAT[version]}
    return all(names[: len(wanted[each])] == wanted[each] for each, names in found.items())


# -- how it begins ----------------------------------------------------------------------------------------------------


def _begin(db: sqlite3.Connection, former: Path | None) -> None:
    """Make its tables, with the content of the former file."""
    with _former(former) as earlier, whole(db):
        if _format_of(db) == FORMAT:  # another process was quicker
            return
        for table, columns in _TABLES.items():
            db.execute(f"CREATE TABLE {table} ({columns})")
        if earlier is not None:
            _take_over(db, earlier)
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {FORMAT}")


@contextmanager
def _former(path: Path | None) -> Generator[sqlite3.Connection | None, None, None]:
    """The former file, if there is one that this version can read."""
    if path is None or not os.path.lexists(path):
        yield None
        return
    try:
        check_file(path)
        _check_journals(path)
        with closing(_connect(path)) as db:
            yield db if _format_of(db) < FORMAT else None
    except UnusableFile as error:
        raise UnusableFile(f"it begins with what {path} says: {error}", error.advice) from None
    except UnusablePins as error:
        raise UnusableFile(f"it begins with what {path} says: {error}") from None


def _take_over(db: sqlite3.Connection, earlier: sqlite3.Connection) -> None:
    found = _format_of(earlier)
    for table in sorted(_OF_FORMAT[found] & _TABLES.keys()):
        names = _OLD_ERAS if table == "eras" and found < _ANSWERED_FORMAT else _COLUMNS[table]
        places = ", ".join("?" * len(names))
        rows = earlier.execute(f"SELECT {', '.join(names)} FROM {table}")  # noqa: S608 - names of ours
        db.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})", rows)  # noqa: S608
    if 0 < found < _ANSWERED_FORMAT:  # only a modern server is sure to have said what it is
        db.execute("UPDATE eras SET answered = 1 WHERE era = 'modern'")
    if "pins" in _OF_FORMAT[found]:
        for server, spec, pins in earlier.execute("SELECT server, spec, pins FROM pins"):
            db.execute(INSERT_PINS, (server, spec, time.time(), pin_rows(_pins_in(pins))))


def _pins_in(row: object) -> Mapping[str, Pin]:
    """The pins of a server, as format 2 had them: two objects, what was first used and what differed, by name."""
    try:
        first, differing = (dict[str, Any](each) for each in json.loads(cast("str", row)))
        return {
            tool: Pin(repin(text), repin(differing[tool]) if tool in differing else None)
            for tool, text in first.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise UnusablePins from None


def pin_rows(pins: Mapping[str, Pin]) -> str:
    """The pins as `INSERT_PINS` takes them. Names are JSON in ASCII: they may hold what no other encoding can."""
    return json.dumps([[json.dumps(tool), pin.text, pin.differs] for tool, pin in pins.items()])
