"""W5: what is kept for clients over HTTP that send much and read little. In memory, virtual time."""

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor.gateway.http.request_limits import UNCOUNTED_BYTES, BytesUnderWay

BIG = UNCOUNTED_BYTES + 1


@given(st.lists(st.tuples(st.sampled_from(["ann", "bob", None]), st.integers(1, 60), st.booleans())))
def test_nothing_is_kept_beyond_the_bounds(steps):
    """But for one alone, whose size others bound."""
    kept, mine = BytesUnderWay(100, 40), []
    for client, count, back in steps:
        if back and mine:
            kept.release(*mine.pop())
        elif kept.reserve(client, count):
            mine.append((client, count))
        of = {each: [count for who, count in mine if who == each] for each in ("ann", "bob", None)}
        assert kept.total == sum(map(sum, of.values()))
        assert kept.total <= 100 or len(mine) == 1
        assert all(sum(of[each]) <= 40 or len(of[each]) == 1 for each in ("ann", "bob"))


async def test_who_has_to_wait_for_room(autojump_clock):
    """Not one whose room requests alone have taken: they may wait for the same."""
    kept = BytesUnderWay(4 * BIG, 2 * BIG)
    assert kept.reserve("ann", 2 * BIG)
    with trio.fail_after(1):
        await kept.wait_for_room("ann")
    assert kept.reserve("bob", BIG)
    kept.release("bob", BIG)
    kept.release("ann", 2 * BIG)
    with (
        kept.hold_unread("ann", BIG) as first,
        kept.hold_unread("ann", BIG) as second,
        kept.hold_unread("ann", BIG) as third,
    ):
        assert (first, second, third) == (True, True, False)
        with trio.fail_after(1):
            await kept.wait_for_room("bob")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.wait_for_room, "ann")
            await trio.testing.wait_all_tasks_blocked()
            assert nursery.child_tasks
            nursery.cancel_scope.cancel()
    with trio.fail_after(1):
        await kept.wait_for_room("ann")
    assert kept.total == 0
