"""The life of one task of a server (the extension Tasks): its statuses, the legal transitions between them, and what
each answer of its server makes of it. Pure.

A server may answer a call with a *task*: a name by which the result is asked for later. A `TaskState` is all that is
known of one at one moment. Times are those of the caller's own clock: the server's clock counts for nothing, so that no
step of it ends a task.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, cast

from mcp_nursery.actors.outcomes import Answered, Rejected
from mcp_nursery.actors.records import evolve, field, frozen

SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.1, 60.0
"""Seconds between two requests about a task, whatever its server wants."""
USUAL_INTERVAL: Final = 1.0
"""Seconds between them if its server does not say."""
MOST_QUESTIONS: Final = 100
"""Questions that a task may ask in its life."""
LONGEST_ID: Final = 1024
"""Characters of a task's id, and of the key of a question."""


class TaskStatus(StrEnum):
    """The status of a task, by its server's word."""

    WORKING = "working"
    """At work on the call."""
    INPUT_REQUIRED = "input_required"
    """Waiting for answers."""
    COMPLETED = "completed"
    """Over, with a result."""
    FAILED = "failed"
    """Over, with an error of JSON-RPC."""
    CANCELLED = "cancelled"
    """Cancelled."""


_T = TaskStatus

TASK_TRANSITIONS: Mapping[TaskStatus, frozenset[TaskStatus]] = MappingProxyType(
    {
        _T.WORKING: frozenset({_T.INPUT_REQUIRED, _T.COMPLETED, _T.FAILED, _T.CANCELLED}),
        _T.INPUT_REQUIRED: frozenset({_T.WORKING, _T.COMPLETED, _T.FAILED, _T.CANCELLED}),
        _T.COMPLETED: frozenset(),
        _T.FAILED: frozenset(),
        _T.CANCELLED: frozenset(),
    }
)
"""From each status, the statuses that may follow it. A status may always follow itself."""


class BadTask(ValueError):
    """A server's word about a task that cannot be true, or cannot be read."""


@frozen
class TaskState:
    """All that is known of one task at one moment."""

    id: str
    """The server's name for it."""
    status: TaskStatus
    begun_at: float
    """The time at which its server's first word about it came."""
    message: str | None = None
    """The server's words about its progress; None if there are none."""
    updated: object = None
    """The server's time of its last change, as it came."""
    interval: float = USUAL_INTERVAL
    """Seconds until it is asked about again, at least."""
    expires_at: float = math.inf
    """The time from which its server may have forgotten it."""
    questions: Mapping[str, Any] = field(factory=dict[str, Any], repr=False)
    """The questions that its server has no answers to, by their keys."""
    asked: frozenset[str] = frozenset()
    """The keys of all its questions so far."""
    answers: Mapping[str, Any] = field(factory=dict[str, Any], repr=False)
    """The answers that were given to its questions."""
    outcome: Answered | Rejected | None = field(default=None, repr=False)
    """The outcome of the call, once its server has told it."""

    @property
    def is_over(self) -> bool:
        """True if nothing follows: there is an outcome, or it was cancelled."""
        return self.outcome is not None or self.status is TaskStatus.CANCELLED

    @property
    def unanswered(self) -> str | None:
        """The key of a question that nobody has been asked yet; None if there is none."""
        return next((key for key in self.questions if key not in self.answers), None)

    @property
    def unheard(self) -> dict[str, Any]:
        """The answers that its server does not know by its last word. It may be told them again: a key means one
        question for good."""
        return {key: self.answers[key] for key in self.questions if key in self.answers}

    def answered(self, key: str, answer: object) -> "TaskState":
        """The task once a question was answered."""
        return evolve(self, answers={**self.answers, key: answer})

    def seen(self, raw: Mapping[str, Any], size: int = 0) -> "TaskState":
        """The task after an answer to `tasks/get`, which came in a message of `size` bytes.

        Raises:
            BadTask: It is about another task, goes back to an earlier status, or cannot be read.
        """
        if raw.get("taskId") != self.id:
            raise BadTask(f"asked about its task {self.id}, it answers about {raw.get('taskId')!r:.80}")
        status = _status(raw)
        if status is not self.status and status not in TASK_TRANSITIONS[self.status]:
            raise BadTask(f"its task went from {self.status} back to {status}")
        questions = _questions(raw) if status is TaskStatus.INPUT_REQUIRED else {}
        asked = self.asked | questions.keys()
        if len(asked) > MOST_QUESTIONS:
            raise BadTask(f"its task asks more than {MOST_QUESTIONS} questions")
        return evolve(
            self,
            **_facts(raw, self.begun_at),
            status=status,
            questions=questions,
            asked=asked,
            outcome=_outcome(status, raw, size),
        )


