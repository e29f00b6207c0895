"""One task that other threads wake."""

import os
import threading

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor.portal.wakeup import Wakeup


def nothing():
    raise AssertionError("Trio itself was asked")


async def test_the_task_is_woken_by_any_thread_as_often_as_that():
    with trio.fail_after(30), Wakeup() as wakeup:
        for _ in range(3):
            thread = threading.Thread(target=wakeup.wake, args=(nothing,))
            thread.start()
            await wakeup.wait()
            thread.join()


async def test_wake_ups_that_nobody_waits_for_block_nobody():
    with trio.fail_after(30), Wakeup() as wakeup:
        for _ in range(100_000):
            wakeup.wake(nothing)
        await wakeup.wait()


async def test_one_that_nobody_wakes_waits():
    with Wakeup() as wakeup:
        for _ in range(3):
            wakeup.wake(nothing)
        await wakeup.wait()
        with trio.move_on_after(0.05) as late:
            await wakeup.wait()
        assert late.cancelled_caught


async def test_once_its_task_ends_trio_runs_what_was_to_be_run():
    ran = []
    with Wakeup() as wakeup:
        wakeup.wake(nothing)
        wakeup.leave_to_trio(lambda: ran.append("left"))
    wakeup.wake(lambda: ran.append("late"))
    await trio.testing.wait_all_tasks_blocked()
    assert ran == ["left", "late"]


async def test_its_files_are_closed_with_it_once_nobody_writes():
    with Wakeup() as wakeup:
        numbers, writer = [wakeup._here.fileno(), wakeup._there.fileno()], wakeup._there
        wakeup.leave_to_trio(lambda: None)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(numbers[0])
    with pytest.raises(BrokenPipeError):
        writer.send(b"late")  # of a thread that has come so far: no other file has the number
    del writer
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(numbers[1])


def test_when_the_loop_has_ended_it_says_so():
    async def main():
        with Wakeup() as wakeup:
            wakeup.leave_to_trio(lambda: None)
        return wakeup

    wakeup = trio.run(main)
    with pytest.raises(trio.RunFinishedError):
        wakeup.wake(nothing)
