"""What the state file keeps, loses and refuses to be asked. L17 for what is in it."""

import json
import sqlite3
import stat
import subprocess
import sys
import time
from collections import UserDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import pytest
from attrs import evolve
from mcp_types import Tool as Definition

from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.process import orphans
from mcp_nursery.actors.process.orphans import HostProcess, Orphan, this_host
from mcp_nursery.actors.process.table import ProcessId, identify
from mcp_nursery.supervisor import HttpTransport, InProcessTransport, ServerSpec, StdioTransport
from mcp_nursery.supervisor.config import load_config
from mcp_nursery.supervisor.events import DefinitionChange
from mcp_nursery.supervisor.session_notes import SessionNote
from mcp_nursery.supervisor.spec import spec_digest
from mcp_nursery.supervisor.storage import postgres, sqlite, state_file
from mcp_nursery.supervisor.storage import store as store_module
from mcp_nursery.supervisor.storage.sqlite import SqliteStore
from mcp_nursery.supervisor.storage.store import DOUBT, EraNote, StoreUnreadable
from mcp_nursery.supervisor.testing import ScriptedServer
from mcp_nursery.supervisor.tools.pins import MOST_PINS, pinned_text

from .samples import CHANGE, CHANGED, DECLARED, REQUEST


def test_it_is_the_users_alone(store, file):
    """A folder and a file that nobody else can read, made when there is something to write down."""
    assert not store.agreed("x")
    assert not file.parent.exists()
    store.agree(REQUEST)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in file.parent.iterdir()} == {0o600}


def test_where_it_is(user_folders):
    assert SqliteStore().path == user_folders / "state" / "mcp-nursery" / "state-6.sqlite3"


def test_eras(any_store):
    """P7."""
    assert any_store.era("s", "d") is None
    any_store.remember_era("s", "d", Era.MODERN, answered=True)
    any_store.remember_era("s", "d", Era.HANDSHAKE, answered=True)
    any_store.remember_era("t", "d", Era.MODERN, answered=True)
    found = (any_store.era("s", "d"), any_store.era("t", "d"), any_store.era("s", "e"))
    assert found == (EraNote(Era.HANDSHAKE), EraNote(Era.MODERN), None)
    any_store.remember_era("s", "d", "2025-06-18", answered=True)
    assert any_store.era("s", "d") == EraNote("2025-06-18")


def test_an_era_that_silence_says_is_believed_for_a_day(any_store, monkeypatch):
    """P7: the moment in which it was asked may have been a slow one."""
    now = time.time()
    monkeypatch.setattr(sqlite.time, "time", lambda: now)
    any_store.remember_era("s", "d", Era.HANDSHAKE, answered=False)
    found = any_store.era("s", "d")
    assert (found.era, found.seconds) == (Era.HANDSHAKE, pytest.approx(DOUBT))
    if any_store.blocking:
        monkeypatch.setattr(sqlite.time, "time", lambda: now + DOUBT - 10)
        assert any_store.era("s", "d").seconds == pytest.approx(10)
        monkeypatch.setattr(sqlite.time, "time", lambda: now + DOUBT + 10)
        assert any_store.era("s", "d") is None


def test_an_old_era_is_asked_for_again(lasting, monkeypatch):
    """P7: after 30 days; the server may have been replaced long since."""
    lasting.remember_era("s", "d", Era.MODERN, answered=True)
    now = time.time()
    monkeypatch.setattr(sqlite.time, "time", lambda: now + 30 * 24 * 3600 - 10)
    assert lasting.era("s", "d") == EraNote(Era.MODERN)
    monkeypatch.setattr(sqlite.time, "time", lambda: now + 30 * 24 * 3600 + 10)
    assert lasting.era("s", "d") is None


def test_an_era_of_another_version_is_none(lasting, place):
    lasting.remember_era("s", "d", Era.MODERN, answered=True)
    place.do("UPDATE eras SET era = 'stone'")
    assert lasting.era("s", "d") is None


