import logging
import os
import resource
import signal
import sys
import threading
import time

import psutil
import pytest
import trio
import trio.testing

from mcp_nursery.actors.process import inherited_marks, table, tree
from mcp_nursery.actors.process.orphans import LEDGER
from mcp_nursery.actors.process.table import identify
from mcp_nursery.actors.process.tree import LEAVING, Leaving, start_process

from ...lab.timely import Late, in_time, timely

linux = pytest.mark.skipif(sys.platform != "linux", reason="the mark is Linux's")

LONG = 20
"""A grace period that a busy child has no need of, and nobody waits for in vain."""


async def closed_in(opening):
    """Enter, read the first line, leave; the seconds the leaving took, the exit code and the line."""
    async with opening as stream:
        first = (await stream.read())[0]
        leaving = trio.current_time()
    return trio.current_time() - leaving, stream._tree.exit_code, first


# the close sequence


async def test_a_polite_child_exits_at_the_end_of_its_input(child):
    took, code, _ = await closed_in(child("polite", grace=LONG))
    assert code == 0
    assert took < LONG / 2


@timely
async def test_one_that_ignores_the_end_of_input_is_terminated_after_the_grace(child):
    took, code, _ = await closed_in(child("ignores_eof", grace=0.4))
    assert took >= 0.4
    in_time(took, 0.7)
    assert code == -signal.SIGTERM


@timely
async def test_one_that_ignores_sigterm_too_is_killed_after_a_second_grace(child):
    took, code, _ = await closed_in(child("ignores_all", grace=0.3))
    assert code == -signal.SIGKILL
    assert took >= 0.6
    in_time(took, 0.6 + 0.5)


@timely
async def test_without_grace_it_is_killed(child):
    took, code, _ = await closed_in(child("ignores_all", grace=0))
    assert code == -signal.SIGKILL
    in_time(took, 0.5)


@timely
async def test_each_process_gets_one_sigterm(child):
    async with child("counts_terms", grace=0.5) as stream:
        assert await stream.read() == [b"ready"]
        leaving = trio.current_time()
    in_time(trio.current_time() - leaving, 2 * 0.5)  # it was not killed in its cleaning
    assert stream._tree.exit_code == 0
    assert stream._tree.stderr.text == "term"


async def test_a_child_blocked_on_its_output_is_heard_out(child):
    async with child("talks_at_end", grace=LONG) as stream:
        assert await stream.read() == [b"ready"]
        stream.write_nowait([b"go"])
        leaving = trio.current_time()
    assert stream._tree.exit_code == 0
    assert trio.current_time() - leaving < LONG / 2


async def test_the_tail_has_what_nobody_pumped_yet():
    process = await start_process("sh", ("-c", "echo oops >&2"), env={}, cwd=None)
    await process.wait()
    assert process.stderr.text == "oops"
    await process.end(1)


# descendants

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a mark that nobody loses")
PLACES = ["in_group", "in_session", "elsewhere", pytest.param("unmarked", marks=linux_only)]


@pytest.mark.parametrize("place", PLACES)
async def test_a_grandchild_goes_with_a_polite_leader(child, gone, place):
    took, code, grandchild = await closed_in(child("parent", "sleeps", place, grace=LONG))
    assert code == 0
    assert gone(grandchild)
    assert took < LONG / 2


@pytest.mark.parametrize("place", PLACES)
@timely
async def test_a_grandchild_that_ignores_sigterm_is_killed(child, gone, place):
    took, _, grandchild = await closed_in(child("parent", "ignores_all", place, grace=0.3))
    assert gone(grandchild)
    assert took >= 0.3
    in_time(took, 0.3 + 0.5)


@pytest.mark.parametrize("place", PLACES)
async def test_a_grandchild_goes_though_the_leader_died_first(child, gone, place):
    async with child("dies_leaving", "sleeps", place, grace=LONG) as stream:
        grandchild = (await stream.read())[0]
        stream.write_nowait([b"go"])
        assert await stream.read() == []
        assert (await stream.loss()).exit_code == 0
        assert not gone(grandchild)
        leaving = trio.current_time()
    assert gone(grandchild)
    assert trio.current_time() - leaving < LONG / 2


