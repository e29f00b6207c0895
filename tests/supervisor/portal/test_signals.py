"""The signal for a task of asyncio: a future to its task, which goes on at once."""

import asyncio
import contextvars
import gc
import sys
import threading
import weakref

import anyio
import pytest

from mcp_nursery.supervisor.portal.deliveries import Deliveries
from mcp_nursery.supervisor.portal.signals import AsyncioSignal, Signals

PLACE = contextvars.ContextVar("place", default="nowhere")


def signal_here():
    return AsyncioSignal(Deliveries(asyncio.get_running_loop().call_soon_threadsafe))


def play(main, *, eager=False):
    """Run it with and without the debug mode of asyncio."""
    for debug in (False, True):
        with asyncio.Runner(debug=debug) as runner:
            if eager:
                runner.get_loop().set_task_factory(asyncio.eager_task_factory)
            runner.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize(
    "eager",
    [
        False,
        pytest.param(True, marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks begin in the next turn")),
    ],
)
def test_it_stays_set_until_it_is_waited_for_and_is_set_by_any_thread(eager):
    async def main():
        signal = signal_here()
        signal.set()
        signal.set()
        await signal.wait()
        for _ in range(3):
            thread = threading.Thread(target=signal.set)
            waiting = asyncio.ensure_future(signal.wait())
            await asyncio.sleep(0)
            thread.start()
            await waiting
            thread.join()

    play(main, eager=eager)


def test_the_task_goes_on_in_the_turn_in_which_it_is_told_in_its_own_context():
    async def main():
        signal, order = signal_here(), []

        async def waits():
            PLACE.set("task")
            await signal.wait()
            order.append(PLACE.get())

        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        signal.set()
        asyncio.get_running_loop().call_soon(order.append, "the next of this turn")
        await task
        assert order == ["task", "the next of this turn"]
        assert PLACE.get() == "nowhere"

    play(main)


@pytest.mark.parametrize("args", [(), ("because",)])
def test_a_cancellation_keeps_its_message(args):
    """By which scopes of anyio tell theirs from others."""

    async def main():
        signal = signal_here()
        for _ in range(2):
            task = asyncio.ensure_future(signal.wait())
            await asyncio.sleep(0)
            assert task.cancel(*args)
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert caught.value.args == args
        signal.set()
        await signal.wait()

    play(main)


@pytest.mark.parametrize("set_first", [False, True])
def test_one_that_is_set_and_cancelled_in_one_turn_goes_on_once_and_stays_set_if_that_was_a_cancellation(set_first):
    async def main():
        signal, ends = signal_here(), []

        async def waits():
            try:
                await signal.wait()
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise
            ends.append("set")

        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        steps = [signal.set, lambda: asyncio.get_running_loop().call_soon(task.cancel)]
        for step in steps if set_first else reversed(steps):
            step()
        await asyncio.wait([task])
        assert ends == (["set"] if set_first else ["cancelled"])
        if not set_first:
            await signal.wait()

    play(main)


def test_a_limit_of_asyncio_ends_a_wait():
    async def main():
        signal = signal_here()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await signal.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(signal.wait(), 0.01)

    play(main)


def test_each_of_two_tasks_that_wait_is_woken_and_cancelled_for_itself():
    """Such as a reader of a stream, and the task that leaves its block."""

    async def main():
        signal = signal_here()
        for at in range(2):
            tasks = [asyncio.ensure_future(signal.wait()) for _ in range(2)]
            await asyncio.sleep(0)
            tasks[at].cancel()
            ended, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert ended == {tasks[at]}
            assert tasks[at].cancelled()
            signal.set()
            await asyncio.wait(waiting)
        tasks = [asyncio.ensure_future(signal.wait()) for _ in range(2)]
        await asyncio.sleep(0)
        signal.set()
        await asyncio.wait(tasks)
        assert not signal._waits

    play(main)


def test_waits_that_are_given_up_are_forgotten():
    async def main():
        signal = signal_here()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await signal.wait()
        assert not signal._waits

    play(main)


def test_tasks_that_always_have_an_answer_leave_the_loop_to_others():
    async def main():
        loop, deliveries = asyncio.get_running_loop(), Deliveries(asyncio.get_running_loop().call_soon_threadsafe)
        turns = []

        async def asks():
            while len(turns) < 3:
                signal = AsyncioSignal(deliveries)
                signal.set()  # as another thread does while this one goes on
                await signal.wait()

        def turn():
            turns.append(True)
            if len(turns) < 3:
                loop.call_later(0.001, turn)

        loop.call_later(0.001, turn)
        await asyncio.gather(*(asks() for _ in range(4)))

    play(main)


def test_a_task_that_runs_its_loop_in_turn_lets_the_others_go_on():
    """As `nest_asyncio` has it in notebooks."""

    async def main():
        deliveries = Deliveries(asyncio.get_running_loop().call_soon_threadsafe)
        signals = [AsyncioSignal(deliveries) for _ in range(3)]
        order = []

        async def waits(number):
            await signals[number].wait()
            order.append((number, deliveries.has_more))

        tasks = [asyncio.ensure_future(waits(number)) for number in range(3)]
        await asyncio.sleep(0)
        for each in signals:
            each.set()
        await asyncio.gather(*tasks)
        assert order == [(0, False), (1, False), (2, False)]  # nothing that was delivered waits for one of them

    play(main)


def test_it_is_a_future_to_whoever_looks_at_the_task():
    """Such as `anyio.testing.wait_all_tasks_blocked`."""

    async def main():
        signal = signal_here()
        task = asyncio.ensure_future(signal.wait())
        await anyio.wait_all_tasks_blocked()
        assert not task.done()
        signal.set()
        await task

    play(main)


def test_a_cancelled_wait_keeps_nothing():
    async def main():
        class Large:
            pass

        async def waits(given):
            await signal.wait()
            return given

        signal, given = signal_here(), Large()
        kept = weakref.ref(given)
        task = asyncio.ensure_future(waits(given))
        await asyncio.sleep(0)
        gc.disable()
        try:
            task.cancel()
            await asyncio.wait([task])
            del task, given
            await asyncio.sleep(0)
            assert kept() is None
        finally:
            gc.enable()

    play(main)


def test_after_ctrl_c_between_a_wake_up_and_its_functions_the_next_call_runs_them():
    loop = asyncio.new_event_loop()
    signals, ran = Signals(), []

    async def begins():
        signal = signals.here()
        signal.set()
        return signal

    async def goes_on(signal):
        signals.here()
        await signal.wait()
        ran.append(True)

    signal = loop.run_until_complete(begins())
    loop._ready.clear()  # the handle is lost
    loop.run_until_complete(asyncio.wait_for(goes_on(signal), 30))
    assert ran
    loop.close()


def test_loops_that_are_closed_are_forgotten():
    async def main():
        signals.here()

    signals = Signals()
    for _ in range(3):
        asyncio.run(main())
    assert len(signals._deliveries) == 1


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_a_task_that_ends_the_loop_leaves_the_others_what_was_set(raised):
    async def exits(signal):
        await signal.wait()
        raise raised

    async def begins():
        deliveries = Deliveries(asyncio.get_running_loop().call_soon_threadsafe)
        signals = [AsyncioSignal(deliveries) for _ in range(3)]
        tasks = [asyncio.ensure_future(exits(signals[0]))]
        tasks += [asyncio.ensure_future(each.wait()) for each in signals[1:]]
        await asyncio.sleep(0)
        return signals, tasks

    async def ends(signals, tasks):
        for each in signals:
            each.set()
        await asyncio.wait(tasks, timeout=30)

    loop = asyncio.new_event_loop()
    signals, (first, *others) = loop.run_until_complete(begins())
    with pytest.raises(raised):
        loop.run_until_complete(ends(signals, others))
    loop.run_until_complete(asyncio.wait_for(asyncio.gather(*others), 30))
    assert isinstance(first.exception(), raised)
    for each in asyncio.all_tasks(loop):
        each.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