def test_consent(any_store):
    """K7."""
    assert not any_store.agreed("digest")
    any_store.agree(REQUEST)
    any_store.agree(REQUEST)
    assert any_store.agreed("digest")
    assert not any_store.agreed("other")


def test_pins(any_store):
    """The first use counts, for server and spec; what differs is noted until it is accepted."""
    assert any_store.open_changes() == []
    assert any_store.pin("s", "d", DECLARED) == DECLARED
    assert any_store.pin("s", "d", CHANGED) == DECLARED
    assert any_store.open_changes() == [("d", CHANGE)]
    assert any_store.pin("s", "e", CHANGED) == any_store.pin("t", "d", CHANGED) == CHANGED
    assert any_store.pin("s", "d", {"new": "{}"}) == {"new": "{}"}
    assert any_store.open_changes() == [("d", CHANGE)]
    any_store.accept_change("d", CHANGE)
    assert any_store.open_changes() == []
    assert any_store.pin("s", "d", DECLARED) == CHANGED
    assert any_store.open_changes() == [("d", DefinitionChange("s", "add", CHANGED["add"], DECLARED["add"]))]
    assert any_store.pin("s", "d", CHANGED) == CHANGED
    assert any_store.open_changes() == []
    assert sorted(any_store.pinned("s", "d")) == sorted([*DECLARED, "new"])
    assert any_store.pinned("s", "f") == []


@pytest.mark.slow
def test_a_server_that_renames_its_tools_for_ever(any_store):
    """What it had first is not forgotten for that: it would be the way to be rid of a pin."""
    any_store.pin("s", "d", DECLARED)
    many = {f"tool {number}": "{}" for number in range(MOST_PINS)}
    assert any_store.pin("s", "d", many) == dict(list(many.items())[: -len(DECLARED)])
    assert any_store.pin("s", "d", {**CHANGED, "new": "{}"}) == DECLARED
    assert any_store.open_changes() == [("d", CHANGE)]


def ended(note):
    return evolve(note, ended=True)


def subscribed(*uris):
    return lambda note: evolve(note, subscribed=note.subscribed | {*uris})


def test_notes_about_sessions(any_store):
    until = time.time() + 1000
    assert any_store.session_note("one") == SessionNote()
    assert any_store.note_session("one", until, subscribed("a://\0\ud800")).version == 1
    noted = any_store.note_session("one", until, lambda note: evolve(note, level="error"))
    assert noted == SessionNote(level="error", subscribed=frozenset(["a://\0\ud800"]), version=2)
    any_store.note_session("two", until, ended)
    assert any_store.session_note("one") == noted
    assert any_store.changed_notes(60) == {"one": noted, "two": SessionNote(ended=True, version=1)}
    assert any_store.changed_notes(0) == {}


def test_of_a_session_that_was_ended_nothing_more_is_noted(any_store):
    for change in (ended, subscribed("a://b")):
        any_store.note_session("one", time.time() + 1000, change)
    assert any_store.session_note("one") == SessionNote(ended=True, version=2)


def test_a_note_is_forgotten_when_it_is_not_needed_any_more(any_store):
    any_store.note_session("one", time.time() - 1, ended)
    assert any_store.session_note("one") == SessionNote()
    assert any_store.note_session("one", time.time() + 1000, subscribed("a://b")).version == 1


def test_the_oldest_of_too_many_notes_are_forgotten(any_store, monkeypatch):
    for module in (store_module, sqlite, postgres):
        monkeypatch.setattr(module, "MOST_NOTES", 2)
    for module in (sqlite, postgres):
        monkeypatch.setattr(module, "SWEPT_NOTES", 1)
    for name in ("one", "two", "three"):
        any_store.note_session(name, time.time() + 1000, ended)
    assert any_store.changed_notes(60).keys() == {"two", "three"}


