"""Tasks that do one request after another: no request is told from one that has a task of its own."""

import contextvars
import gc
import weakref
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor.errors import SupervisorClosed
from mcp_nursery.supervisor.portal import workers as module
from mcp_nursery.supervisor.portal.workers import ThreadRequest, open_workers

PLACE = contextvars.ContextVar("place", default="nowhere")


class Heard:
    """Counts how often a caller was woken."""

    def __init__(self):
        self.times = 0

    def set(self):
        self.times += 1


@asynccontextmanager
async def opened():
    with trio.fail_after(10):
        async with open_workers() as workers:
            yield workers


def begin(workers, function, place="here"):
    context = contextvars.copy_context()
    context.run(PLACE.set, place)
    request = context.run(ThreadRequest, function, Heard())
    workers.deliveries.add(lambda: workers.begin(request))
    return request


async def settle():
    await trio.testing.wait_all_tasks_blocked()


async def done(workers, function, place="here"):
    request = begin(workers, function, place)
    await settle()
    assert request.signal.times == 1
    return request.outcome


async def task_and_place():
    await trio.lowlevel.checkpoint()
    return trio.lowlevel.current_task(), PLACE.get()


async def test_two_tasks_do_requests_in_turn_each_in_the_context_of_its_caller():
    """One leads while the other has a request."""
    async with opened() as workers:
        places = [str(number) for number in range(10)]
        found = [(await done(workers, task_and_place, place)).unwrap() for place in places]
        assert len({task for task, _ in found}) == 2
        assert [place for _, place in found] == places


@pytest.mark.parametrize("others", [0, 1])
async def test_a_request_begins_in_the_context_of_its_caller(others):
    """Also before it waits for anything: whether the leader does it, or a task that has waited, or a new one."""

    async def place():
        return PLACE.get()

    async with opened() as workers:
        for _ in range(3):
            requests = [begin(workers, place, f"place {number}") for number in range(others + 1)]
            await settle()
            assert [each.outcome.unwrap() for each in requests] == [f"place {number}" for number in range(others + 1)]


async def test_what_comes_together_is_done_at_the_same_time():
    async with opened() as workers:
        for _ in range(2):
            requests = [begin(workers, trio.sleep_forever) for _ in range(5)]
            await settle()
            assert len({each.scope for each in requests}) == 5
            assert (await done(workers, task_and_place)).unwrap()[1] == "here"
            for each in requests:
                workers.deliveries.add(each.cancel)
            await settle()
            assert [each.signal.times for each in requests] == [1] * 5


async def test_a_request_that_is_cancelled_as_it_comes_begins_and_ends():
    async with opened() as workers:
        request = begin(workers, trio.sleep_forever)
        workers.deliveries.add(request.cancel)
        await settle()
        assert request.signal.times == 1
        assert (await done(workers, task_and_place)).unwrap()[1] == "here"


async def test_what_is_added_while_they_end_is_run():
    """Such as by a callback whose loop waits for it."""
    ran = trio.Event()

    async def slow_to_end():
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True), trio.fail_after(10):
                workers.deliveries.add(ran.set)
                await ran.wait()

    async with opened() as workers:
        request = begin(workers, slow_to_end)
        await settle()
    assert request.signal.times == 1
    workers.deliveries.add(ran.set)  # nobody runs it: nothing breaks


async def test_what_a_request_sets_in_its_context_no_other_sees():
    async def settles_down():
        PLACE.set("changed")

    async with opened() as workers:
        (await done(workers, settles_down)).unwrap()
        assert (await done(workers, task_and_place)).unwrap()[1] == "here"


async def test_a_request_that_is_cancelled_has_its_outcome_and_takes_no_other_with_it():
    async with opened() as workers:
        requests = [begin(workers, trio.sleep_forever) for _ in range(3)]
        await settle()
        requests[1].cancel()
        requests[1].cancel()
        await settle()
        assert [each.signal.times for each in requests] == [0, 1, 0]
        with pytest.raises(SupervisorClosed):
            requests[1].outcome.unwrap()
        assert (await done(workers, task_and_place)).unwrap()[1] == "here"
    assert [each.signal.times for each in requests] == [1, 1, 1]


async def test_a_request_that_is_cancelled_too_late_leaves_the_next_one_of_its_task_alone():
    async with opened() as workers:
        first = begin(workers, task_and_place)
        await settle()
        await done(workers, task_and_place)  # the other task
        later = begin(workers, trio.sleep_forever)
        await settle()
        assert later.scope is first.scope
        first.cancel()
        await settle()
        assert later.outcome is None


async def test_after_a_cancellation_that_came_to_nothing_no_request_is_cancelled_by_it():
    """The request had its value at the moment at which it was cancelled: its task takes no other."""
    async with opened() as workers:

        async def cancels_itself():
            request.cancel()
            return "value"

        request = begin(workers, cancels_itself)
        await settle()
        assert request.outcome.unwrap() == "value"
        assert (await done(workers, task_and_place)).unwrap()[1] == "here"


@pytest.mark.parametrize("raised", [ZeroDivisionError, KeyboardInterrupt, SystemExit, StopAsyncIteration])
async def test_a_request_that_raises_is_the_callers_alone(raised):
    async def fails():
        raise raised

    async with opened() as workers:
        with pytest.raises(raised):
            (await done(workers, fails)).unwrap()
        assert (await done(workers, task_and_place)).unwrap()[1] == "here"


async def test_a_function_that_raises_before_it_can_be_awaited_is_an_error_of_its_request():
    def fails():
        raise ZeroDivisionError

    async with opened() as workers:
        with pytest.raises(ZeroDivisionError):
            (await done(workers, fails)).unwrap()


async def test_no_more_tasks_wait_than_are_allowed(monkeypatch):
    monkeypatch.setattr(module, "MOST_IDLE", 2)
    async with opened() as workers:
        requests = [begin(workers, task_and_place) for _ in range(5)]
        await settle()
        assert len({each.outcome.unwrap()[0] for each in requests}) == 5
        assert len(workers.idle) == 2  # beside the leader
    assert workers.idle == []


async def test_a_task_that_waits_keeps_nothing_of_its_last_request():
    class Large:
        pass

    async def gives():
        return Large()

    async with opened() as workers:
        place = Large()
        request = begin(workers, gives, place)
        await settle()
        kept = [weakref.ref(each) for each in (request, request.outcome.value, place)]
        assert len(workers.idle) == 1
        del request, place
        gc.collect()
        assert [each() for each in kept] == [None, None, None]


async def test_all_end_with_their_nursery():
    async with opened() as workers:
        waiting = begin(workers, trio.sleep_forever)
        (await done(workers, task_and_place)).unwrap()
    with pytest.raises(SupervisorClosed):
        waiting.outcome.unwrap()
    assert workers.idle == []