@pytest.mark.slow
@pytest.mark.parametrize(("behaviour", "least"), [("sleeps", 0.6), ("ignores_all", 1.2)])
@timely
async def test_who_is_forked_during_the_termination_goes_too(child, gone, behaviour, least):
    async with child("forks_at_term", behaviour, grace=0.6) as stream:
        assert await stream.read() == [b"ready"]
        leaving = trio.current_time()
    took = trio.current_time() - leaving
    if stream._tree.exit_code == -signal.SIGKILL:
        raise Late("it was killed before it came to fork")
    assert stream._tree.exit_code == 0
    assert gone(stream._tree.stderr.text)
    assert took >= least
    in_time(took, least + 0.5)


async def test_a_tree_is_marked_in_the_thread_that_has_started_it(child, monkeypatch):
    """Q1: the loop may be busy, and what is forked before the mark has none."""
    marked_in = []

    def mark(pid, marker):
        marked_in.append(threading.current_thread())
        inherited_marks.mark(pid, marker)

    monkeypatch.setattr(tree, "mark", mark)
    async with child("polite"):
        assert marked_in[0] is not threading.main_thread()


@linux_only
@pytest.mark.parametrize(("behaviour", "grace"), [("sleeps", LONG), ("ignores_all", 0.3)])
async def test_a_daemon_goes_though_nothing_of_its_tree_is_left_on_it(child, gone, behaviour, grace):
    """Q1: a clean environment, a session of its own, and a parent that has exited."""
    took, code, daemon = await closed_in(child("parent_of_daemon", behaviour, grace=grace))
    assert code == 0
    assert gone(daemon)
    assert took < LONG / 2


# however the block is left


async def test_a_cancelled_block_ends_the_tree(child, gone):
    with trio.CancelScope() as scope:
        async with child("parent", "ignores_all", "elsewhere", grace=0.2) as stream:
            grandchild = (await stream.read())[0]
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert gone(stream.pid)
    assert gone(grandchild)


async def test_a_close_that_is_cancelled_midway_ends_the_tree(child, gone):
    with trio.CancelScope() as scope:
        async with child("ignores_all", grace=0.3) as stream:
            assert await stream.read() == [b"ready"]
            scope.deadline = trio.current_time() + 0.1
    assert gone(stream.pid)
    assert stream._tree.exit_code == -signal.SIGKILL


async def test_an_exception_of_the_block_comes_out_as_it_is(child, gone):
    with pytest.raises(KeyError, match="mine"):
        async with child("polite") as stream:
            raise KeyError("mine")
    assert gone(stream.pid)


async def test_a_cancelled_start_leaves_no_process(child):
    before = set(psutil.Process().children())
    with trio.CancelScope() as scope:
        scope.cancel()
        async with child("polite"):
            pytest.fail("started")
    assert {one for one in psutil.Process().children() if one not in before} == set()


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", [("ignores_all",), ("parent", "ignores_all", "elsewhere")], ids=["eof", "term"])
async def test_a_host_that_is_stopped_in_one_step_takes_the_others_all_the_same(child, gone, caplog, behaviour):
    """L11, Q1: a Ctrl-Z longer than the whole close takes nothing from those who are to be killed after it."""

    async def stop(at):
        await trio.sleep_until(at)
        time.sleep(1)  # noqa: ASYNC251 - nothing of this process runs meanwhile

    async with child(*behaviour, grace=0.1) as stream:
        last = (await stream.read())[0]
        trio.lowlevel.spawn_system_task(stop, trio.current_time() + 0.05)
    assert gone(stream.pid)
    assert last == b"ready" or gone(last)
    assert not caplog.records


# many


@pytest.mark.slow
@timely
async def test_twenty_stubborn_children_close_in_one_grace_period(child):
    async def one(opening, task_status=trio.TASK_STATUS_IGNORED):
        async with opening as stream:
            assert await stream.read() == [b"ready"]
            task_status.started()
            await leave.wait()

    leave = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            await nursery.start(one, child("ignores_all", grace=0.5))
        leave.set()
        leaving, busy = trio.current_time(), time.process_time()
    in_time(trio.current_time() - leaving, 2 * 0.5 + 1)
    in_time(time.process_time() - busy, 0.5)