def test_notes_outlast_a_run_and_two_hosts_change_one_together(place, monkeypatch):
    monkeypatch.setattr(state_file, "BUSY", 60)  # the disk of a machine that runs tests may be slow
    until = time.time() + 1000

    def change(name):
        with closing(place.open()) as store:
            return [store.note_session("one", until, subscribed(f"a://{name}{number}")) for number in range(10)]

    with ThreadPoolExecutor(2) as pool:
        assert all(map(all, pool.map(change, ("one", "other"))))
    with closing(place.open()) as store:
        note = store.session_note("one")
    assert (note.version, len(note.subscribed)) == (20, 20)


@pytest.mark.parametrize("said", ["", "{", "5", '["loud", []]', "[null]"])
def test_a_note_that_is_damaged_is_none(lasting, place, said):
    lasting.note_session("one", time.time() + 1000, ended)
    place.do("UPDATE sessions SET said = ?", said)
    assert lasting.session_note("one") == SessionNote()
    assert lasting.note_session("one", time.time() + 1000, subscribed("a://b")).subscribed == {"a://b"}


def test_pins_outlast_a_run(lasting, place):
    lasting.pin("s", "d", DECLARED)
    lasting.close()
    with closing(place.open()) as again:
        assert again.pin("s", "d", CHANGED) == DECLARED
    with closing(place.open()) as again:
        assert again.open_changes() == [("d", CHANGE)]


def test_looking_for_changes_makes_no_file(store, file):
    assert store.open_changes() == []
    assert not file.parent.exists()


def test_pins_that_are_damaged_are_none(lasting, place):
    """They refuse, and are not overwritten."""
    lasting.pin("s", "d", DECLARED)
    place.do("UPDATE pinned SET text = '[1]', differs = '{'")
    accept = partial(lasting.accept_change, "d", CHANGE)
    for ask in (lambda: lasting.pin("s", "d", DECLARED), lasting.open_changes, accept):
        with pytest.raises(StoreUnreadable, match="the pins in it are damaged"):
            ask()


class Overtaken(UserDict):
    """What a server declares to one host, while another is quicker to write down what it declared there."""

    def __init__(self, place):
        super().__init__(DECLARED)
        self._place = place

    def __iter__(self):
        if self._place is not None:
            quicker, self._place = self._place.open(), None
            quicker.pin("s", "d", CHANGED)
            quicker.close()
        return super().__iter__()


def test_hosts_that_use_a_server_for_the_first_time_at_once(lasting, place):
    """They agree on what it was: whoever writes first."""
    assert lasting.pin("s", "d", Overtaken(place)) == CHANGED
    assert lasting.open_changes() == [("d", DefinitionChange("s", "add", CHANGED["add"], DECLARED["add"]))]


def test_a_name_that_no_file_can_hold(lasting):
    """It is refused like everything that cannot be written down."""
    assert lasting.era("\ud800", "d") is None
    with pytest.raises(StoreUnreadable):
        lasting.pin("\ud800", "d", DECLARED)


def test_names_are_as_long_as_a_server_likes(any_store):
    """One that no index could take does not keep its others from being compared."""
    declared = {**DECLARED, "x" * 100_000: "{}", "\0": "{}"}
    assert any_store.pin("s", "d", declared) == declared
    assert any_store.pin("s", "d", {**declared, "\0": '{"title":"x"}'}) == declared


FORMER = """
CREATE TABLE eras (
    server TEXT NOT NULL, spec TEXT NOT NULL, era TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (server, spec)
);
CREATE TABLE processes (
    marker TEXT PRIMARY KEY, pid INTEGER, started INTEGER,
    machine TEXT NOT NULL, host INTEGER NOT NULL, host_started INTEGER NOT NULL, at REAL NOT NULL
);
CREATE TABLE consents (
    digest TEXT PRIMARY KEY, server TEXT NOT NULL, file TEXT NOT NULL, at REAL NOT NULL
);
INSERT INTO consents VALUES ('digest', 's', '/p/.mcp.json', 1.5);
PRAGMA user_version = 1;
"""
FORMER_PINS = """
CREATE TABLE pins (
    server TEXT NOT NULL, spec TEXT NOT NULL, pins TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (server, spec)
);
PRAGMA user_version = 2;
"""
LONG = "x" * 100_000


