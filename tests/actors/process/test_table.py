import os
import signal
import subprocess
import sys
import threading

import pytest
import trio
import trio.testing

from mcp_nursery.actors.process import table
from mcp_nursery.actors.process.table import ProcessId, identify, signal_group, signal_one


@pytest.fixture
def stranger():
    """A process group that is not of any tree."""
    with subprocess.Popen(
        [sys.executable, "-c", "print(input())"], stdin=-1, stdout=-1, start_new_session=True
    ) as process:
        yield process
        process.kill()


# looks


async def test_a_look_serves_all_who_asked_before_it_began(monkeypatch):
    begun, permits = [], threading.Semaphore(0)

    def read_table(since):
        begun.append(since)
        permits.acquire()
        return {"look": len(begun)}

    async def ask(since):
        seen.append((since, (await looks.look(since))["look"]))

    monkeypatch.setattr(table, "read_table", read_table)
    seen, looks = [], table._Looks()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 5)
        await trio.testing.wait_all_tasks_blocked()
        for since in (9, 4, 7):
            nursery.start_soon(ask, since)
        await trio.testing.wait_all_tasks_blocked()
        permits.release(4)
    assert begun == [5, 4]
    assert sorted(seen) == [(4, 2), (5, 1), (7, 2), (9, 2)]


async def test_a_look_that_was_given_up_leaves_the_next_to_look(monkeypatch):
    let_go, looks = threading.Event(), table._Looks()
    monkeypatch.setattr(table, "read_table", lambda _: let_go.wait() and {})
    with trio.move_on_after(0.05):
        await looks.look(1)
    monkeypatch.setattr(table, "read_table", lambda _: {"fresh": 1})
    assert await looks.look(1) == {"fresh": 1}
    let_go.set()


async def test_a_look_that_was_given_up_counts_for_those_who_asked_before_it_began(monkeypatch):
    let_go, looks = threading.Event(), table._Looks()
    monkeypatch.setattr(table, "read_table", lambda _: let_go.wait() and {"look": 1})
    with trio.move_on_after(0.05):
        await looks.look(1)
    let_go.set()
    with trio.fail_after(60):
        while looks._last[0] == 0:  # noqa: ASYNC110 - a thread that nobody waits for sets it
            await trio.sleep(0.01)
    monkeypatch.setattr(table, "read_table", lambda _: {"look": 2})
    assert await looks.look(1, 0) == {"look": 1}
    assert await looks.look(1) == {"look": 2}


# whom not to touch


async def test_a_number_that_was_given_to_somebody_else_is_not_signalled(stranger):
    assert not signal_group(identify(stranger.pid), signal.SIGKILL, reaped=True)
    earlier = ProcessId(stranger.pid, identify(stranger.pid).started - 1)
    signal_one(earlier, signal.SIGKILL)
    assert table.survivors(earlier, "no marker", table.read_table(0)) == []
    assert stranger.communicate(b"alive\n")[0] == b"alive\n"


async def test_a_process_that_is_gone_is_no_error(stranger):
    known = identify(stranger.pid)
    stranger.kill()
    stranger.wait()
    assert not signal_group(known, signal.SIGTERM, reaped=True)
    signal_one(known, signal.SIGTERM)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_a_process_writes_to_the_pipes_that_are_its_outputs_and_its_host_does_not():
    """Q1: the host has the other ends, and standard input is of no matter."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as cat:
        pipes = [os.fstat(pipe.fileno()).st_ino for pipe in (cat.stdin, cat.stdout)]
        found = table.read_table(0)
        assert [list(found.writers([pipe])) for pipe in pipes] == [[], [cat.pid]]
        cat.stdin.close()
