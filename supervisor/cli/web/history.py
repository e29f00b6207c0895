"""The past of each server, while there is a page that shows it: its incarnations, its events, its load.

One task writes the past, from the events of a supervisor; pages read it between two steps of that task. It is bounded
for each server, and a server that is removed is forgotten.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import trio
from attrs import define, field, frozen

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.events import Event, Lagged, ServerRemoved, SnapshotEvent, StateChanged
from mcp_nursery.supervisor.status import Latency, ServerStatistics, ServerStatus

from ..statuses import is_step, line_of_event

MOST_INCARNATIONS: Final = 30
"""Incarnations that are kept of a server."""
MOST_EVENTS: Final = 100
"""Events that are kept of a server, and of all servers together."""
PULSE: Final = 1.0
"""Seconds between two reads of what changes without an event: calls, sessions, figures."""
SAMPLE: Final = 10.0
"""Seconds that one point of a plot covers."""
POINTS: Final = 60
"""Points of a plot: ten minutes."""


@define
class IncarnationRecord:
    """One connection of a server, or the attempt to open it. Times are those of Trio's clock."""

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


@frozen
class EventRecord:
    """One event."""

    at: float
    """The time, on Trio's clock."""
    line: str


@frozen
class Load:
    """The calls of one server within `SAMPLE` seconds."""

    done: int
    failed: int


@define(eq=False)
class ServerHistory:
    """The past of one server."""

    incarnations: deque[IncarnationRecord] = field(factory=lambda: deque[IncarnationRecord](maxlen=MOST_INCARNATIONS))
    events: deque[EventRecord] = field(factory=lambda: deque[EventRecord](maxlen=MOST_EVENTS))
    load: deque[Load] = field(factory=lambda: deque[Load](maxlen=POINTS))
    _counted: tuple[int, int] | None = field(default=None, init=False)

    @property
    def busy(self) -> Sequence[Load]:
        """The load; empty if there were no calls."""
        return tuple(self.load) if any(each.done or each.failed for each in self.load) else ()

    def begin(self, status: ServerStatus) -> None:
        """Begin with a server as it is now: at the beginning, or after its events were missed."""
        if self.incarnations and self.incarnations[-1].number == status.incarnation:
            return
        now, record = trio.current_time(), None
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
        elif last is not None and last.ended is None:
            last.ended, last.why, last.then = at, event.error, str(event.new)
            last.next_at = None if event.retry_in is None else at + event.retry_in

    def record_load(self, done: int, failed: int) -> None:
        """Record the calls since the last time. `done` and `failed` are the numbers so far."""
        before, self._counted = self._counted, (done, failed)
        if before is not None:
            self.load.append(Load(max(0, done - before[0]), max(0, failed - before[1])))


@define(eq=False)
class History:
    """The past of all servers of a supervisor."""

    supervisor: Supervisor
    servers: dict[str, ServerHistory] = field(factory=dict[str, ServerHistory], init=False)
    events: deque[EventRecord] = field(factory=lambda: deque[EventRecord](maxlen=MOST_EVENTS), init=False)
    statistics: dict[str, ServerStatistics] = field(factory=dict[str, ServerStatistics], init=False)
    """The figures of each server a short while ago: they take longer to compute than its status."""
    statuses: dict[str, ServerStatus] = field(factory=dict[str, ServerStatus], init=False)
    """The statuses of the servers when they were last read, in their order."""
    changed: trio.Event = field(factory=trio.Event, init=False)
    """Set, and replaced, at each event."""
    _figured_at: float = field(default=-math.inf, init=False)

    async def run(self) -> None:
        """Record, until the supervisor is closed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sample)
            async with self.supervisor.events() as events:
                async for event in events:
                    self._record(event)
            nursery.cancel_scope.cancel()

    def of(self, server: str) -> ServerHistory:
        """The past of a server; empty if nothing is known."""
        return self.servers.get(server) or ServerHistory()

    def latency_of(self, server: str) -> Latency | None:
        """The latency of a server's calls by the last figures; None if it had no calls."""
        seen = self.statistics.get(server)
        return None if seen is None else seen.latency

    def look(self) -> None:
        """Read the statuses of all servers now, and their figures once a second."""
        self.statuses = {status.name: status for status in self.supervisor.status()}
        now = trio.current_time()
        if now - self._figured_at >= PULSE:
            self._figured_at = now
            self.statistics = dict(self.supervisor.statistics(by_tool=False).by_server)

    async def _sample(self) -> None:
        while True:
            for status in self.supervisor.status():
                self._keep(status.name).record_load(status.calls.done, status.calls.failed)
            await trio.sleep(SAMPLE)

    def _keep(self, server: str) -> ServerHistory:
        return self.servers.setdefault(server, ServerHistory())

    def _record(self, event: Event) -> None:
        match event:
            case SnapshotEvent(status=status):
                self._keep(status.name).begin(status)
            case ServerRemoved(server=server):
                self.servers.pop(server, None)
            case StateChanged(server=server):
                self._keep(server).record_state(event, event.at)
            case _:
                pass
        if not is_step(event):
            self._record_line(event)
        self.changed.set()
        self.changed = trio.Event()

    def _record_line(self, event: Event) -> None:
        if isinstance(event, SnapshotEvent):
            return
        record = EventRecord(trio.current_time() if isinstance(event, Lagged) else event.at, line_of_event(event))
        self.events.append(record)
        own = self.servers.get(getattr(event, "server", ""))
        if own is not None:
            own.events.append(record)


def latest(records: Iterable[EventRecord]) -> list[EventRecord]:
    """The events, the latest first."""
    return list(records)[::-1]