def former(file, *pins):
    """A file as the first release wrote it."""
    file.parent.mkdir(0o700)
    file.touch(0o600)
    with closing(sqlite3.connect(file)) as other, other:
        other.executescript("PRAGMA journal_mode = WAL;" + FORMER + (FORMER_PINS if pins else ""))
        for each in pins:
            other.execute("INSERT INTO pins VALUES ('s', 'd', ?, 1.5)", (each,))


def test_a_file_of_the_first_format_gets_pins(store, file):
    """What it held stays."""
    former(file)
    assert store.agreed("digest")
    assert store.pin("s", "d", DECLARED) == DECLARED


def test_a_file_of_the_second_format_keeps_its_pins(store, file):
    """Each in a row of its own now, and what is long as it is compared now: nothing has changed for that."""
    first = {**DECLARED, "long": pinned_text(Definition(name="long", description="", input_schema={}))}
    raw = {**first, "long": json.dumps({"name": "long", "description": LONG, "inputSchema": {}}, sort_keys=True)}
    former(file, json.dumps([raw, {"add": CHANGED["add"]}], sort_keys=True))
    now = {**DECLARED, "long": pinned_text(Definition(name="long", description=LONG, input_schema={}))}
    assert store.open_changes() == [("d", CHANGE)]
    assert store.pin("s", "d", now) == now
    assert LONG not in now["long"]
    assert store.agreed("digest")
    assert store.open_changes() == []


THIRD = """
UPDATE eras SET at = ROUND(at);
ALTER TABLE eras RENAME TO newer;
CREATE TABLE eras (
    server TEXT NOT NULL, spec TEXT NOT NULL, era TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (server, spec)
);
INSERT INTO eras SELECT server, spec, era, at FROM newer;
DROP TABLE newer;
DROP TABLE definitions;
DROP TABLE sessions;
DROP TABLE tasks;
PRAGMA user_version = 3;
"""
"""Makes a file one of the third format."""
FOURTH = "DROP TABLE definitions; DROP TABLE sessions; DROP TABLE tasks; PRAGMA user_version = 4;"
"""Makes a file one of the fourth."""


def test_a_file_of_the_third_format_keeps_all_and_doubts_what_silence_may_have_said(store, file, monkeypatch):
    """K7: consents and pins stay. P7: a `handshake` of then may be of one slow moment."""
    store.agree(REQUEST)
    store.pin("s", "d", DECLARED)
    store.pin("s", "d", CHANGED)
    store.remember_era("s", "d", Era.HANDSHAKE, answered=True)
    store.remember_era("t", "d", Era.MODERN, answered=True)
    store.close()
    with closing(sqlite3.connect(file)) as other, other:
        other.executescript(THIRD)
    assert store.agreed("digest")
    assert store.open_changes() == [("d", CHANGE)]
    assert store.era("t", "d") == EraNote(Era.MODERN)
    assert store.era("s", "d").seconds == pytest.approx(DOUBT, abs=60)
    now = time.time()
    monkeypatch.setattr(sqlite.time, "time", lambda: now + DOUBT + 10)
    assert store.era("s", "d") is None
    assert store.era("t", "d") == EraNote(Era.MODERN)


def test_a_file_of_the_fourth_format_keeps_all_and_gets_a_cache(store, file):
    """K7, P7, G5: what an era was found from is known since that format."""
    store.agree(REQUEST)
    store.pin("s", "d", DECLARED)
    store.remember_era("s", "d", Era.HANDSHAKE, answered=True)
    store.remember_era("t", "d", Era.MODERN, answered=False)
    store.close()
    with closing(sqlite3.connect(file)) as other, other:
        other.executescript(FOURTH)
    assert store.agreed("digest")
    assert store.pin("s", "d", DECLARED) == DECLARED
    assert store.era("s", "d") == EraNote(Era.HANDSHAKE)
    assert store.era("t", "d").seconds == pytest.approx(DOUBT, abs=60)
    assert store.definitions("s", "d", most=9) == b""
    store.remember_definitions("s", "d", b"tools {}\n", time.time())
    assert store.definitions("s", "d", most=9) == b"tools {}\n"


