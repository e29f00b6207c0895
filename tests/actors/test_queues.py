"""A reader of the bounded queue: what wakes it, and what it reads in place of what was lost."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.queues import BoundedQueue, WhenFull


async def woken_by(queue, act):
    """What a waiting reader comes to, once that was done."""
    outcome = []

    async def read():
        try:
            outcome.append(await queue.receive())
        except (trio.EndOfChannel, trio.ClosedResourceError) as raised:
            outcome.append(type(raised))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert outcome == []
        act()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return outcome


@pytest.mark.parametrize(
    ("act", "outcome"),
    [
        (lambda queue: queue.put("one"), "one"),
        (lambda queue: queue.put("too large", 11), "1 lost"),
        (lambda queue: queue.lose(3), "3 lost"),
        (BoundedQueue.finish, trio.EndOfChannel),
        (BoundedQueue.close, trio.ClosedResourceError),
    ],
)
async def test_a_reader_wakes_for(act, outcome):
    queue = BoundedQueue[str](size=10, gap="{} lost".format)
    assert await woken_by(queue, lambda: act(queue)) == [outcome]


async def test_the_end_comes_behind_all_that_waits():
    queue = BoundedQueue[int]()
    queue.put(1)
    queue.finish()
    assert await queue.receive() == 1
    for _ in range(2):
        with pytest.raises(trio.EndOfChannel):
            await queue.receive()


async def test_a_flood_behind_a_reader_that_has_its_gap_told_last_is_one_gap():
    """And what the gap itself puts there is not lost."""
    queue = BoundedQueue[str](2, gap=lambda lost: (queue.put("as it is", when_full=WhenFull.EXCEED), f"{lost} lost")[1])
    for number in range(9):
        queue.put(f"{number}")
    assert [await queue.receive() for _ in range(2)] == ["0", "1"]
    queue.put("9")
    assert [await queue.receive() for _ in range(2)] == ["8 lost", "as it is"]
    queue.put("10")
    assert await queue.receive() == "10"


async def test_where_the_oldest_are_lost_their_gap_is_read_first():
    queue = BoundedQueue[str](2, when_full=WhenFull.LOSE_OLDEST, gap="{} lost".format)
    for number in range(9):
        queue.put(f"{number}")
    assert [await queue.receive() for _ in range(3)] == ["7 lost", "7", "8"]


def test_an_item_for_which_nothing_can_be_lost_is_lost_itself():
    """What exceeds the bound stays, whatever comes after it."""
    full = BoundedQueue[str](size=10, when_full=WhenFull.LOSE_OLDEST)
    assert full.put("stays", 8, when_full=WhenFull.EXCEED)
    assert not full.put("new", 5)
    assert (full.receive_nowait(), full.lost) == ("stays", 1)
    assert not BoundedQueue[str](0, when_full=WhenFull.LOSE_OLDEST).put("new")
