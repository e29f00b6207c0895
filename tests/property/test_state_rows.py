"""K7, P7, Q1: whatever stands in the rows of a state file, a supervisor opens, and no row is believed that is wrong."""

import math
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.process.inherited_marks import VARIABLE
from mcp_nursery.actors.process.orphans import HostProcess, this_host
from mcp_nursery.actors.process.table import read_table
from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.spec import spec_digest
from mcp_nursery.supervisor.storage.sqlite import SqliteStore
from mcp_nursery.supervisor.storage.state_file import _COLUMNS, _TABLES
from mcp_nursery.supervisor.storage.store import DOUBT, EraNote, StoreUnreadable
from mcp_nursery.supervisor.testing import ScriptedServer

from ..lab.specs import SERVERS, Named, nothing
from ..supervisor.storage.samples import CHANGE, CHANGED, DECLARED, REQUEST

ME = this_host()
SPEC = ServerSpec("s", Named("x"))
DIGEST = spec_digest(SPEC)
NOW = time.time()

# No number of a process that can be alive here, and none of those that mean all of a user's.
numbers = st.sampled_from([-(2**63), -(2**62), -2, 2**22 + 1, 2**31, 2**62, 2**63 - 1])
texts = st.one_of(
    st.sampled_from(["", "m", "s", DIGEST, "modern", "handshake", "{}", '{"description":[1]}', "[]", '"add"', "null"]),
    st.just('{"a":' * 300 + "1" + "}" * 300),
    st.text(max_size=5),
)
values = st.one_of(
    st.none(),
    numbers,
    st.integers(0, 5),
    st.floats(allow_nan=False),
    st.sampled_from([NOW, NOW + 1e9, math.inf, -math.inf]),
    texts,
    st.binary(max_size=5),
    st.binary(min_size=1, max_size=5).map(lambda data: ("text", data)),  # a text that need not be one
)
usual = {
    "server": st.just("s"),
    "spec": st.just(DIGEST),
    "era": st.sampled_from([*Era]).map(lambda era: era.value),
    "answered": st.booleans().map(int),
    "at": st.just(NOW),
    "tool": st.just('"add"'),
    "text": st.just(DECLARED["add"]),
    "differs": st.just(CHANGED["add"]),
    "digest": st.just(REQUEST.digest),
    "machine": st.just(ME.machine if ME else "m"),
    "format": st.just(1),
    "host": numbers,
}


def row_of(table):
    """A row of which some is as we write it, so that it is found."""
    columns = {name: st.one_of(usual.get(name, values), values) for name in _COLUMNS[table]}
    return st.tuples(st.just(table), st.fixed_dictionaries(columns))


rows = st.lists(st.sampled_from(sorted(_TABLES)).flatmap(row_of), max_size=6)


def process(**said):
    usual = {"marker": "m", "pid": None, "started": None, "machine": ME and ME.machine, "host": 2**22 + 1}
    return [("processes", {**usual, "host_started": 1, "at": NOW, **said})]


def write(file, rows):
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        for table, row in rows:
            given = {name: value[1] if isinstance(value, tuple) else value for name, value in row.items()}
            places = [f"CAST(:{name} AS TEXT)" if isinstance(row[name], tuple) else f":{name}" for name in row]
            with suppress(sqlite3.IntegrityError):  # there can be no such row
                other.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join(places)})", given)


def opened(folder):
    file = Path(folder) / "own" / "state.sqlite3"
    with closing(SqliteStore(file)) as store:
        store.remember_era("other", "d", Era.MODERN, answered=True)
        store.add_process("good", HostProcess(ME.machine, ME.pid, ME.started - 1))
        store.remember_definitions("other", "d", b"tools {}\n", NOW)
    return file


@pytest.mark.slow
@pytest.mark.skipif(ME is None, reason="processes are written down on Linux alone")
@given(rows)
@example(process(host=2**62, host_started=0))
@example(process(marker=""))
@example(process(marker=("text", b"\xff")))
@example(process(pid=2**62, started=0))
@example([("eras", {"server": ("text", b"\xff"), "spec": "d", "era": "modern", "at": NOW, "answered": 1})])
@example([("pinned", {"server": "s", "spec": DIGEST, "tool": '"add"', "text": '{"a":[1]}', "differs": "{}", "at": 1})])
def test_a_wrong_row_is_lost_or_refuses_and_takes_no_other_with_it(rows):
    """Eras, processes and definitions are lost, consent and pins refuse; those of others are as they were."""
    with tempfile.TemporaryDirectory() as folder:
        file = opened(folder)
        write(file, rows)
        with closing(SqliteStore(file)) as store:
            era = store.era("s", DIGEST)
            assert era is None or (isinstance(era.era, Era) and (era.seconds == math.inf or 0 < era.seconds <= DOUBT))
            assert isinstance(store.definitions("s", DIGEST, most=2**20), bytes)
            orphans = store.adopt_orphans(ME, but=None)
            assert all(each.marker and isinstance(each.marker, str) and each.since > 0 for each in orphans)
            leaders = [each.leader for each in orphans if each.leader is not None]
            assert all(0 < each.pid < 2**31 and each.started > 0 for each in leaders)
            assert "good" in {each.marker for each in orphans}
            for ask in (
                lambda: store.agreed(REQUEST.digest) in (True, False),
                lambda: store.pin("s", DIGEST, DECLARED)["add"],
                lambda: all(
                    change.fields is not None and change.diff is not None for _, change in store.open_changes()
                ),
                lambda: store.accept_change(DIGEST, CHANGE) is None,
            ):
                with suppress(StoreUnreadable):
                    assert ask()
            if ("other", "d") not in {(row.get("server"), row.get("spec")) for _, row in rows}:
                assert store.era("other", "d") == EraNote(Era.MODERN)
                assert store.definitions("other", "d", most=99) == b"tools {}\n"


@pytest.mark.slow
@pytest.mark.skipif(ME is None, reason="processes are written down on Linux alone")
@given(rows)
@example(process(host=2**62, host_started=0))
def test_a_supervisor_opens_whatever_its_file_says(rows):
    """It connects its servers, whatever was said of them."""

    async def main():
        SERVERS["x"] = ScriptedServer(tools={"add": nothing})
        with trio.fail_after(60):
            async with open_supervisor([SPEC], state=file, gate=30) as supervisor:
                await supervisor.wait_connected("s")

    with tempfile.TemporaryDirectory() as folder:
        file = opened(folder)
        write(file, rows)
        trio.run(main)


@pytest.mark.skipif(ME is None, reason="processes are written down on Linux alone")
def test_an_empty_variable_is_no_mark():
    """Q1: the mark of a process that has none is no text that a row could have."""
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, env={VARIABLE: ""}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as unmarked:
        assert unmarked.stdout.readline() == b"\n"
        assert read_table(ME.started).marked("") == {}
        unmarked.communicate(b"\n")
