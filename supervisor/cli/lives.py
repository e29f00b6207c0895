"""The lives of a server, kept from its events: incarnations, losses with reasons, waits, tasks, and calls by time.

Pages draw them and terminals write them, both from the same spans. Pure: times are those of the recorder's clock.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from typing import Final

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.records import define, evolve, field, frozen
from mcp_nursery.supervisor.events import Event, ServerRemoved, SnapshotEvent, StateChanged
from mcp_nursery.supervisor.status import ServerStatus

MOST_INCARNATIONS: Final = 30
"""Incarnations that are kept of a server."""
MOST_EVENTS: Final = 100
"""Events that are kept of a server, and of all servers together."""
DRAWN_TASKS: Final = 30
"""Tasks that are kept of a server."""
POINTS: Final = 60
"""Points of time with calls that are kept of a server."""
SAMPLE: Final = 10.0
"""Seconds that one of them covers."""
HOUR: Final = 3600.0
"""Seconds in which losses are counted."""
_WINDOWS: Final = (60.0, 300.0, 900.0, HOUR)
"""Seconds that a timeline may cover."""


@define
class IncarnationRecord:
    """One connection of a server, or the attempt to open it."""

    number: int
    attempt: int
    began: float
    connected: float | None = None
    ended: float | None = None
    """The time of its end; None while it lasts."""
    why: str | None = None
    """The reason of its end, one line."""
    then: str = ""
    """The state of the server after it."""
    next_at: float | None = None
    """The time of the next start, if one was due."""
    held: int = 0
    """The number of calls that were under way when it was connected, other than tasks: they had waited for it."""


@frozen
class TaskSpan:
    """A task while it is under way, as far as its changes were seen."""

    id: str
    tool: str
    began: float
    ended: float | None = None


@frozen
class EventRecord:
    """One event."""

    at: float
    """The time, on Trio's clock."""
    line: str


@frozen
class Load:
    """The calls of one server within `SAMPLE` seconds."""

    at: float
    """The end of these seconds."""
    done: int
    failed: int


class LifePhase(StrEnum):
    """A part of a life that is drawn in one way."""

    BEGIN = "begin"
    """A start is under way."""
    UP = "up"
    WAIT = "wait"
    """A start is due."""
    DOWN = "down"
    """No start is due: somebody has to act."""


@frozen
class Span:
    """A part of a life."""

    phase: LifePhase
    began: float
    ended: float | None
    """The time of its end; None while it lasts."""
    record: IncarnationRecord
    """The incarnation that it is part of, or that was lost before it."""


_AFTER: Final = {
    "waiting": LifePhase.WAIT,
    "failed": LifePhase.DOWN,
    "needs_auth": LifePhase.DOWN,
    "blocked": LifePhase.DOWN,
}
"""The phase after an incarnation, by the state that followed; after others nothing is drawn."""


