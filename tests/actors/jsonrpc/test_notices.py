"""Notices: bounded, in the order of the wire, and a change is never lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.account import Account
from mcp_nursery.actors.jsonrpc.incoming import Notices

LOG, PROGRESS = "notifications/message", "notifications/progress"
TOOLS, PROMPTS = "notifications/tools/list_changed", "notifications/prompts/list_changed"
RESOURCES, UPDATED = "notifications/resources/list_changed", "notifications/resources/updated"


def emptied(notices):
    """All that waits."""
    return [notices.receive_nowait() for _ in range(len(notices))]


def log(number):
    return LOG, {"level": "info", "data": number}


def test_two_thousand_logs_do_not_lose_a_change():
    notices = Notices()
    for number in range(2000):
        notices.add(*log(number))
    notices.add(TOOLS, None)
    for number in range(2000, 4000):
        notices.add(*log(number))
    taken = emptied(notices)
    assert taken == [*(log(number) for number in range(1024)), (TOOLS, None)]
    assert notices.lost == 4000 - 1024


@pytest.mark.parametrize("change", [(TOOLS, None), (PROMPTS, {}), (RESOURCES, None), (UPDATED, {"uri": "a:b"})])
@pytest.mark.parametrize("limit", [1, 9])
def test_a_change_that_waits_is_not_queued_again(change, limit):
    notices = Notices(limit)
    notices.add(*log(1))
    for _ in range(5):
        notices.add(*change)
    assert emptied(notices) == [log(1), change]
    assert notices.lost == 0


def test_a_change_that_was_handed_out_can_wait_again():
    notices = Notices()
    for _ in range(2):
        notices.add(TOOLS, None)
        notices.add(*log(0))
        assert emptied(notices) == [(TOOLS, None), log(0)]


def test_each_resource_that_is_updated_is_a_change_of_its_own_and_none_is_lost_for_their_number():
    notices = Notices(limit=1)
    changes = [*((UPDATED, {"uri": f"a:{number}"}) for number in range(2000)), (RESOURCES, None), (TOOLS, None)]
    for change in [log(0), *changes, *changes]:
        notices.add(*change)
    assert emptied(notices) == [log(0), *changes]
    assert notices.lost == 0


def test_a_list_that_changed_is_not_lost_for_what_else_is_kept():
    account = Account(100)
    account.charge("answers", 200)
    notices = Notices(account=account)
    notices.add(TOOLS, {"_meta": {}}, 40)
    notices.add(UPDATED, {"uri": "a:b"}, 40)
    assert emptied(notices) == [(TOOLS, {"_meta": {}})]


def test_progress_is_dropped_like_a_log():
    notices = Notices(limit=1)
    notices.add(PROGRESS, {"progressToken": 1, "progress": 1})
    notices.add(PROGRESS, {"progressToken": 1, "progress": 2})
    assert len(emptied(notices)) == notices.lost == 1


changes = st.sampled_from([(TOOLS, None), (PROMPTS, None), (UPDATED, {"uri": "a:1"}), (UPDATED, {"uri": "a:2"})])
puts = st.lists(st.one_of(changes, changes, st.integers(0, 99).map(log), st.none()), max_size=60)


@given(puts, st.integers(1, 5))
def test_whatever_comes_each_change_is_seen_at_or_after_its_last_time_and_in_order(script, limit):
    """None stands for one notice taken."""
    notices, taken, put, last = Notices(limit), [], [], {}
    for item in script:
        if item is not None:
            notices.add(*item)
            put.append(item)
            last[str(item)] = len(taken)
        elif len(notices):
            taken.append(notices.receive_nowait())
    taken += emptied(notices)
    remaining = iter(put)
    assert all(item in remaining for item in taken), "out of order"
    for item in put:
        if item[0] != LOG:
            assert item in taken[last[str(item)] :], "a change was lost"
