"""The pieces that pages show."""

from collections import deque

import pytest

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.cli.lives import ServerHistory, TaskSpan
from mcp_nursery.supervisor.cli.web.layout import (
    MOST_LISTED_PAGES,
    acts_of,
    clock,
    first_of,
    life,
    milliseconds,
    pages_of,
    table,
)

from ..test_statuses import status


@pytest.mark.parametrize(("seconds", "words"), [(None, ""), (0.00125, "1.25"), (0.0244, "24.4"), (12.3456, "12,346")])
def test_durations_under_a_head_with_their_unit(seconds, words):
    assert milliseconds(seconds) == words


def test_a_long_list_has_pages_and_a_short_one_none():
    assert pages_of("/server/tools", "lab", 1, 300, 300) is None
    links = pages_of("/server/tools", "lab", 2, 300, 700)
    assert "700 in all: " in links
    assert '<a href="/ui/server/tools?name=lab&amp;number=1">1 to 300</a>' in links
    assert '<a href="/ui/server/tools?name=lab&amp;number=2" aria-current="page">301 to 600</a>' in links
    assert "601 to 700" in links
    assert '<a href="/ui/tasks?number=1"' in pages_of("/tasks", "", 1, 300, 301)
    assert pages_of("/server/tools", "lab", 1, 300, 10**9).count("<a ") == MOST_LISTED_PAGES


@pytest.mark.parametrize(("page", "total", "first"), [(1, 0, 0), (2, 0, 0), (1, 301, 0), (2, 301, 300), (9, 600, 300)])
def test_a_list_with_fewer_pages_shows_its_last_one(page, total, first):
    assert first_of(page, 300, total) == first


def test_a_table_leaves_out_what_is_empty_and_numbers_stand_at_the_right():
    drawn = table("All", ("Count", "Empty", "#Word"), [("1", None, "a"), ("2", "", "b")], empty="", numbers=["Count"])
    assert "Empty" not in drawn
    assert drawn.count("<td") == 4
    assert '<th scope="col" class="number">Count</th>' in drawn
    assert '<td class="number">2</td>' in drawn
    assert table("All", ("a",), [], empty="None.") == '<p class="quiet">None.</p>'


@pytest.mark.parametrize("state", ServerState)
def test_only_acts_that_make_sense_are_offered(state):
    offered = acts_of(status(0, state=state), may_act=True) or ""
    assert ("Start" in offered) == (state in ("idle", "stopped", "disabled"))
    assert ("Reconnect" in offered) == (state in ("connected", "connecting", "waiting", "needs_auth", "failed"))
    assert ("Stop" in offered) == (state in ("connected", "connecting", "waiting", "needs_auth", "idle"))


@pytest.mark.parametrize("at", [1e300, -1e300, 1e17, -1e17])
async def test_a_time_that_no_calendar_has_is_shown_too(at):
    """Any program may have written it into the state, from where it comes into tables and timelines."""
    assert ("9999-12-31T23:59:59Z" if at > 0 else "1970-01-01T00:00:00Z") in clock(at)
    assert 'class="task"' in life(ServerHistory(tasks=deque([TaskSpan("1", "slow", at)])), 600)