FIFTH = """
DROP TABLE sessions;
DROP TABLE tasks;
DROP TABLE definitions;
CREATE TABLE definitions (
    server TEXT NOT NULL, spec TEXT NOT NULL, format INTEGER NOT NULL, at REAL NOT NULL, declared BLOB NOT NULL,
    PRIMARY KEY (server, spec)
);
INSERT INTO definitions VALUES ('s', 'd', 1, 9e9, CAST('tools {}' AS BLOB));
PRAGMA user_version = 5;
"""
"""Makes a file one of the fifth."""


def test_an_earlier_version_keeps_its_file(file):
    """Two applications of a user bring two versions. The later begins with what the earlier knows, and from then on
    each has a file of its own."""
    with closing(SqliteStore(file)) as store:
        store.agree(REQUEST)
        store.pin("s", "d", DECLARED)
        store.remember_era("s", "d", Era.MODERN, answered=True)
        store.add_process("m", dead_host())
    with closing(sqlite3.connect(file)) as earlier:
        earlier.executescript(FIFTH)
    before = file.read_bytes()
    for _ in range(2):
        with closing(SqliteStore(file)) as store:
            assert store.agreed("digest")
            assert store.pin("s", "d", CHANGED) == DECLARED
            assert store.era("s", "d") == EraNote(Era.MODERN)
            assert store.definitions("s", "d", most=9) == b"tools {}"
            store.adopt_orphans(this_host(), but=None)
            store.forget_process("m")
            store.remember_era("t", "d", Era.MODERN, answered=True)
            assert store.path == file.with_name("state-6.sqlite3")
    assert file.read_bytes() == before


def test_what_an_earlier_version_knew_is_not_lost_if_it_cannot_be_read(user_folders):
    """K7: nothing is taken as used for the first time that may have been used before."""
    folder = user_folders / "state" / "mcp-nursery"
    file = folder / "state.sqlite3"
    folder.parent.mkdir(0o700, exist_ok=True)
    former(file, "damaged")
    with closing(SqliteStore()) as store:
        problem = f"{folder}/state-6.sqlite3: the state file cannot be used: it begins with what {file} says: "
        with pytest.raises(StoreUnreadable, match=problem + "the pins in it are damaged"):
            store.pin("s", "d", DECLARED)
        with closing(sqlite3.connect(file)) as earlier, earlier:
            earlier.execute("UPDATE pins SET pins = ?", (json.dumps([DECLARED, {}]),))
        assert store.pin("s", "d", CHANGED) == DECLARED


@pytest.mark.parametrize("damaged", ["", "{}", "[1, 2]", '[{"a": 1}, {}]', '[{"a": "x"}, {}]', '[{"a": "{}"}, [1]]', 7])
def test_a_file_of_the_second_format_whose_pins_are_damaged(store, file, damaged):
    """It refuses, and stays as it is."""
    former(file, damaged)
    with pytest.raises(StoreUnreadable, match="the pins in it are damaged; repair it, or move it away to begin anew"):
        store.pin("s", "d", DECLARED)
    with closing(sqlite3.connect(file)) as other, other:
        assert other.execute("SELECT pins FROM pins").fetchall() == [(str(damaged),)]


def test_what_is_kept_between_runs(store, file):
    """K7, P7; and L17: of an entry, its hash alone."""
    store.agree(REQUEST)
    store.remember_era("s", "d", Era.MODERN, answered=True)
    store.close()
    with closing(SqliteStore(file)) as again:
        assert again.agreed("digest")
        assert again.era("s", "d") == EraNote(Era.MODERN)
    assert b"hunter2" not in b"".join(each.read_bytes() for each in file.parent.iterdir())


