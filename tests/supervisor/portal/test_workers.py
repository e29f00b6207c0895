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
from mcp_nursery.supervisor.portal.workers import ThreadRequest, Workers

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
        async with trio.open_nursery() as nursery:
            yield Workers(nursery)
            nursery.cancel_scope.cancel()


def begin(workers, function, place="here"):
    context = contextvars.copy_context()
    context.run(PLACE.set, place)
    request = context.run(ThreadRequest, function, Heard())
    workers.begin(request)
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


async def test_one_task_does_requests_in_turn_each_in_the_context_of_its_caller():
    async with opened() as workers:
        found = [(await done(workers, task_and_place, place)).unwrap() for place in ("one", "two", "three")]
        assert len({task for task, _ in found}) == 1
        assert [place for _, place in found] == ["one", "two", "three"]


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
        second = begin(workers, trio.sleep_forever)
        await settle()
        assert second.scope is first.scope
        first.cancel()
        await settle()
        assert second.outcome is None


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
        assert len(workers.idle) == 2
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
