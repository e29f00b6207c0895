"""The pieces that pages show."""

import pytest

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.cli.web.layout import acts_of, counted, milliseconds, number_of_milliseconds, spoken, table

from ..test_statuses import status


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.9, "59 s"), (200, "3 min 20 s"), (7_500, "2 h 5 min"), (273_600, "3 d 4 h")],
)
def test_times_are_spoken(seconds, words):
    assert spoken(seconds) == words


@pytest.mark.parametrize(("seconds", "words"), [(None, ""), (0.00125, "1.25 ms"), (2.44, "2.4 s")])
def test_durations(seconds, words):
    assert milliseconds(seconds) == words


@pytest.mark.parametrize(("seconds", "words"), [(None, ""), (0.00125, "1.25"), (0.0244, "24.4"), (12.3456, "12,346")])
def test_durations_under_a_head_with_their_unit(seconds, words):
    assert number_of_milliseconds(seconds) == words


@pytest.mark.parametrize(("count", "words"), [(0, "0 losses"), (1, "1 loss"), (2, "2 losses")])
def test_one_is_singular(count, words):
    assert counted(count, "loss", "losses") == words
    assert (counted(1, "call"), counted(2, "call")) == ("1 call", "2 calls")


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
