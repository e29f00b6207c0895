"""Requests of the thread: each has a task, the context of its caller, and one outcome that is the caller's alone."""

import contextvars
import gc
import threading
import weakref

import pytest
import trio

from mcp_nursery.supervisor.errors import SupervisorClosed
from mcp_nursery.supervisor.portal import open_supervisor_thread
from mcp_nursery.supervisor.portal.blocking_supervisor import _block
from mcp_nursery.supervisor.portal.signals import ThreadSignal
from mcp_nursery.supervisor.portal.thread_request import ThreadRequest

PLACE = contextvars.ContextVar("place", default="nowhere")


@pytest.fixture
def thread():
    with open_supervisor_thread([]) as supervisor:
        yield supervisor._thread


def begun(thread, function):
    signal = ThreadSignal()
    request = ThreadRequest(function, signal)
    thread.post(request)
    return request, signal


async def place():
    return PLACE.get()


def test_each_has_the_context_of_its_caller_and_keeps_what_it_sets_there(thread):
    async def changes():
        found = PLACE.get()
        PLACE.set("changed")
        await trio.lowlevel.checkpoint()
        return found, PLACE.get()

    for name in ("here", "there"):
        PLACE.set(name)
        assert _block(thread, changes) == (name, "changed")
        assert _block(thread, place) == PLACE.get() == name
    assert thread.do(PLACE.get) == "there"


def test_one_that_is_cancelled_has_its_outcome_and_takes_no_other_with_it(thread):
    requests = [begun(thread, trio.sleep_forever) for _ in range(3)]
    cancelled, signal = requests[1]
    for _ in range(2):
        thread.cancel(cancelled)
    assert signal.wait(60)
    with pytest.raises(SupervisorClosed):
        cancelled.unwrap()
    assert _block(thread, place) == PLACE.get()
    assert [request.is_there for request, _ in requests] == [False, True, False]


def test_one_that_has_its_value_when_it_is_cancelled_keeps_it(thread):
    async def cancels_itself():
        request.scope.cancel()
        return "value"

    signal = ThreadSignal()
    request = ThreadRequest(cancels_itself, signal)
    thread.post(request)
    assert signal.wait(60)
    thread.cancel(request)
    assert _block(thread, place) == PLACE.get()
    assert request.unwrap() == "value"


@pytest.mark.parametrize("raised", [ZeroDivisionError, KeyboardInterrupt, SystemExit, StopAsyncIteration])
@pytest.mark.parametrize("awaited", [True, False])
def test_one_that_raises_is_the_callers_alone(raised, awaited, thread):
    def fails():
        raise raised

    async def fails_late():
        await trio.lowlevel.checkpoint()
        fails()

    with pytest.raises(raised):
        _block(thread, fails_late if awaited else fails)
    with pytest.raises(raised):
        thread.do(fails)
    assert _block(thread, place) == PLACE.get()


def test_what_is_asked_by_one_that_ends_with_the_block_is_done():
    """Such as by a callback whose loop waits for it."""
    ran = trio.Event()

    async def slow_to_end():
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True), trio.fail_after(10):
                threading.Thread(target=thread.begin, args=(ran.set,)).start()
                await ran.wait()

    with open_supervisor_thread([]) as supervisor:
        thread = supervisor._thread
        request, _ = begun(thread, slow_to_end)
        supervisor.status()
    with pytest.raises(SupervisorClosed):
        request.unwrap()
    assert ran.is_set()
    assert not thread.begin(ran.set)


def test_one_that_has_ended_is_kept_nowhere(thread):
    class Large:
        pass

    async def gives():
        return Large()

    request, signal = begun(thread, gives)
    assert signal.wait(60)
    kept = [weakref.ref(each) for each in (request, request.unwrap())]
    _block(thread, place)
    del request
    gc.collect()
    assert [each() for each in kept] == [None, None]
