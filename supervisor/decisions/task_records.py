"""The records of tasks that outlive the calls they were made for, and their host: the facts that a later host needs to
go on with one. Pure.

Arguments are no part of a record. Answers to a task's questions are, until it is over: a question that was answered is
then asked nobody again. A record is checked like the words of a server when it is read.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from mcp_nursery.actors.argument_checks import finite_seconds_or_none, seconds, setting
from mcp_nursery.actors.records import evolve, field, frozen

from .task_states import TASK_TRANSITIONS, TaskStatus

RESULT_KEPT: Final = 3600.0
"""Seconds for which a finished task is recorded, with its result, unless it was made with another time."""
LONGEST_KEPT: Final = 30 * 24 * 3600.0
"""Seconds for which one is recorded at most, and after which a task that no host follows is forgotten."""
LAST_TIME: Final = 253_402_300_799.0
"""The last Unix time that a date can have, for times in records, which may be damaged."""
ANYBODY: Final = "anybody"
"""The beginning of the ids of tasks that a gateway has made, in place of a digest, for clients that are not told
apart."""


def _kept(ttl: object) -> str | None:
    fits = seconds(ttl) is None and 0 < cast("float", ttl) <= LONGEST_KEPT
    return None if fits else f"seconds > 0 and <= {LONGEST_KEPT:g}"


@frozen(kw_only=True)
class MadeTasks:
    """The tasks that a gateway makes of calls that take long, for clients that declare the extension Tasks, if the
    server of the call does not.

    Raises:
        ConfigError: A value out of its range.
    """

    after: float | None = field(default=None, validator=setting(finite_seconds_or_none))
    """Seconds after which a call becomes a task. None: as the gateway has it, which by default makes none."""
    ttl: float = field(default=RESULT_KEPT, validator=setting(_kept))
    """Seconds for which the result is kept, at most 30 days."""


@frozen
class TaskInfo:
    """The facts about a task at one moment. Times are Unix times, in seconds."""

    id: str
    """The supervisor's name of it."""
    server: str
    """The name of its server."""
    tool: str
    """The server's own name of the tool."""
    status: TaskStatus
    """`working` or `input_required`, by the server's last word; or `completed`, `failed` or `cancelled`: it is over. A
    task that has ended without its server's word is `cancelled` if its time was over, else `failed`."""
    created: float
    """The time at which its server made it, or had answered at once."""
    message: str | None = None
    """The server's last words about its progress, without secrets; None if it said nothing."""
    questions: tuple[str, ...] = ()
    """The questions that wait for an answer, without secrets: the words of each, or the method if it has none."""
    expires: float | None = None
    """The time from which its server may have forgotten it; None if it does not say. The time until which the result of
    a task is recorded that a gateway has made."""
    finished: float | None = None
    """The time at which its end was learnt; None while it is under way."""
    error: str | None = None
    """The error of a task that has finished without a result, one line."""


@frozen
class TaskRecord:
    """A task, with all that is needed to go on with it."""

    info: TaskInfo
    spec: str
    """The digest of how its server was reached; empty if that does not last."""
    definition: str
    """The `Tool.definition_hash` of the tool."""
    task: str
    """The server's id of it; empty if a gateway has made it."""
    deadline: float | None = None
    """The time at which its caller gives up; None if never."""
    asked: frozenset[str] = frozenset()
    """The keys of all its questions so far."""
    answers: Mapping[str, Any] = field(factory=dict[str, Any], repr=False)
    """The answers that were given, by the keys of the questions; none once it is over."""
    outcome: Mapping[str, Any] | None = field(default=None, repr=False)
    """The outcome, as JSON, once it is over; None also if it was too large to be kept."""

    @property
    def is_made(self) -> bool:
        """True if a gateway has made the task of a call."""
        return not self.task

    def columns(self) -> tuple[str, str, str | None]:
        """The columns `about`, `state` and `outcome`: what never changes, what does, and the outcome. JSON in ASCII,
        because names may hold what no other encoding can."""
        info = self.info
        about = {
            "server": info.server,
            "tool": info.tool,
            "spec": self.spec,
            "definition": self.definition,
            "task": self.task,
            "deadline": self.deadline,
        }
        state = {
            "status": str(info.status),
            "message": info.message,
            "questions": info.questions,
            "expires": info.expires,
            "error": info.error,
            "asked": sorted(self.asked),
            "answers": dict(self.answers),
        }
        return json.dumps(about), json.dumps(state), None if self.outcome is None else json.dumps(self.outcome)

    def moved(self, seconds: float) -> "TaskRecord":
        """The record by a clock that is so many seconds ahead."""
        if not seconds:
            return self
        info, deadline = self.info, self.deadline
        info = evolve(
            info,
            created=info.created + seconds,
            expires=None if info.expires is None else info.expires + seconds,
            finished=None if info.finished is None else info.finished + seconds,
        )
        return evolve(self, info=info, deadline=None if deadline is None else deadline + seconds)

    def over(self, at: float, status: TaskStatus, outcome: Mapping[str, Any] | None, error: str | None) -> "TaskRecord":
        """The record of the finished task: answers may be secret, and nobody needs them any more."""
        info = evolve(self.info, status=status, questions=(), finished=at, error=error)
        return evolve(self, info=info, answers={}, outcome=outcome)


def record_in(row: Sequence[object]) -> TaskRecord | None:
    """The record in a row with the columns `id`, `created`, `finished`, `about`, `state` and `outcome`; None if no
    version of ours can have written it."""
    name, created, finished, about, state, outcome = row
    try:
        facts, now = _object(about), _object(state)
        status = _text(now["status"])
        if status not in TASK_TRANSITIONS:
            return None
        info = TaskInfo(
            id=_text(name),
            server=_text(facts["server"]),
            tool=_text(facts["tool"]),
            status=TaskStatus(status),
            created=finite(created),
            message=None if now["message"] is None else _text(now["message"]),
            questions=tuple(map(_text, _list(now["questions"]))),
            expires=None if now["expires"] is None else finite(now["expires"]),
            finished=None if finished is None else finite(finished),
            error=None if now["error"] is None else _text(now["error"]),
        )
        return TaskRecord(
            info,
            spec=_text(facts["spec"]),
            definition=_text(facts["definition"]),
            task=_text(facts["task"]),
            deadline=None if facts["deadline"] is None else finite(facts["deadline"]),
            asked=frozenset(map(_text, _list(now["asked"]))),
            answers=_members(now["answers"]),
            outcome=None if outcome is None else _object(outcome),
        )
    except (ValueError, KeyError, RecursionError):
        return None


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError


def finite(value: object) -> float:
    """A number that somebody else has written.

    Raises:
        ValueError: It is no number, or none that is finite as a float.
    """
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond all floats
        pass
    raise ValueError


def _list(value: object) -> list[Any]:
    if isinstance(value, list):
        return value  # pyright: ignore[reportUnknownVariableType]
    raise ValueError


def _members(value: object) -> dict[str, Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    raise ValueError


def _object(column: object) -> dict[str, Any]:
    return _members(json.loads(_text(column)))