def task_made(raw: Mapping[str, Any], now: float) -> TaskState:
    """The task that a server has answered a call with.

    Raises:
        BadTask: It cannot be read.
    """
    name = raw.get("taskId")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID:
        raise BadTask(f"its task has the id {name!r:.80}, which is no text of 1 to {LONGEST_ID} characters")
    return TaskState(name, _status(raw), now, **_facts(raw, now))


def _status(raw: Mapping[str, Any]) -> TaskStatus:
    status = raw.get("status")
    if not isinstance(status, str) or status not in TASK_TRANSITIONS:
        raise BadTask(f"its task has the unknown status {status!r:.40}")
    return TaskStatus(status)


def _facts(raw: Mapping[str, Any], begun_at: float) -> dict[str, Any]:
    """The members that every word about a task has."""
    message, lasts, interval = raw.get("statusMessage"), raw.get("ttlMs"), raw.get("pollIntervalMs")
    if not isinstance(message, str | None):
        raise BadTask("the statusMessage of its task is no text")
    lasts, interval = _milliseconds("ttlMs", lasts), _milliseconds("pollIntervalMs", interval)
    return {
        "message": message,
        "updated": raw.get("lastUpdatedAt"),
        "interval": USUAL_INTERVAL if interval is None else min(max(interval, SHORTEST_INTERVAL), LONGEST_INTERVAL),
        "expires_at": math.inf if lasts is None else begun_at + lasts,
    }


def _milliseconds(member: str, value: object) -> float | None:
    """The seconds that a member says; None if it is absent."""
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= cast("float", value) < math.inf:
        raise BadTask(f"the {member} of its task is {value!r:.40}, which is no number of milliseconds")
    try:
        return cast("float", value) / 1000
    except OverflowError:  # an integer beyond all floats
        return math.inf


def _questions(raw: Mapping[str, Any]) -> dict[str, Any]:
    questions = raw.get("inputRequests")
    if not isinstance(questions, dict):
        raise BadTask("its task requires input, and asks nothing")
    asked = cast("dict[str, Any]", questions)
    if any(len(key) > LONGEST_ID for key in asked):
        raise BadTask(f"the key of a question of its task has more than {LONGEST_ID} characters")
    return asked


def _outcome(status: TaskStatus, raw: Mapping[str, Any], size: int) -> Answered | Rejected | None:
    if status is TaskStatus.COMPLETED:
        result = raw.get("result")
        if not isinstance(result, dict):
            raise BadTask("its task is completed, and has no result")
        given = cast("dict[str, Any]", result)
        if given.get("resultType", "complete") != "complete":
            raise BadTask(f"the result of its task has the resultType {given['resultType']!r:.40}")
        return Answered({"resultType": "complete", **given}, size)
    if status is TaskStatus.FAILED:
        error = raw.get("error")
        said = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
        code, message = said.get("code"), said.get("message")
        if type(code) is not int or not isinstance(message, str):
            raise BadTask("its task has failed, and says with no error of JSON-RPC why")
        return Rejected(code, message, said.get("data"), size)
    return None
