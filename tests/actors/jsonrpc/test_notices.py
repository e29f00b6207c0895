"""Notices: bounded, in the order of the wire, and a change is never lost."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.jsonrpc.incoming import Notices

LOG, PROGRESS = "notifications/message", "notifications/progress"
TOOLS, PROMPTS = "notifications/tools/list_changed", "notifications/prompts/list_changed"
RESOURCES, UPDATED = "notifications/resources/list_changed", "notifications/resources/updated"


async def emptied(notices):
    """All that waits."""
    taken = []

    async def take():
        while True:
            taken.append(await notices.get())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return taken


def log(number):
    return LOG, {"level": "info", "data": number}


async def test_two_thousand_logs_do_not_lose_a_change():
    notices = Notices()
    for number in range(2000):
        notices.put(*log(number))
    notices.put(TOOLS, None)
    for number in range(2000, 4000):
        notices.put(*log(number))
    taken = await emptied(notices)
    assert taken == [*(log(number) for number in range(1024)), (TOOLS, None)]
    assert notices.dropped == 4000 - 1024


@pytest.mark.parametrize("change", [(TOOLS, None), (PROMPTS, {}), (RESOURCES, None), (UPDATED, {"uri": "a:b"})])
async def test_when_full_a_change_that_waits_is_not_queued_again(change):
    notices = Notices(limit=2)
    notices.put(*change)
    notices.put(*log(1))
    for _ in range(5):
        notices.put(*change)
    assert notices.dropped == 5
    assert await emptied(notices) == [change, log(1)]


async def test_a_change_that_was_handed_out_can_wait_again():
    notices = Notices(limit=2)
    for number in range(2):
        notices.put(*log(number))
    notices.put(TOOLS, None)
    assert [await notices.get() for _ in range(3)] == [log(0), log(1), (TOOLS, None)]
    for number in range(2):
        notices.put(*log(number))
    notices.put(TOOLS, None)
    assert await emptied(notices) == [log(0), log(1), (TOOLS, None)]


async def test_updates_of_two_resources_are_two_changes():
    notices = Notices(limit=1)
    changes = [(UPDATED, {"uri": "a:1"}), (UPDATED, {"uri": "a:2"}), (RESOURCES, None), (TOOLS, None), (PROMPTS, None)]
    for change in [*changes, *changes]:
        notices.put(*change)
    assert await emptied(notices) == changes
    assert notices.dropped == len(changes)


async def test_progress_is_dropped_like_a_log():
    notices = Notices(limit=1)
    notices.put(PROGRESS, {"progressToken": 1, "progress": 1})
    notices.put(PROGRESS, {"progressToken": 1, "progress": 2})
    assert len(await emptied(notices)) == notices.dropped == 1


async def test_a_notice_that_comes_is_handed_to_who_waits():
    notices, taken = Notices(), []

    async def take():
        taken.append(await notices.get())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        notices.put(TOOLS, None)
    assert taken == [(TOOLS, None)]


changes = st.sampled_from([(TOOLS, None), (PROMPTS, None), (UPDATED, {"uri": "a:1"}), (UPDATED, {"uri": "a:2"})])
puts = st.lists(st.one_of(changes, changes, st.integers(0, 99).map(log), st.none()), max_size=60)


@given(puts, st.integers(1, 5))
def test_whatever_comes_each_change_is_seen_at_or_after_its_last_time_and_in_order(script, limit):
    """None stands for one notice taken."""

    async def run():
        notices, taken, put, last = Notices(limit), [], [], {}
        for item in script:
            if item is not None:
                notices.put(*item)
                put.append(item)
                last[str(item)] = len(taken)
            elif len(taken) + notices.dropped < len(put):
                taken.append(await notices.get())
        taken += await emptied(notices)
        assert len(taken) + notices.dropped == len(put)
        remaining = iter(put)
        assert all(item in remaining for item in taken), "out of order"
        for item in put:
            if item[0] != LOG:
                assert item in taken[last[str(item)] :], "a change was lost"

    trio.run(run)