def damage(file, how):
    match how:
        case "garbage":
            file.write_bytes(b"garbage" * 1000)
        case "directory":
            file.mkdir()
        case "readable by others":
            file.chmod(0o644)
        case "tables":
            with closing(sqlite3.connect(file)) as other, other:
                for table in ("eras", "processes", "consents", "pinned"):
                    other.execute(f"ALTER TABLE {table} RENAME TO lost_{table}")


@pytest.mark.parametrize("how", ["garbage", "directory", "readable by others", "tables"])
def test_what_cannot_be_read(store, file, how, caplog):
    """K7, P7: eras and processes are empty, never an error, and told of once; consent is refused, not overwritten."""
    store.agree(REQUEST)
    store.remember_era("s", "d", Era.MODERN, answered=True)
    store.close()
    if how in ("garbage", "directory"):
        file.unlink()
    if how == "garbage":
        file.touch(0o600)
    damage(file, how)
    before = None if how == "directory" else file.read_bytes()
    host = HostProcess("here", 1, 1)
    assert store.era("s", "d") is None
    store.remember_era("s", "d", Era.MODERN, answered=True)
    store.add_process("m", host)
    store.name_process("m", ProcessId(2, 2))
    store.forget_process("m")
    assert store.adopt_orphans(host, but=None) == []
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{file}: the state file cannot be used: ")
    for ask in (
        lambda: store.agreed("digest"),
        lambda: store.agree(REQUEST),
        lambda: store.pin("s", "d", DECLARED),
        lambda: store.accept_change("d", CHANGE),
        store.open_changes,
    ):
        with pytest.raises(StoreUnreadable, match=r"the state file cannot be used: .*; repair it"):
            ask()
    assert before == (None if how == "directory" else file.read_bytes())


def test_a_folder_that_cannot_be_made(tmp_path):
    """K7: no consent without a place to write it down."""
    (tmp_path / "file").touch()
    store = SqliteStore(tmp_path / "file" / "state.sqlite3")
    assert store.era("s", "d") is None
    with pytest.raises(StoreUnreadable, match=r"Not a directory|File exists"):
        store.agree(REQUEST)


def dead_host():
    """A host that is gone, in the words of the ledger."""
    done = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = identify(done.pid).started
    done.communicate(b"\n")
    return HostProcess(this_host().machine, done.pid, started)


def test_the_ledger(store, file):
    """Q1: only trees of hosts of this machine that are gone, each for one adopter; a live host's are not touched."""
    me, dead = this_host(), dead_host()
    assert me.alive
    assert not dead.alive
    store.add_process("mine", me)
    store.add_process("struck out", dead)
    store.forget_process("struck out")
    store.add_process("unnamed", dead)
    store.add_process("named", dead)
    store.name_process("named", ProcessId(4, 44))
    store.add_process("kept", dead)
    store.add_process("elsewhere", HostProcess("other boot", dead.pid, dead.started))
    reused = HostProcess(me.machine, me.pid, me.started - 1)
    store.add_process("of a host whose number I bear", reused)
    other = SqliteStore(file)
    adopted = other.adopt_orphans(me, but="kept")
    assert set(adopted) == {
        Orphan("unnamed", dead.started, None),
        Orphan("named", dead.started, ProcessId(4, 44)),
        Orphan("of a host whose number I bear", reused.started, None),
    }
    assert store.adopt_orphans(me, but="kept") == []
    assert [orphan.marker for orphan in store.adopt_orphans(me, but=None)] == ["kept"]
    other.close()


def test_processes_of_other_machines_are_forgotten_some_day(store, monkeypatch):
    """Q1: their hosts cannot be asked after."""
    store.add_process("m", HostProcess("other boot", 1, 1))
    now = time.time()
    monkeypatch.setattr(sqlite.time, "time", lambda: now + 31 * 24 * 3600)
    store.adopt_orphans(this_host(), but=None)
    assert store._connection.execute("SELECT count(*) FROM processes").fetchone() == (0,)


