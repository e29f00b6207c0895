"""The timer of all calls: exact, forgetful, and one task."""

import gc
import itertools
import math
import weakref
from heapq import heapify

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.deadlines import Deadline, Timer
from mcp_nursery.actors.mailbox import Mailbox
from mcp_nursery.actors.outcomes import Answered, Expired
from mcp_nursery.actors.reply import ReplySlot


@pytest.fixture
async def timer(nursery):
    timer = Timer()
    nursery.start_soon(timer.run)
    return timer


async def no_progress(*report):
    raise AssertionError("nobody reported progress")


async def expiry(slot):
    with trio.fail_after(1000):
        outcome = await slot.wait(no_progress)
    assert isinstance(outcome, Expired)
    return trio.current_time()


@pytest.fixture
def looks(monkeypatch):
    """How often all that is watched was looked through."""
    looks = []

    def look(watched):
        looks.append(len(watched))
        heapify(watched)

    monkeypatch.setattr("mcp_nursery.actors.deadlines.heapify", look)
    return looks


async def test_a_deadline_is_over_when_it_is_reached(autojump_clock, timer):
    """Not after it: until then no time would pass."""
    slot = ReplySlot()
    timer.watch(slot, 3)
    await trio.sleep(3)
    for _ in range(5):
        await trio.lowlevel.checkpoint()
    assert isinstance(slot.outcome, Expired)


async def test_a_slot_expires_at_its_deadline(autojump_clock, timer):
    """R4: to the moment, and its owner is told once."""
    slot = ReplySlot()
    slot.route(1, Mailbox(math.inf))
    timer.watch(slot, trio.current_time() + 3)
    assert await expiry(slot) == 3
    assert slot.control.close() == [slot]


async def test_an_earlier_deadline_is_not_slept_through(autojump_clock, timer):
    late, early = ReplySlot(), ReplySlot()
    timer.watch(late, 5)
    await trio.testing.wait_all_tasks_blocked()
    timer.watch(early, 2)
    assert await expiry(early) == 2
    assert await expiry(late) == 5


async def test_watched_before_it_runs_and_due_already(autojump_clock, nursery):
    timer, slot = Timer(), ReplySlot()
    timer.watch(slot, trio.current_time())
    nursery.start_soon(timer.run)
    assert await expiry(slot) == 0


async def test_a_decided_slot_stays_as_it_is(autojump_clock, timer):
    """One outcome: an answer that came first is not undone, an abandoned slot is not told again."""
    answered, abandoned, pending = ReplySlot(), ReplySlot(), ReplySlot()
    abandoned.control = Mailbox(math.inf)
    for slot in (answered, abandoned, pending):
        timer.watch(slot, 1)
    answer = Answered({})
    answered.resolve(answer)
    abandoned.cancel()
    await expiry(pending)
    assert answered.outcome is answer
    assert abandoned.outcome is None
    assert abandoned.control.close() == [abandoned]


async def test_an_answer_after_the_expiry_is_dropped(autojump_clock, timer):
    slot = ReplySlot()
    timer.watch(slot, 1)
    await expiry(slot)
    slot.resolve(Answered({}))
    assert isinstance(slot.outcome, Expired)


async def test_a_listener_is_told_once(autojump_clock, timer):
    told = trio.Event()
    slot = ReplySlot(listener=told.set)
    timer.watch(slot, 1)
    await told.wait()
    assert trio.current_time() == 1
    assert isinstance(slot.outcome, Expired)


async def turns_of(slots):
    """How many of them are decided when another task has its turn, each time that it has one, until all are."""
    seen = []
    while not all(slot.decided for slot in slots):
        await trio.lowlevel.checkpoint()
        seen.append(sum(slot.decided for slot in slots))
    return seen


async def test_thousands_expire_in_turns(autojump_clock, timer):
    """Other tasks run meanwhile, and in the end all have expired at their time."""
    slots = [ReplySlot() for _ in range(3_000)]
    for slot in slots:
        timer.watch(slot, 1)
    await trio.sleep(1)
    seen = [0, *await turns_of(slots)]
    assert max(after - before for before, after in itertools.pairwise(seen)) < 1_000, "a few turns"
    assert trio.current_time() == 1


