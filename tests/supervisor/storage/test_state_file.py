"""State files that are not ours, folders that are not ours alone, and rows that nobody of ours wrote."""

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from attrs import evolve

from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.process.orphans import HostProcess, this_host
from mcp_nursery.actors.process.table import ProcessId
from mcp_nursery.supervisor.storage import state_file
from mcp_nursery.supervisor.storage.sqlite import SqliteStore
from mcp_nursery.supervisor.storage.state_file import UnusableFile, open_state_file
from mcp_nursery.supervisor.storage.store import EraNote, StoreUnreadable

from .samples import CHANGE, CHANGED, DECLARED, REQUEST


def refused(store, caplog) -> str:
    """The one line that everybody gets: what is as good as lost is told in the log, what is not is refused."""
    with pytest.raises(StoreUnreadable) as caught:
        store.agree(REQUEST)
    readers = (store.open_changes, lambda: store.agreed("digest")) if os.path.lexists(store.path) else ()
    for ask in (lambda: store.pin("s", "d", DECLARED), *readers):
        with pytest.raises(StoreUnreadable) as again:
            ask()
        assert str(again.value) == str(caught.value)
    assert store.era("s", "d") is None
    assert [record.getMessage() for record in caplog.records] == [f"{caught.value}; nothing is remembered in this run"]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def make(file, script):
    file.parent.mkdir(0o700, exist_ok=True)
    file.touch(0o600)
    with closing(sqlite3.connect(file)) as other, other:
        other.executescript(script)


FOREIGN = {
    "tables": "CREATE TABLE bookmarks (url TEXT);",
    "tables, write-ahead": "PRAGMA journal_mode = WAL; CREATE TABLE bookmarks (url TEXT);",
    "a version": "PRAGMA user_version = 7; CREATE TABLE bookmarks (url TEXT);",
    "a version of ours": "PRAGMA user_version = 2; CREATE TABLE bookmarks (url TEXT);",
    "no tables": "PRAGMA user_version = 1;",
    "an application": "PRAGMA application_id = 252006674;",
    "a table of our name": "PRAGMA user_version = 1; CREATE TABLE eras (a); CREATE TABLE processes (a);"
    "CREATE TABLE consents (a);",
}


@pytest.mark.parametrize("script", FOREIGN.values(), ids=FOREIGN)
def test_a_database_of_another_program(store, file, script, caplog):
    """It is refused, and not a byte of it changes."""
    make(file, script)
    before = file.read_bytes()
    said = refused(store, caplog)
    assert said == (f"{file}: the state file cannot be used: it is another program's database; name another file")
    assert file.read_bytes() == before
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def all_of(path):
    """All that a file says, and not only in its tables."""
    with closing(sqlite3.connect(path)) as other:
        return [*other.execute("PRAGMA user_version"), *other.iterdump()]


def test_a_file_of_a_newer_version_stays_as_it_is(store, file):
    """Two applications of a user bring two versions: each has its own file, and all that it has said there."""
    store.agree(REQUEST)
    store.close()
    make(file, "PRAGMA user_version = 99; ALTER TABLE consents RENAME TO agreements; CREATE TABLE new (x);")
    theirs = all_of(file)
    for _ in range(2):
        assert not store.agreed("other")
        store.agree(evolve(REQUEST, digest="mine"))
        assert store.pin("s", "d", DECLARED) == DECLARED
        store.remember_definitions("s", "d", b"tools {}\n", time.time())
        store.close()
        with closing(SqliteStore(file)) as again:
            assert again.agreed("mine")
            assert again.pin("s", "d", CHANGED) == DECLARED
            assert again.definitions("s", "d", most=9) == b"tools {}\n"
            assert again.path == file.with_name("state-6.sqlite3")
    assert all_of(file) == theirs


def test_a_version_that_adds_something_shares_the_file(store, file):
    """What it has added is left alone: tables, columns, and cached definitions in its own format."""
    store.agree(REQUEST)
    store.remember_definitions("s", "d", b"mine", time.time())
    store.close()
    added = ["ALTER TABLE consents ADD COLUMN why TEXT", "CREATE TABLE votes (x)", "INSERT INTO votes VALUES (7)"]
    added += [f"ALTER TABLE {table} ADD COLUMN more TEXT" for table in ("eras", "processes", "pinned", "definitions")]
    added += ["UPDATE consents SET why = 'asked'", "INSERT INTO definitions VALUES ('s', 'd', 2, 9e9, x'ff', 'more')"]
    make(file, ";".join(added))
    theirs = [line for line in all_of(file) if "votes" in line or "'asked'" in line or "X'FF'" in line]
    assert len(theirs) == 4
    assert store.agreed("digest")
    store.agree(evolve(REQUEST, digest="mine"))
    store.remember_era("s", "d", Era.MODERN, answered=True)
    store.add_process("m", this_host())
    store.pin("s", "d", DECLARED)
    store.remember_definitions("s", "d", b"mine, later", time.time())
    assert store.definitions("s", "d", most=99) == b"mine, later"
    assert store.path == file
    store.close()
    assert set(theirs) <= set(all_of(file))