@define(eq=False)
class ServerHistory:
    """The past of one server."""

    incarnations: deque[IncarnationRecord] = field(factory=lambda: deque[IncarnationRecord](maxlen=MOST_INCARNATIONS))
    events: deque[EventRecord] = field(factory=lambda: deque[EventRecord](maxlen=MOST_EVENTS))
    load: deque[Load] = field(factory=lambda: deque[Load](maxlen=POINTS))
    """The calls, by time; nothing where there were none."""
    tasks: deque[TaskSpan] = field(factory=lambda: deque[TaskSpan](maxlen=DRAWN_TASKS))
    _counted: tuple[int, int] | None = field(default=None, init=False)

    def begin(self, status: ServerStatus, now: float) -> None:
        """Begin with a server as it is now: at the beginning, or after its events were missed."""
        if self.incarnations and self.incarnations[-1].number == status.incarnation:
            return
        record = None
        if status.uptime is not None:
            since = now - status.uptime
            record = IncarnationRecord(status.incarnation, status.attempt, since, since)
        elif status.state is ServerState.CONNECTING:
            record = IncarnationRecord(status.incarnation, status.attempt, now)
        elif status.error is not None and status.incarnation:
            due = None if status.retry_in is None else now + status.retry_in
            due_too = status.state is ServerState.WAITING and status.attempt > 1
            attempt = status.attempt - due_too  # without the attempt that is due
            record = IncarnationRecord(
                status.incarnation, attempt, now, ended=now, why=status.error, then=str(status.state), next_at=due
            )
        if record is not None:
            self.incarnations.append(record)

    def record_state(self, event: StateChanged, at: float) -> None:
        """Record that the state of the server has changed."""
        last = self.incarnations[-1] if self.incarnations else None
        if event.new is ServerState.CONNECTING:
            if last is None or last.ended is not None or last.number != event.incarnation:
                self.incarnations.append(IncarnationRecord(event.incarnation, event.attempt, at))
        elif event.new is ServerState.CONNECTED:
            if last is None or last.number != event.incarnation or last.ended is not None:
                last = IncarnationRecord(event.incarnation, event.attempt, at)
                self.incarnations.append(last)
            last.connected = last.connected or at
        elif last is not None:
            if last.ended is None:
                last.ended, last.why = at, event.error
            last.then = str(event.new)
            last.next_at = None if event.retry_in is None else at + event.retry_in

    def record_task(self, task: TaskSpan) -> None:
        """Record a task of the server as it is now. It began when it was first said to have."""
        known = {each.id: each for each in self.tasks}
        known[task.id] = evolve(task, began=known.get(task.id, task).began)
        self.tasks.clear()
        self.tasks.extend(sorted(known.values(), key=attrgetter("began")))

    @property
    def task_states(self) -> tuple[tuple[str, float | None], ...]:
        """Equal as long as its tasks are drawn in the same way."""
        return tuple((each.id, each.ended) for each in self.tasks)

    def record_load(self, done: int, failed: int, at: float) -> None:
        """Record the calls since the last time. `done` and `failed` are the numbers so far."""
        before, self._counted = self._counted, (done, failed)
        if before is not None and (done, failed) > before:
            self.load.append(Load(at, done - before[0], failed - before[1]))

    def losses(self, since: float) -> Sequence[IncarnationRecord]:
        """The incarnations that were lost, or never connected, since then."""
        return [each for each in self.incarnations if each.why is not None and (each.ended or since) > since]

    @property
    def troubled_at(self) -> float | None:
        """The time of the loss with which the present trouble began: starts in a row are one trouble. None if nothing
        is known to be lost."""
        for record in reversed(self.incarnations):
            if record.attempt <= 1 or record is self.incarnations[0]:
                return record.ended
        return None

    def spans(self, since: float) -> Sequence[Span]:
        """All that is drawn of the time since then, in its order."""
        spans = chain.from_iterable(self._all_spans())
        return [each for each in spans if each.ended is None or each.ended > max(since, each.began)]

    def _all_spans(self) -> Iterator[Sequence[Span]]:
        records: list[IncarnationRecord | None] = [*self.incarnations]
        for each, following in zip(self.incarnations, [*records[1:], None], strict=False):
            yield [Span(LifePhase.BEGIN, each.began, each.ended if each.connected is None else each.connected, each)]
            if each.connected is not None:
                yield [Span(LifePhase.UP, each.connected, each.ended, each)]
            if each.ended is not None and each.then in _AFTER:
                yield [Span(_AFTER[each.then], each.ended, None if following is None else following.began, each)]


def record_event(pasts: dict[str, ServerHistory], event: Event, now: float) -> None:
    """Record an event in the past of its server, and forget a server that is removed."""
    match event:
        case SnapshotEvent(status=status):
            pasts.setdefault(status.name, ServerHistory()).begin(status, now)
        case ServerRemoved(server=server):
            pasts.pop(server, None)
        case StateChanged(server=server):
            pasts.setdefault(server, ServerHistory()).record_state(event, now)
        case _:
            pass


def window_of(age: float) -> float:
    """The seconds that timelines cover if the oldest fact of all servers is so many seconds old."""
    return next((each for each in _WINDOWS if age <= each), _WINDOWS[-1])


BLOCKS: Final = {LifePhase.BEGIN: "▒", LifePhase.UP: "█", LifePhase.WAIT: "░", LifePhase.DOWN: "▁"}
"""The characters of a life on a terminal."""
LOST: Final = "╳"  # noqa: RUF001 - it is drawn like the blocks
"""The character of a loss."""
PLAIN_BLOCKS: Final = {LifePhase.BEGIN: "~", LifePhase.UP: "=", LifePhase.WAIT: ".", LifePhase.DOWN: "_"}
"""The same on a terminal that has ASCII alone."""


def line_of_life(past: ServerHistory, now: float, window: float, width: int, *, plain: bool = False) -> str:
    """The last `window` seconds of a life in so many characters: a block for each phase, and a cross for each loss."""
    since, marks, cells = now - window, PLAIN_BLOCKS if plain else BLOCKS, [" "] * width

    def cell(at: float) -> int:
        return min(max(int((at - since) / window * width), 0), width - 1)

    for span in past.spans(since):
        for number in range(cell(span.began), cell(now if span.ended is None else span.ended) + 1):
            cells[number] = marks[span.phase]
    for lost in past.losses(since):
        cells[cell(lost.ended or now)] = "x" if plain else LOST
    return "".join(cells)