def test_no_machine_no_host(monkeypatch):
    """Q1: where processes cannot be told for certain, none is written down."""
    monkeypatch.setattr(orphans, "this_machine", lambda: "")
    assert this_host() is None


WRITER = """
import sys
from mcp_nursery.actors.messages import Era
from mcp_nursery.actors.process.orphans import HostProcess
from mcp_nursery.supervisor.config import TrustRequest
from mcp_nursery.supervisor.storage.sqlite import SqliteStore

path, number = sys.argv[1:]
store = SqliteStore(path)
for turn in range(20):
    store.remember_era(number, str(turn), Era.MODERN, answered=True)
    store.add_process(f"{number} {turn}", HostProcess("m", 1, 1))
    store.agree(TrustRequest("s", "f", (), {}, f"{number} {turn}"))
    assert store.era(number, str(turn)).era is Era.MODERN
    assert store.agreed(f"{number} {turn}")
store.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("begins_with", ["nothing", "the first format"])
def test_several_processes_at_once(file, begins_with):
    """All of it is one file; nobody loses anything, also while it is being made, of an earlier one too."""
    if begins_with == "the first format":
        former(file)
        before = file.read_bytes()
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, file, str(number)], stderr=subprocess.PIPE, text=True)
        for number in range(6)
    ]
    assert [writer.communicate(timeout=120)[1] for writer in writers] == [""] * 6
    assert [writer.returncode for writer in writers] == [0] * 6
    store = SqliteStore(file)
    assert all(store.agreed(f"{number} {turn}") for number in range(6) for turn in range(20))
    if begins_with == "the first format":
        assert store.agreed("digest")
        assert file.read_bytes() == before
    store.close()


def test_the_digest_of_a_server_with_variables_outlasts_versions(tmp_path, monkeypatch):
    """P7: what state files of the first release know of a server stays known."""
    monkeypatch.chdir(tmp_path)
    entry = {"command": "x", "args": ["${A:-b}"], "env": {"B": "${B:-c}"}}
    (tmp_path / "cw-digest.json").write_text(json.dumps({"mcpServers": {"s": entry}}))
    (spec,) = load_config("cw-digest.json").servers
    assert spec_digest(spec) == "6677041f67b2c50d3adec788896642b6df66f06b64cb3a0072841136c37ebbce"


def test_digests():
    """P7, G5: of how a server is reached, whatever else is said of it; what lasts no longer than we do has none."""
    spec = ServerSpec("s", StdioTransport("x", ["a"], env={"A": "hunter2"}, cwd="/tmp"))
    digest = spec_digest(spec)
    assert digest == spec_digest(
        ServerSpec("s", StdioTransport("x", ["a"], env={"A": "hunter2"}, cwd="/tmp"), lazy=True)
    )
    assert len(digest) == 64
    assert digest != spec_digest(ServerSpec("s", StdioTransport("x", ["a"], env={"A": "hunter3"}, cwd="/tmp")))
    inheriting = ServerSpec("s", StdioTransport("x", ["a"], env={"A": "hunter2"}, cwd="/tmp", inherit_env=True))
    assert digest != spec_digest(inheriting)
    computed = [HttpTransport("https://x/mcp", headers=function) for function in (dict, lambda: {"A": "1"})]
    first, second = (spec_digest(ServerSpec("s", transport)) for transport in computed)
    assert first == second  # computed anew at each connect, they are no part of what lasts
    assert first != spec_digest(ServerSpec("s", HttpTransport("https://y/mcp", headers=dict)))
    assert spec_digest(ServerSpec("s", InProcessTransport(object()))) is None
    assert spec_digest(ServerSpec("s", ScriptedServer().transport)) is None
    assert spec_digest(ServerSpec("s", SimpleNamespace(kind="own", connector=None))) is None
