"""Q1, second half: a host killed with SIGKILL leaves its servers, and the next supervisor on its state file ends them.

Nobody else's process is ever touched: not one that bears a number that was reused, not one of a host that lives.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from functools import partial

import pytest
import trio

from mcp_nursery.actors.process import tree
from mcp_nursery.actors.process.inherited_marks import VARIABLE
from mcp_nursery.actors.process.orphans import Orphan, end_orphans, this_host
from mcp_nursery.actors.process.table import ProcessId, identify
from mcp_nursery.supervisor import open_supervisor

from ..lab import PROGRAMS
from ..lab.processes import eventually, is_alive, lab, supervised
from ..lab.timely import in_time, timely

pytestmark = pytest.mark.slow

HOST = PROGRAMS / "killed_host.py"
STUBBORN = ("ignore=eof,term",)


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state.sqlite3"


@contextmanager
def host(state, *flags, name="lab"):
    """A host process and the pids of its server, of a relative in its group and of one in a session of its own.

    Only while the server lives can the one in its group be told; one that does not ignore `eof` ends with its host.
    """
    running = subprocess.Popen([sys.executable, HOST, state, name, *flags], stdout=subprocess.PIPE)
    pids = []
    try:
        pids += json.loads(running.stdout.readline())
        yield running, pids
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def stranger(**options):
    """A process that has nothing to do with anybody here."""
    code = "import signal\nprint(flush=True)\nwhile True: signal.pause()"
    running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True, **options)
    try:
        running.stdout.readline()
        yield running
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


def rows(state):
    db = sqlite3.connect(state)
    try:
        return db.execute("SELECT marker, pid, started, host, host_started FROM processes").fetchall()
    finally:
        db.close()


@pytest.mark.parametrize("flags", [(), STUBBORN], ids=["polite", "stubborn"])
@timely
async def test_a_killed_hosts_servers_are_ended_by_the_next(state, flags, tmp_path):
    """Q1: those who ignore the end of their input and SIGTERM, one that called setsid, and the group's others."""
    journal = tmp_path / "journal"
    journal.unlink(missing_ok=True)
    with host(state, "ignore=eof", *flags, f"journal={journal}") as (running, pids):
        assert len(rows(state)) == 1
        running.kill()
        running.wait()
        await eventually(lambda: "eof" in journal.read_text())
        assert all(map(is_alive, pids))
        began = time.monotonic()
        async with supervised(lab(), state=state):
            await eventually(lambda: not any(map(is_alive, pids)))
            in_time(time.monotonic() - began, 8 if flags else 4)
            assert journal.read_text().count("term") == 1  # told once, and given the time to clean up
            await eventually(lambda: len(rows(state)) == 1)  # its own
        assert rows(state) == []


@timely
async def test_a_short_run_leaves_none_of_them_either(state):
    """Q1: who is still there when the block is left is killed then."""
    with host(state, *STUBBORN) as (running, pids):
        running.kill()
        running.wait()
        async with supervised(lab(), state=state):
            await eventually(lambda: len(rows(state)) == 2)
            left = time.monotonic()
        taken = time.monotonic() - left
        assert not any(map(is_alive, pids))
        assert rows(state) == []
        in_time(taken, 1.5)


async def test_they_are_ended_although_nothing_is_started_yet(state):
    """Q1, G7: all servers of the next supervisor are lazy."""
    with host(state, "ignore=eof") as (running, pids):
        running.kill()
        running.wait()
        with trio.fail_after(60):
            async with open_supervisor([lab(lazy=True)], state=state):
                await eventually(lambda: not any(map(is_alive, pids)))


async def test_a_host_that_was_killed_before_it_knew_the_pid(state):
    """Q1: the mark was written down before the process was started."""
    with host(state, *STUBBORN) as (running, pids):
        running.kill()
        running.wait()
        with closing(sqlite3.connect(state)) as db, db:
            db.execute("UPDATE processes SET pid = NULL, started = NULL")
        async with supervised(lab(), state=state):
            # The one in the group without a mark of its own is out of reach; all others are found.
            await eventually(lambda: not is_alive(pids[0]) and not is_alive(pids[2]))


async def test_a_live_hosts_servers_are_left_alone(state):
    """Q1: two hosts share a state file; neither ends what is the other's, whichever comes first."""
    with host(state, name="theirs") as (running, pids):
        for _ in range(2):
            async with supervised(lab(), state=state):
                assert len(rows(state)) == 2
                assert all(map(is_alive, pids))
        assert all(map(is_alive, pids))
        assert running.poll() is None
        assert len(rows(state)) == 1


