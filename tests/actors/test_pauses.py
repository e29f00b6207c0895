"""The pauses of a loop that asks again: what begins them anew."""

import pytest

from mcp_nursery.actors.pauses import Pauses

DELAYS = (0.0, 1.0, 3.0, 7.0)


def pauses(attempts, **more):
    taken = Pauses(DELAYS)
    return [taken.after(lasted, heard=heard, **more) for lasted, heard in attempts]


@pytest.mark.parametrize(
    ("least", "expected"), [(0.0, [0, 1, 3, 7, 7]), (0.1, [0.1, 1, 3, 7, 7]), (1.0, [1, 1, 3, 7, 7]), (60.0, [60] * 5)]
)
def test_attempts_that_end_at_once_get_growing_pauses(least, expected):
    assert pauses([(0.0, False)] * 5, least=least) == expected


def test_only_what_lasted_longer_than_its_pause_begins_them_anew():
    assert pauses([(0, False), (1.0, False), (3.1, False), (1.0, False), (2.9, False)]) == [0, 1, 0, 1, 3]


def test_a_message_begins_them_anew():
    assert pauses([(0, False), (0, False), (0, True), (0, False), (0, False)]) == [0, 1, 0, 1, 3]


def test_a_stream_that_ends_sooner_than_the_server_wants_to_be_asked_is_none():
    assert pauses([(5, False)] * 4, least=6.0) == [6, 6, 6, 7]