def test_an_empty_file_is_as_good_as_none(store, file):
    """As `mktemp` makes one."""
    make(file, "")
    store.agree(REQUEST)
    assert store.agreed("digest")


@pytest.mark.parametrize(
    ("mode", "why"),
    [(0o777, "others may write in its folder"), (0o702, "others may write"), (0o1777, "others may write")],
)
def test_a_folder_that_others_may_write_in(store, file, mode, why, caplog):
    """They could put another file in the place of ours, or one that SQLite takes for its journal."""
    file.parent.mkdir()
    file.parent.chmod(mode)
    said = refused(store, caplog)
    assert f"{why}" in said
    assert said.endswith(f"chmod go-w {file.parent}, or name another file")
    assert list(file.parent.iterdir()) == []


def test_a_folder_above_that_others_may_write_in(store, file, caplog):
    """They could put another folder in its place, but for one like `/tmp`, where nobody moves what is another's."""
    file.parent.mkdir(0o700)
    file.parent.parent.chmod(0o777)
    assert "others may write in its folder" in refused(store, caplog)
    file.parent.parent.chmod(0o1777)
    store.agree(REQUEST)


def test_folders_that_are_made_are_the_users_alone(tmp_path):
    """Whatever the user's mask."""
    before = os.umask(0)
    try:
        with closing(SqliteStore(tmp_path / "a" / "b" / "state")) as store:
            store.agree(REQUEST)
    finally:
        os.umask(before)
    assert {(tmp_path / each).stat().st_mode & 0o777 for each in ("a", "a/b")} == {0o700}


@pytest.fixture
def another_user(monkeypatch):
    """We are somebody else than who made the files of this test, and not root."""
    monkeypatch.setattr(state_file.os, "geteuid", lambda: 4711)
    monkeypatch.setattr(state_file.os, "getegid", lambda: 4711)


@pytest.mark.usefixtures("as_root")
def test_a_folder_of_a_group(tmp_path, another_user):
    """Where everybody has a group of their own, it may write; any other may not."""
    for folder, mode, group in (("own", 0o770, 4711), ("read", 0o750, 12), ("write", 0o770, 12)):
        (tmp_path / folder).mkdir()
        os.chown(tmp_path / folder, 4711, group)
        (tmp_path / folder).chmod(mode)
    open_state_file(tmp_path / "own" / "state").close()
    open_state_file(tmp_path / "read" / "state").close()
    with pytest.raises(UnusableFile, match=f"others may write in its folder {tmp_path / 'write'}"):
        open_state_file(tmp_path / "write" / "state")


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("what", ["folder", "folder above", "file"])
def test_what_belongs_to_another_user(store, file, what, caplog):
    make(file, "")
    os.chown({"file": file, "folder": file.parent, "folder above": file.parent.parent}[what], 4711, -1)
    said = refused(store, caplog)
    assert ("not a file of this user's alone" if what == "file" else "belongs to another user") in said


@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("how", ["a link", "open to others", "a folder"])
def test_what_stands_where_the_file_and_its_journals_belong(store, file, end, how, caplog):
    """SQLite would take it for its own."""
    make(file, "")
    place = Path(f"{file}{end}")
    elsewhere = file.parent / "elsewhere"
    elsewhere.touch(0o600)
    place.unlink(missing_ok=True)
    match how:
        case "a link":
            place.symlink_to(elsewhere)
        case "a folder":
            place.mkdir()
        case _:
            place.touch()
            place.chmod(0o644)
    said = refused(store, caplog)
    assert said.endswith("it is not a file of this user's alone (mode 0600); repair it, or move it away to begin anew")
    assert (f"its {end[1:]} file: it is" in said) is bool(end)
    assert elsewhere.read_bytes() == b""