async def test_no_limit_is_not_watched(autojump_clock, timer):
    slot = ReplySlot()
    timer.watch(slot, math.inf)
    assert timer._watched == [], "most calls have no limit"
    with trio.move_on_after(1e9):
        await slot.wait(no_progress)
    assert slot.outcome is None


async def test_slots_that_are_done_are_not_kept(autojump_clock, timer):
    """Thousands of short calls with a long timeout leave neither their results nor a queue of deadlines behind."""
    for _ in range(10_000):
        slot = ReplySlot()
        timer.watch(slot, 1e6)
        slot.resolve(Answered({}))
    gone = weakref.ref(slot)
    del slot
    gc.collect()
    assert gone() is None
    assert len(timer._watched) <= 256


@pytest.mark.parametrize(("answered", "most"), [(True, 40), (False, 7)])
async def test_all_that_is_watched_is_seldom_looked_through(looks, answered, most):
    """Not for each call, however many are pending, and however few."""
    timer, slots = Timer(), [ReplySlot() for _ in range(10_000)]
    for slot in slots:
        timer.watch(slot, 1e6)
        if answered:
            slot.resolve(Answered({}))
    assert 0 < len(looks) <= most


async def test_the_next_deadline_is_still_the_next_when_others_are_forgotten(autojump_clock, timer):
    """At 1 the slot for 2 is forgotten, which is the next then."""
    pending = {deadline: ReplySlot() for deadline in (1, 10, 11, 12, 3, 4)}
    answered = ReplySlot()
    for deadline, slot in pending.items():
        timer.watch(slot, deadline)
        if deadline == 10:
            timer.watch(answered, 2)
    answered.resolve(Answered({}))
    assert [await expiry(pending[deadline]) for deadline in sorted(pending)] == sorted(pending)


async def test_an_idle_timer_wakes_up_once(autojump_clock, timer):
    """After a burst of answered calls the deadlines that were theirs wake nobody, but for the first."""
    slots = [ReplySlot() for _ in range(100)]
    for index, slot in enumerate(slots):
        timer.watch(slot, 10 + index)
        slot.resolve(Answered({}))
    await trio.sleep(11)
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf


@given(
    limits=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20) | st.none()), max_size=40),
    bound=st.integers(1, 8),
    schedule=st.random_module(),
)
def test_every_slot_is_decided_at_the_earlier_of_answer_and_deadline(limits, bound, schedule):
    """Property: (deadline, answer) in any number and order, whatever is forgotten meanwhile."""

    async def main():
        timer = Timer()
        timer._bound = bound
        decided = {}

        async def one(index, deadline, answer):
            slot = ReplySlot()
            timer.watch(slot, deadline)
            async with trio.open_nursery() as nursery:
                if answer is not None and answer != deadline:  # at the same moment either may win
                    nursery.start_soon(answer_at, slot, answer)
                decided[index] = (type(await slot.wait(no_progress)), trio.current_time())

        async def answer_at(slot, when):
            await trio.sleep_until(when)
            slot.resolve(Answered({}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(timer.run)
            async with trio.open_nursery() as calls:
                for index, (deadline, answer) in enumerate(limits):
                    calls.start_soon(one, index, deadline, answer)
            nursery.cancel_scope.cancel()
        for index, (deadline, answer) in enumerate(limits):
            early = answer is not None and answer < deadline
            assert decided[index] == ((Answered, answer) if early else (Expired, deadline))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_deadline_that_a_server_defers_again_and_again_is_watched_once(autojump_clock, timer):
    """Q25: it may ask something any number of times in the middle of a call."""
    slot, deadline = ReplySlot(), Deadline(100, timer)
    slot.limit(0, deadline)
    timer.watch(slot, deadline.at)
    for at in range(2000):
        slot.pause()
        if at % 100 == 0:
            await trio.sleep(0.01)
        slot.resume()
    assert len(timer._watched) < 600
    assert await expiry(slot) == pytest.approx(100.2)


async def test_a_deadline_goes_on_once_all_questions_about_its_call_are_answered(autojump_clock, timer):
    """R4: a server may ask two at once on the stream of a call."""
    slot, deadline = ReplySlot(), Deadline(5, timer)
    slot.limit(0, deadline)
    timer.watch(slot, deadline.at)
    slot.pause()
    await trio.sleep(50)
    slot.pause()
    await trio.sleep(50)
    slot.resume()
    await trio.sleep(50)
    slot.resume()
    assert await expiry(slot) == 155