@pytest.mark.slow
@timely
async def test_who_waited_for_its_turn_while_the_host_left_is_ended_with_the_others(child):
    """C: the last of a thousand is not two grace periods later than the first; half of each it has in any case."""
    leaving = Leaving()
    token = LEAVING.set(leaving)
    try:
        leaving.since = trio.current_time() - 60
        took, code, _ = await closed_in(child("ignores_all", grace=0.8))
    finally:
        LEAVING.reset(token)
    assert code == -signal.SIGKILL
    assert took >= 0.8
    in_time(took, 0.8 + 0.5)


class Book:
    """A ledger that is read afterwards."""

    def __init__(self):
        self.rows = set()

    async def starting(self, marker):
        self.rows.add(marker)

    def started(self, marker, leader):
        pass

    def ended(self, marker):
        self.rows.remove(marker)


@pytest.fixture
def book():
    book = Book()
    token = LEDGER.set(book)
    yield book
    LEDGER.reset(token)


@pytest.fixture
def slow_looks(monkeypatch):
    """What reading the process table is on a busy machine."""

    def slowly(since):
        rows = read_table(since)
        time.sleep(1.2)
        return rows

    read_table = table.read_table
    monkeypatch.setattr(table, "read_table", slowly)


@pytest.mark.slow
@pytest.mark.usefixtures("slow_looks")
async def test_many_stubborn_children_are_told_and_struck_out_though_looks_are_late(child, book, caplog):
    """C: each gets its SIGTERM in time, none is said to outlive the kill, and nothing is left for the next host."""

    async def one(task_status=trio.TASK_STATUS_IGNORED):
        async with child("outlives_terms", grace=0.4) as stream:
            assert await stream.read() == [b"ready"]
            task_status.started()
            await leave.wait()
        ended.append((stream._tree.stderr.text, stream._tree.exit_code))

    leave, ended = trio.Event(), []
    async with trio.open_nursery() as nursery:
        for _ in range(30):
            await nursery.start(one)
        assert len(book.rows) == 30
        leave.set()
    assert ended == [("term", -signal.SIGKILL)] * 30
    assert not book.rows
    assert not caplog.records


@pytest.mark.slow
@linux_only
async def test_a_host_that_stands_still_after_the_kill_reaches_those_outside_the_group(
    child, gone, book, caplog, monkeypatch
):
    """C: its time to look has gone by when it goes on, and who was seen before got its SIGKILL without a look."""
    signals, still = [], [2.2, 0.7]  # longer than each of the last looks may take

    def signal_noted(leader, number, **how):
        signals.append(number)
        return signal_group(leader, number, **how)

    def read_late(since):
        rows = read_table(since)
        if signal.SIGKILL in signals and still:
            trio.from_thread.run_sync(time.sleep, still.pop(0))
        return rows

    read_table, signal_group = table.read_table, tree.signal_group
    monkeypatch.setattr(table, "read_table", read_late)
    monkeypatch.setattr(tree, "signal_group", signal_noted)
    async with child("stubborn_parent", "ignores_all", "elsewhere", grace=0.5) as stream:
        grandchild = (await stream.read())[0]
    assert 2.2 not in still  # how often it looks again depends on how fast this machine is
    assert gone(grandchild)
    assert not book.rows
    assert not caplog.records


@pytest.mark.slow
async def test_fifty_cycles_leave_neither_files_nor_zombies(child):
    files, kept = [], []
    others = {one.pid for one in psutil.Process().children()}  # servers of other tests
    for _ in range(50):
        async with child("polite") as stream:
            assert await stream.read() == [b"ready"]
        kept.append(stream)  # what is collected is closed by that
        files.append(len(os.listdir("/proc/self/fd")))
    assert files[0] == files[-1]
    assert {one.pid for one in psutil.Process().children()} <= others


# without /proc, and when all fails


@pytest.fixture
def no_proc(monkeypatch):
    monkeypatch.setattr(table, "_read_stat", lambda _: None)


