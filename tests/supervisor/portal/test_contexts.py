"""Coroutines in another context than their task's: to themselves, and to their task, they are like any other."""

import contextlib
import contextvars
import gc
import weakref

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor.portal.contexts import in_context

PLACE = contextvars.ContextVar("place", default="nowhere")


def context(place):
    made = contextvars.copy_context()
    made.run(PLACE.set, place)
    return made


async def test_it_has_its_context_at_each_step_and_its_task_keeps_its_own():
    found = []

    async def looks():
        for _ in range(3):
            found.append(PLACE.get())
            await trio.lowlevel.checkpoint()
        PLACE.set("changed")
        return PLACE.get()

    PLACE.set("task")
    assert await in_context(context("there"), looks()) == "changed"
    assert found == ["there"] * 3
    await trio.lowlevel.checkpoint()
    assert PLACE.get() == "task"


async def test_two_at_once_in_one_context_see_each_other():
    one, seen = context("there"), []

    async def sets():
        PLACE.set("by the other")

    async def looks():
        await trio.testing.wait_all_tasks_blocked()
        seen.append(PLACE.get())

    async def run(coroutine):
        await in_context(one, coroutine)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, looks())
        nursery.start_soon(run, sets())
    assert seen == ["by the other"]


async def test_a_cancellation_reaches_it_where_it_waits_and_an_error_leaves_it():
    places = []

    async def waits():
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            places.append(PLACE.get())
            raise

    async def fails():
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    with trio.CancelScope() as scope:
        scope.cancel()
        await in_context(context("there"), waits())
    assert places == ["there"]
    with pytest.raises(ZeroDivisionError):
        await in_context(context("there"), fails())


async def test_its_waits_are_those_of_its_task():
    """Trio itself has it go on: what Trio knows of the task holds there, such as a context that it changes."""
    found = []

    async def looks():
        await trio.lowlevel.checkpoint()
        found.append(trio.lowlevel.current_task().context is there)
        await trio.to_thread.run_sync(trio.from_thread.run_sync, lambda: found.append(PLACE.get()))

    there = context("there")
    await in_context(there, looks())
    assert found == [True, "there"]
    assert trio.lowlevel.current_task().context is not there


@pytest.mark.parametrize("steps", [0, 1])
async def test_one_that_fails_keeps_nothing(steps):
    class Large:
        pass

    async def fails(given):
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        raise ZeroDivisionError(given)

    given = Large()
    kept = weakref.ref(given)
    gc.disable()
    try:
        with contextlib.suppress(ZeroDivisionError):
            await in_context(context("there"), fails(given))
        del given
        assert kept() is None
    finally:
        gc.enable()


async def test_one_that_is_closed_ends_as_a_coroutine_does():
    ended = []

    async def waits():
        try:
            await trio.lowlevel.checkpoint()
        finally:
            ended.append(True)

    running = in_context(context("there"), waits())
    running.send(None)
    running.close()
    assert ended == [True]
