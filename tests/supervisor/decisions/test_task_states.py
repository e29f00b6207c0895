"""The table of a task's statuses, and what each answer of its server makes of it."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.outcomes import Answered, Rejected
from mcp_nursery.supervisor.decisions.task_states import (
    LONGEST_INTERVAL,
    MOST_QUESTIONS,
    SHORTEST_INTERVAL,
    TASK_TRANSITIONS,
    USUAL_INTERVAL,
    BadTask,
    TaskStatus,
    task_made,
)

# A row is an old status, a column a new one: `x` may follow, `.` may not, `=` is the status itself.
MATRIX = """
                working input_required completed failed cancelled
working            =          x            x        x       x
input_required     x          =            x        x       x
completed          .          .            =        .       .
failed             .          .            .        =       .
cancelled          .          .            .        .       =
"""
MADE: dict[str, Any] = {"taskId": "t", "status": "working"}
CONTENT: dict[str, Any] = {
    "input_required": {"inputRequests": {}},
    "completed": {"result": {"content": []}},
    "failed": {"error": {"code": -1, "message": "no"}},
}


def word(status: str, /, **more: Any) -> dict[str, Any]:
    return {**MADE, "status": status, **CONTENT.get(status, {})} | more


def cells() -> list[tuple[str, str, str]]:
    head, *rows = [line.split() for line in MATRIX.strip().splitlines()]
    return [(row[0], new, mark) for row in rows for new, mark in zip(head, row[1:], strict=True)]


def test_the_matrix_is_whole():
    assert len(cells()) == len(TaskStatus) ** 2


@pytest.mark.parametrize(("old", "new", "mark"), cells())
def test_every_way_between_two_statuses(old: str, new: str, mark: str):
    task = task_made({**MADE, "status": old}, 0.0)
    if mark == ".":
        with pytest.raises(BadTask, match=f"went from {old} back to {new}"):
            task.seen(word(new))
    else:
        assert task.seen(word(new)).status == new
    assert (TaskStatus(new) in TASK_TRANSITIONS[TaskStatus(old)]) == (mark == "x")


@pytest.mark.parametrize("name", ["another", "", 1, None])
def test_an_answer_about_another_task(name: object):
    with pytest.raises(BadTask, match="asked about its task t, it answers about"):
        task_made(MADE, 0.0).seen(word("working", taskId=name))


@pytest.mark.parametrize(
    ("milliseconds", "seconds"),
    [
        (0, SHORTEST_INTERVAL),
        (2500, 2.5),
        (10**400, LONGEST_INTERVAL),
        (1e300, LONGEST_INTERVAL),
        (None, USUAL_INTERVAL),
    ],
)
def test_the_interval_has_bounds(milliseconds, seconds):
    assert task_made({**MADE, "pollIntervalMs": milliseconds}, 0.0).interval == seconds


@pytest.mark.parametrize(("milliseconds", "at"), [(0, 7.0), (2500, 9.5), (10**400, math.inf), (None, math.inf)])
def test_its_time_counts_from_the_first_word_by_the_own_clock(milliseconds, at):
    task = task_made({**MADE, "ttlMs": milliseconds, "createdAt": "1970-01-01T00:00:00Z"}, 7.0)
    assert task.expires_at == at
    assert task.seen(word("working", ttlMs=milliseconds)).expires_at == at


def test_an_answer_is_kept_for_as_long_as_its_question_is_shown():
    task = task_made(MADE, 0.0).seen(word("input_required", inputRequests={"a": 1, "b": 2}))
    assert task.unanswered == "a"
    task = task.answered("a", "yes")
    assert (task.unanswered, task.unheard) == ("b", {"a": "yes"})
    task = task.answered("b", "no").seen(word("input_required", inputRequests={"a": 1}))
    assert (task.unanswered, task.unheard) == (None, {"a": "yes"})
    assert task.seen(word("working")).unheard == {}


def test_the_questions_of_its_whole_life_have_a_bound():
    task = task_made(MADE, 0.0)
    for at in range(0, MOST_QUESTIONS, 10):
        task = task.seen(word("input_required", inputRequests={str(at + n): 1 for n in range(10)})).seen(
            word("working")
        )
    task.seen(word("input_required", inputRequests={"0": 1}))
    with pytest.raises(BadTask, match="more than 100 questions"):
        task.seen(word("input_required", inputRequests={"one more": 1}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
members = st.sampled_from(
    [
        "taskId",
        "status",
        "statusMessage",
        "ttlMs",
        "pollIntervalMs",
        "inputRequests",
        "result",
        "error",
        "lastUpdatedAt",
    ]
)
words = st.builds(
    lambda status, more: word(status, **more), st.sampled_from(list(TaskStatus)), st.dictionaries(members, json_values)
)


@given(words, st.lists(words, max_size=6))
def test_whatever_a_server_says_is_a_state_by_the_table_or_an_error(made, said):
    try:
        task = task_made(made, 0.0)
    except BadTask:
        return
    for each in said:
        before = task
        try:
            task = task.seen(each)
        except BadTask:
            continue
        assert task.id == before.id
        assert task.status is before.status or task.status in TASK_TRANSITIONS[before.status]
        assert SHORTEST_INTERVAL <= task.interval <= LONGEST_INTERVAL
        assert task.expires_at >= 0
        assert task.is_over == (task.status in ("completed", "failed", "cancelled"))
        assert isinstance(task.outcome, {"completed": Answered, "failed": Rejected}.get(task.status, type(None)))
