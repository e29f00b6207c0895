"""The pieces that pages show."""

import pytest

from mcp_nursery.supervisor.cli.web.history import Load
from mcp_nursery.supervisor.cli.web.layout import milliseconds, plot, spoken


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.9, "59 s"), (200, "3 min 20 s"), (7_500, "2 h 5 min"), (273_600, "3 d 4 h")],
)
def test_times_are_spoken(seconds, words):
    assert spoken(seconds) == words


@pytest.mark.parametrize(("seconds", "words"), [(None, "-"), (0.00125, "1.25 ms"), (2.44, "2.4 s")])
def test_durations(seconds, words):
    assert milliseconds(seconds) == words


def test_a_plot_says_in_words_what_it_draws():
    drawn = plot([Load(3, 1), Load(0, 0), Load(0, 4)])
    assert 'aria-label="3 calls answered and 5 failed in the last 0 min"' in drawn
    assert drawn.count("<rect") == 3
    assert 'height="12.00"' in drawn  # three of four
    assert plot([Load(0, 0)]) is None
