"""Signals to a task of a loop and to a thread: each stays set, and none is lost."""

import asyncio
import threading

import anyio
import pytest

from mcp_nursery.supervisor.portal import signals
from mcp_nursery.supervisor.portal.signals import LoopSignal, ThreadSignal, begin_and_wait

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def play(main, backend="asyncio"):
    async def bounded():
        with anyio.fail_after(60):
            await main()

    anyio.run(bounded, backend=backend)


@BACKENDS
def test_it_stays_set_and_is_set_by_any_thread_as_often_as_that(backend):
    async def main():
        signal = LoopSignal()
        thread = threading.Thread(target=lambda: [signal.set() for _ in range(3)])
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(signal.wait)
            await anyio.wait_all_tasks_blocked()
            thread.start()
        await signal.wait()
        thread.join()

    play(main, backend)


@BACKENDS
def test_a_signal_of_a_loop_that_has_ended_wakes_nobody(backend):
    made = []

    async def main():
        made.append(LoopSignal())

    play(main, backend)
    made[0].set()


def test_a_thread_finds_it_set_as_often_as_it_looks_and_is_limited_otherwise():
    signal = ThreadSignal()
    assert not signal.wait(0.01)
    waiting = [threading.Thread(target=signal.wait) for _ in range(2)]
    for each in waiting:
        each.start()
    for _ in range(2):
        signal.set()
    for each in waiting:
        each.join(60)
        assert not each.is_alive()
    assert signal.wait()
    assert signal.wait(0)


@BACKENDS
def test_a_cancelled_task_goes_on_when_its_time_is_over_though_the_other_side_has_not_ended(backend, monkeypatch):
    monkeypatch.setattr(signals, "GRACE", 0.1)
    done = []

    async def main():
        signal = LoopSignal()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await begin_and_wait(lambda: done.append("begun"), signal, signal, lambda: done.append("cancelled"))
        assert scope.cancelled_caught
        assert done == ["begun", "cancelled"]

    play(main, backend)


@pytest.mark.parametrize("args", [(), ("because",)])
def test_a_cancellation_of_asyncio_keeps_its_message(args):
    """By which scopes of anyio tell theirs from others."""

    async def main():
        signal = LoopSignal()
        task = asyncio.ensure_future(begin_and_wait(int, signal, signal, signal.set))
        await asyncio.sleep(0)
        assert task.cancel(*args)
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert caught.value.args == args

    play(main)
