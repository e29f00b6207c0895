"""The lives of servers: what is kept of them, what is drawn of it, and the line of them on a terminal."""

import pytest

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.cli.lives import (
    MOST_INCARNATIONS,
    POINTS,
    Load,
    ServerHistory,
    line_of_life,
    record_event,
    window_of,
)
from mcp_nursery.supervisor.events import ServerRemoved, SnapshotEvent, StateChanged

from .test_statuses import status


def changed(new, incarnation=1, attempt=1, error=None, retry_in=None):
    return StateChanged("lab", incarnation, None, new, error, attempt, 4, retry_in, None, 0)


CONNECTING, CONNECTED, WAITING, FAILED, STOPPED = (
    ServerState.CONNECTING, ServerState.CONNECTED, ServerState.WAITING, ServerState.FAILED, ServerState.STOPPED,
)  # fmt: skip
CRASHES = (
    (0, changed(CONNECTING)),
    (10, changed(CONNECTED)),
    (40, changed(WAITING, 1, 2, "exited with code 7", 10)),
    (50, changed(CONNECTING, 2, 2)),
    (60, changed(WAITING, 2, 3, "no database", 20)),
)
"""A life that is lost, and does not come back."""


def lived(*steps):
    pasts = {}
    for at, event in steps:
        record_event(pasts, event, at)
    return pasts["lab"]


def drawn(past, since=0):
    return [(str(span.phase), span.began, span.ended) for span in past.spans(since)]


def test_each_part_of_a_life_is_a_span():
    past = lived(*CRASHES)
    assert drawn(past) == [
        ("begin", 0, 10), ("up", 10, 40), ("wait", 40, 50), ("begin", 50, 60), ("wait", 60, None),
    ]  # fmt: skip
    assert drawn(past, since=45) == drawn(past)[2:]
    assert [lost.why for lost in past.losses(0)] == ["exited with code 7", "no database"]
    assert [lost.why for lost in past.losses(50)] == ["no database"]


def test_starts_in_a_row_are_one_trouble():
    assert lived(*CRASHES).troubled_at == 40
    again = lived(*CRASHES, (80, changed(CONNECTING, 3)), (81, changed(FAILED, 3, error="no")))
    assert again.troubled_at == 81  # a person has reconnected it: the ladder begins anew
    assert lived(CRASHES[0]).troubled_at is None


@pytest.mark.parametrize(("new", "phase"), [(FAILED, "down"), (STOPPED, None)])
def test_what_follows_a_wait_takes_its_place(new, phase):
    past = lived(*CRASHES, (70, changed(new, 2, 3)))
    assert drawn(past)[4:] == ([] if phase is None else [(phase, 60, None)])


def test_a_life_is_bounded():
    past = ServerHistory()
    for number in range(1, 1_000):
        past.record_state(changed(CONNECTING, number), number)
        past.record_state(changed(WAITING, number, 2, "no", 1), number + 0.5)
        past.record_load(number, 0, number)
    assert len(past.incarnations) == len(past.losses(0)) == MOST_INCARNATIONS
    assert len(past.load) == POINTS
    assert len(past.spans(0)) <= 3 * MOST_INCARNATIONS


def test_only_time_with_calls_is_kept():
    past = ServerHistory()
    for at, done, failed in ((0, 5, 0), (10, 5, 0), (20, 8, 1), (30, 8, 1)):
        past.record_load(done, failed, at)
    assert list(past.load) == [Load(20, 3, 1)]


def test_a_server_that_is_removed_is_forgotten():
    pasts = {}
    record_event(pasts, SnapshotEvent(status(0, name="lab", uptime=5)), 20)
    assert [(each.number, each.connected) for each in pasts["lab"].incarnations] == [(1, 15)]
    record_event(pasts, ServerRemoved("lab", 0), 21)
    assert pasts == {}


@pytest.mark.parametrize(
    ("width", "plain", "line"),
    [
        (16, False, "▒▒██████╳░▒▒╳░░░"),  # noqa: RUF001
        (16, True, "~~======x.~~x..."),
        (4, True, "==xx"),
        (1, True, "x"),
    ],
)
def test_a_life_is_one_line_of_a_terminal(width, plain, line):
    past = lived((0, changed(CONNECTING)), *CRASHES[1:])
    assert line_of_life(past, 75, 75, width, plain=plain) == line


def test_what_lies_before_a_line_is_not_on_it():
    past = lived(*CRASHES)
    assert line_of_life(past, 1_000, 60, 8, plain=True) == "........"
    assert line_of_life(ServerHistory(), 1_000, 60, 8) == " " * 8


@pytest.mark.parametrize(("age", "window"), [(0, 60), (61, 300), (301, 900), (901, 3600), (10**9, 3600)])
def test_a_timeline_grows_with_what_is_known(age, window):
    assert window_of(age) == window