async def test_a_reused_number_is_never_touched(state):
    """Q1: a row whose process has another start time by now says nothing of whoever bears its number."""
    with stranger() as living, stranger(env={**os.environ, VARIABLE: "another"}) as marked:
        with host(state) as (running, _):
            running.kill()
            running.wait()
        (row,) = rows(state)
        with closing(sqlite3.connect(state)) as db, db:
            for number, each in enumerate((living, marked)):
                forged = (
                    f"forged {number}",
                    each.pid,
                    identify(each.pid).started - 1,
                    this_host().machine,
                    row[3],
                    row[4],
                )
                db.execute("INSERT INTO processes VALUES (?, ?, ?, ?, ?, ?, 0)", forged)
        async with supervised(lab(), state=state):
            await eventually(lambda: len(rows(state)) == 1)  # all three are dealt with
            assert is_alive(living.pid)
            assert is_alive(marked.pid)
        assert living.poll() is marked.poll() is None


LEADER = """
import subprocess, sys
member = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], stdin=subprocess.DEVNULL)
print(member.pid, flush=True)
input()
"""


async def test_a_group_whose_leader_is_gone_is_nobodys():
    """Q1: once the leader is gone its number may be anybody's group: only the mark proves who belongs to it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, [sys.executable, "-c", LEADER], start_new_session=True, **pipes)
        leader = await nursery.start(start)
        member = int(await leader.stdout.receive_some())
        orphan = Orphan("nobody's", 0, ProcessId(leader.pid, identify(leader.pid).started))
        await leader.stdin.send_all(b"\n")
        await leader.wait()
        assert os.getpgid(member) == leader.pid
        assert await end_orphans([orphan], trio.CancelScope())
        assert is_alive(member)
        os.kill(member, signal.SIGKILL)
        await leader.stdin.aclose()
        await leader.stdout.aclose()


async def test_we_do_not_end_ourselves(state, monkeypatch):
    """Q1: a host that is itself a server whose host was killed leaves its own tree to others."""
    with host(state, "ignore=eof") as (running, pids):
        running.kill()
        running.wait()
        ((marker, *_),) = rows(state)
        monkeypatch.setenv(VARIABLE, marker)
        async with supervised(lab(), state=state):
            assert sorted(row[0] == marker for row in rows(state)) == [False, True]
        assert all(map(is_alive, pids))
        monkeypatch.delenv(VARIABLE)
        async with supervised(lab(), state=state):
            await eventually(lambda: not any(map(is_alive, pids)))


async def test_nothing_is_looked_for_where_nothing_is_started(state):
    """A supervisor without servers that outlast it touches no disk."""
    async with open_supervisor([], state=state):
        pass
    assert not state.exists()


async def test_a_broken_state_file_is_in_nobodys_way(state, caplog):
    """P7, Q1: eras and processes are as good as lost; servers run."""
    state.write_bytes(b"garbage" * 1000)
    state.chmod(0o600)
    async with supervised(lab(), state=state) as supervisor:
        await supervisor.call_tool("echo", server="lab")
    told = [record.getMessage() for record in caplog.records]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert told[0].endswith("nothing is remembered in this run")
    assert told[1].startswith("it is not known whether tools have changed: ")
    assert state.read_bytes() == b"garbage" * 1000


@timely
async def test_a_locked_state_file_is_in_nobodys_way(state):
    """P7, Q1: another process that writes for long holds up a start for seconds at most, and no caller."""
    async with supervised(lab(), state=state):
        pass
    db = sqlite3.connect(state, isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    try:
        async with supervised(lab("other"), state=state) as supervisor:
            began = time.monotonic()
            await supervisor.call_tool("echo", server="other")
            in_time(time.monotonic() - began, 1)
    finally:
        db.close()


async def test_the_era_found_is_remembered(state, journal):
    """P7, Q23: a server that dies of the probe is started once more for it, in all runs together."""
    flags = {"probe": "exit"}
    for _ in range(3):
        async with supervised(lab(journal=journal, flags=flags), state=state):
            pass
    assert journal.count("start") == 4  # the probe cost one extra spawn, ever
    assert journal.count("initialize") == 3


async def test_who_is_ended_after_the_hosts_time_is_struck_out_all_the_same(state, monkeypatch, caplog):
    """Q1: it was ended before the block was left, so that no next run has to look for it."""

    async def late_look(since, after=None):
        await trio.sleep(0.3)
        return await look(since, after)

    look = tree.look
    async with supervised(lab(flags={"ignore": "eof,term"}), state=state, shutdown_timeout=0.5):
        await eventually(lambda: len(rows(state)) == 1)
        monkeypatch.setattr(tree, "look", late_look)
    assert rows(state) == []
    assert [record.getMessage() for record in caplog.records] == ["still closing after 0.5 s: lab"]