def test_a_folder_that_is_a_link(tmp_path):
    """It leads to a folder of the user's own, or is refused as that is."""
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with closing(SqliteStore(tmp_path / "link" / "state")) as store:
        store.agree(REQUEST)
    (tmp_path / "real").chmod(0o777)
    with closing(SqliteStore(tmp_path / "link" / "state")) as store, pytest.raises(StoreUnreadable, match="real"):
        store.agreed("digest")


ODD = {
    "null": "NULL",
    "number": "17",
    "huge": "9223372036854775807",
    "float": "1e400",
    "text": "'stone'",
    "blob": "x'ff00'",
}
COLUMNS = [(table, column) for table, columns in state_file._COLUMNS.items() if table != "pins" for column in columns]


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=map(" ".join, COLUMNS))
def test_rows_that_nobody_of_ours_wrote(store, file, table, column, odd):
    """Of eras and processes they are as good as lost; of consents and pins they refuse; none is an error of ours."""
    me = this_host()
    dead = HostProcess(me.machine, me.pid, me.started - 1)
    store.remember_era("s", "d", Era.MODERN, answered=True)
    store.add_process("m", dead)
    store.name_process("m", ProcessId(4, 44))
    store.add_process("n", HostProcess(me.machine, me.pid, me.started - 2))
    store.agree(REQUEST)
    store.pin("s", "d", DECLARED)
    store.pin("s", "d", CHANGED)
    store.close()
    with closing(sqlite3.connect(file)) as other, other:
        try:
            other.execute(f"UPDATE {table} SET {column} = {odd} WHERE rowid = 1")
        except sqlite3.IntegrityError:
            return  # there can be no such row
    found = store.adopt_orphans(me, but=None)
    assert "n" in {orphan.marker for orphan in found}
    assert all(isinstance(part, int) for orphan in found if orphan.leader for part in (orphan.leader.pid, orphan.since))
    assert store.era("s", "d") in (None, EraNote(Era.MODERN))
    store.name_process("m", ProcessId(4, 44))
    store.forget_process("m")
    for ask in (
        lambda: store.agreed("digest") in (True, False),
        lambda: store.pin("s", "d", CHANGED)["add"] in (DECLARED["add"], CHANGED["add"]),
        lambda: all(change.fields and change.diff for _, change in store.open_changes()),
        lambda: store.accept_change("d", CHANGE) is None,
    ):
        with suppress(StoreUnreadable):
            assert ask()
    assert not (table == "consents" and column == "digest" and store.agreed("digest"))


def test_together_is_all_or_nothing(store, file):
    """What cannot be written down together was not done."""
    with closing(SqliteStore(file)) as other:
        with store.together():
            store.agree(REQUEST)
            store.pin("s", "d", DECLARED)
            assert not other.agreed("digest")
        assert other.agreed("digest")
        with pytest.raises(ZeroDivisionError):
            change_together(store, lambda: 1 / 0)
        assert other.open_changes() == []
        with pytest.raises(StoreUnreadable):  # as SQLite does by itself when the disk is full
            change_together(store, lambda: store._connection.execute("ROLLBACK"))
        assert other.open_changes() == []


def change_together(store, then):
    with store.together():
        store.pin("s", "d", CHANGED)
        then()


@pytest.mark.slow
def test_while_another_process_writes(store, file):
    """Who only reads is not held up by it, together or not; who writes is refused after a second, and says why."""
    store.agree(REQUEST)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with store.together():
            assert store.agreed("digest")
            with pytest.raises(StoreUnreadable, match="database is locked"):
                store.pin("s", "d", DECLARED)
        other.execute("COMMIT")
    assert store.pin("s", "d", DECLARED) == DECLARED


@pytest.mark.slow
@pytest.mark.parametrize("opened", [True, False])
def test_what_is_done_together_waits_once_for_another_process(store, file, opened):
    """Each job would wait for a second of its own, and each server starts after several of them."""
    store.agree(REQUEST)
    if not opened:
        store.close()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        if not opened:
            other.execute("PRAGMA locking_mode = EXCLUSIVE")  # nobody can even open it
        other.execute("BEGIN EXCLUSIVE")
        other.execute("DELETE FROM eras")
        began = time.monotonic()
        with store.together():
            for name in "abcdefgh":
                store.remember_era(name, "d", Era.MODERN, answered=True)
        assert time.monotonic() - began < 5
        other.execute("ROLLBACK")
    store.remember_era("a", "d", Era.MODERN, answered=True)
    assert store.era("a", "d") == EraNote(Era.MODERN)