@pytest.mark.slow
@pytest.mark.usefixtures("no_proc")
@pytest.mark.parametrize(
    ("behaviour", "steps", "signalled"), [("polite", 0, 0), ("ignores_eof", 1, -15), ("ignores_all", 2, -9)]
)
@timely
async def test_without_a_process_table_the_group_is_ended(child, behaviour, steps, signalled):
    took, code, _ = await closed_in(child(behaviour, grace=0.5))
    assert took >= steps * 0.5
    in_time(took, (steps + 1) * 0.5)
    assert code == signalled


@pytest.mark.slow
@timely
async def test_a_tree_that_outlives_sigkill_is_left_behind_and_reported(child, monkeypatch, caplog):
    # No process does so at will: the look at the process table sees one that is not there.
    phantom = identify(os.getpid())
    monkeypatch.setattr(tree, "survivors", lambda *_: [phantom])
    monkeypatch.setattr(tree, "signal_one", lambda *_: None)
    with caplog.at_level(logging.WARNING):
        took, code, _ = await closed_in(child("ignores_all", grace=0.2))
    assert code == -signal.SIGKILL
    assert "outlived SIGKILL" in caplog.text
    assert took >= 2 * 0.2 + 0.5
    in_time(took, 2 * 0.2 + 0.5 + 0.1)


@pytest.mark.slow
@timely
async def test_a_look_that_hangs_saves_nobody(child, book, caplog, monkeypatch):
    book.rows.clear()
    caplog.clear()
    let_go = threading.Event()
    monkeypatch.setattr(table, "read_table", lambda _: let_go.wait() and {})
    took, code, _ = await closed_in(child("ignores_all", grace=0.2))
    let_go.set()
    assert code == -signal.SIGKILL
    assert len(book.rows) == 1  # somebody might be there
    assert "could not find out in time whether the whole process tree" in caplog.text
    assert "outlived" not in caplog.text
    in_time(took, 2 * 0.2 + 2.5 + 0.1)


@pytest.mark.slow
async def test_who_is_gone_is_not_said_to_outlive_because_a_look_is_late(child, monkeypatch, caplog):
    """Where a thousand trees end at once, the look after the kill takes longer than the dead are waited for."""
    looks = []

    async def slow_look(since, after=None):
        looks.append(since)
        if len(looks) > 1:
            await trio.sleep_forever()
        return await look(since, after)

    look = tree.look
    monkeypatch.setattr(tree, "look", slow_look)
    with caplog.at_level(logging.WARNING):
        _, code, _ = await closed_in(child("ignores_all", grace=0.2))
    assert code == -signal.SIGKILL
    assert not caplog.records


# descendants without a mark

DAEMON = 'env -i setsid sh -c "trap : HUP TERM; echo \\$\\$; exec 2>&1; while :; do sleep 60; done" & exec cat'
"""Leaves session, group and environment, and stays a child of the first process."""


async def start_with_unmarked_daemon():
    """A tree with a daemon that the first marking has missed, as one does whose fork is under way."""
    started = await start_process("sh", ("-c", DAEMON), env={}, cwd=None)
    await trio.lowlevel.wait_readable(started.stdout.fileno())
    daemon = psutil.Process(int(os.read(started.stdout.fileno(), 100)))
    unlimited = resource.RLIM_INFINITY, resource.RLIM_INFINITY
    resource.prlimit(daemon.pid, inherited_marks._RLIMIT_LOCKS, unlimited)
    assert inherited_marks.read_tag(daemon.pid) is None
    return started, daemon


@linux
async def test_a_child_that_the_first_marking_missed_ends_with_the_tree():
    started, daemon = await start_with_unmarked_daemon()
    await started.end(0.2)
    assert not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE


@linux
async def test_a_child_that_the_first_marking_missed_is_marked_soon_after():
    """So that it is found even where the first process has crashed."""
    started, daemon = await start_with_unmarked_daemon()
    await started.mark_late_forks()
    assert inherited_marks.read_tag(daemon.pid) == inherited_marks.tag_of(started.marker)
    os.kill(started.pid, signal.SIGKILL)
    await started.wait()
    await started.end(0.2)
    assert not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE


async def test_a_connection_marks_late_forks(child, monkeypatch):
    marked = trio.Event()
    monkeypatch.setattr(tree.ProcessTree, "_mark", lambda _: marked.set())
    async with child("polite", grace=LONG):
        await marked.wait()
