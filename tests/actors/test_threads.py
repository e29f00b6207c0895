import threading

import pytest
import trio
import trio.testing

from mcp_nursery.actors.threads import BRIEF_THREADS, LOOK_THREADS, MOST_THREADS, UNCOUNTED_THREADS, open_process

from ..lab.threads import all_places_taken


async def test_work_does_not_wait_for_the_threads_of_the_host():
    with trio.fail_after(60):
        async with all_places_taken():
            assert await BRIEF_THREADS.run(max, 1, 2) == 2
            process = await open_process(["true"])
            assert await process.wait() == 0


async def test_a_program_that_cannot_be_started_fails_as_it_does_in_trio():
    with pytest.raises(FileNotFoundError):
        await open_process(["/no/such/program"])


async def hold(places, number, over, nursery):
    begun = trio.Semaphore(0)

    def wait():
        trio.from_thread.run_sync(begun.release)
        over.wait()

    for _ in range(number):
        nursery.start_soon(places.run, wait)
    for _ in range(number):
        await begun.acquire()


async def test_work_of_one_kind_waits_for_its_own_places_alone():
    over, done = threading.Event(), []

    async def one_more():
        await BRIEF_THREADS.run(int)
        done.append("in vain")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            try:
                await hold(BRIEF_THREADS, MOST_THREADS, over, nursery)
                async with trio.open_nursery() as waiting:
                    waiting.start_soon(one_more)
                    await LOOK_THREADS.run(int)
                    await trio.testing.wait_all_tasks_blocked()
                    waiting.cancel_scope.cancel()
            finally:
                over.set()
        await BRIEF_THREADS.run(int)
    assert done == []


async def test_callbacks_have_as_many_threads_as_there_are_calls():
    over = threading.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            try:
                await hold(UNCOUNTED_THREADS, MOST_THREADS + 1, over, nursery)
            finally:
                over.set()


def test_each_run_of_trio_has_places_of_its_own():
    for _ in range(2):
        assert trio.run(BRIEF_THREADS.run, max, 1, 2) == 2
