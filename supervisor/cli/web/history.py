"""The past of each server, while there is a page that shows it: its incarnations, its events, its load.

One task writes the past, from the events of a supervisor; pages read it between two steps of that task. It is bounded
for each server, and a server that is removed is forgotten.
"""

import math
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import UnknownServer
from mcp_nursery.actors.records import define, field
from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.events import Event, Lagged, SnapshotEvent, StateChanged, TaskChanged
from mcp_nursery.supervisor.status import Latency, ServerStatistics, ServerStatus

from ..lives import MOST_EVENTS, SAMPLE, EventRecord, ServerHistory, TaskSpan, record_event, window_of
from ..statuses import is_step, line_of_event

PULSE: Final = 1.0
"""Seconds between two reads of what changes without an event: calls, sessions, figures."""


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
    _began: float = field(factory=trio.current_time, init=False)
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

    @property
    def window(self) -> float:
        """Seconds that the timelines of all servers cover."""
        return window_of(trio.current_time() - self._began)

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
                calls = status.calls
                past = self.servers.setdefault(status.name, ServerHistory())
                past.record_load(calls.done, calls.failed, trio.current_time())
            await trio.sleep(SAMPLE)

    def _record(self, event: Event) -> None:
        record_event(self.servers, event, trio.current_time())
        match event:
            case StateChanged(new=ServerState.CONNECTED) if event.old is not ServerState.CONNECTED:
                with suppress(UnknownServer):  # it was removed since
                    calls = self.supervisor.status_of(event.server).calls
                    self.servers[event.server].incarnations[-1].held = calls.in_flight - calls.tasks
            case TaskChanged(task=task) if event.server in self.servers:
                offset = event.at - time.time()  # tasks have Unix times
                ended = None if task.finished is None else offset + task.finished
                self.servers[event.server].record_task(TaskSpan(task.id, task.tool, offset + task.created, ended))
            case Lagged():  # the end of a task may be among what was missed
                for past in self.servers.values():
                    past.tasks.clear()
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
