"""What happened, typed: pure functions of the catalogue and snapshots before and after, and streams of them."""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
from attrs import frozen

from mcp_nursery.actors.messages import ServerState

from .catalogue import ServerTools
from .status import ServerStatus, Snapshot, retry_in
from .tools.pins import DefinitionChange

EVENT_BUFFER = 100
"""Events a reader may fall behind before it gets `Lagged` and snapshots instead."""


@frozen
class StateChanged:
    """A server came to another state, or to the same one by another incarnation or attempt."""

    server: str
    incarnation: int
    old: ServerState | None
    """None for a server that was added."""
    new: ServerState
    error: str | None
    """The last failure, one line; None once connected."""
    attempt: int
    """Which start this is, or which one is due, since the ladder began; from 1."""
    max_attempts: int
    """Starts in a row before it gives up."""
    retry_in: float | None
    """Seconds until the next start; None if none is due."""
    pid: int | None
    at: float
    """When, on Trio's clock."""


@frozen
class ToolsChanged:
    """A server's tools in the catalogue changed. Names are public ones."""

    server: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    """Still there, with another definition."""
    at: float


@frozen
class ServerRemoved:
    """A server is configured no more."""

    server: str
    at: float


@frozen
class InjectionSuspected:
    """A server said something that looks as if it was to instruct the model. Nothing was held back or changed."""

    server: str
    tool: str
    """The server's own name of the tool that was called."""
    signals: tuple[str, ...]
    """The signs found: see `tools.signals`."""
    at: float


@frozen
class DefinitionChanged:
    """A tool is not what it was when it was first used. Told once for each new difference."""

    server: str
    tool: str
    """The server's own name of it."""
    change: DefinitionChange
    """How it differs: `change.fields`, `change.diff`."""
    held: bool
    """Whether it is held back until a person accepts it."""
    at: float


@frozen
class Lagged:
    """The reader fell behind: this many events were dropped. A `SnapshotEvent` for each server follows."""

    missed: int


@frozen
class SnapshotEvent:
    """Where a server stands, after a lag."""

    status: ServerStatus


Event = StateChanged | ToolsChanged | ServerRemoved | InjectionSuspected | DefinitionChanged | Lagged | SnapshotEvent


def state_event(old: Snapshot | None, new: Snapshot, now: float) -> StateChanged | None:
    """The event that tells one snapshot from the next, if a user would care."""
    if old is not None and _position(old) == _position(new):
        return None
    return StateChanged(
        server=new.spec.name,
        incarnation=new.incarnation,
        old=None if old is None else old.state,
        new=new.state,
        error=new.error,
        attempt=new.attempt,
        max_attempts=new.max_attempts,
        retry_in=retry_in(new, now),
        pid=new.pid,
        at=now,
    )


def _position(snapshot: Snapshot) -> tuple[ServerState, int, int]:
    return snapshot.state, snapshot.incarnation, snapshot.attempt


def tools_event(old: ServerTools | None, new: ServerTools, now: float) -> ToolsChanged | None:
    """The event that tells one part of the catalogue from the next, if its tools differ."""
    before = {} if old is None else {tool.name: tool.definition for tool in old.tools if tool.name}
    after = {tool.name: tool.definition for tool in new.tools if tool.name}
    if before == after:
        return None
    return ToolsChanged(
        server=new.server,
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=tuple(sorted(name for name in before.keys() & after.keys() if before[name] != after[name])),
        at=now,
    )


def definition_events(old: Snapshot, new: Snapshot, now: float) -> list[DefinitionChanged]:
    """The events that tell which tools are found to differ from what they were when they were first used."""
    known, server = old.review.changes, new.spec.name
    return [
        DefinitionChanged(server, tool, change, tool in new.review.held, now)
        for tool, change in new.review.changes.items()
        if known.get(tool) != change
    ]


class EventStream(trio.abc.ReceiveChannel[Event]):
    """A reader's own buffer of events. A reader that falls behind loses events, never the truth about the servers."""

    def __init__(self, statuses: Callable[[], Sequence[ServerStatus]]) -> None:
        self._statuses = statuses
        self._buffer: deque[Event] = deque()
        self._missed = 0
        self._finished = False
        self._closed = False
        self._readers = trio.lowlevel.ParkingLot()

    def publish(self, event: Event) -> None:
        """Give the reader an event. Never waits."""
        if self._missed or len(self._buffer) >= EVENT_BUFFER:
            self._missed += 1  # and all that follow, until the snapshots that cover them
        else:
            self._buffer.append(event)
        self._readers.unpark_all()

    def finish(self) -> None:
        """No more events: the reader gets what is there, then the end."""
        self._finished = True
        self._readers.unpark_all()

    async def receive(self) -> Event:
        """The next event.

        Raises:
            trio.EndOfChannel: The supervisor is closed.
            trio.ClosedResourceError: The stream is closed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._closed:
                raise trio.ClosedResourceError
            if not self._buffer and self._missed:
                self._catch_up()
            if self._buffer:
                event = self._buffer.popleft()
                await trio.lowlevel.cancel_shielded_checkpoint()
                return event
            if self._finished:
                raise trio.EndOfChannel
            await self._readers.park()

    async def aclose(self) -> None:
        """Read no more."""
        self._closed = True
        self._readers.unpark_all()
        await trio.lowlevel.checkpoint()

    def _catch_up(self) -> None:
        """What was dropped is covered by where everything stands now."""
        self._buffer.append(Lagged(self._missed))
        self._buffer.extend(SnapshotEvent(status) for status in self._statuses())
        self._missed = 0


class EventHub:
    """Gives every open stream each event."""

    def __init__(self, statuses: Callable[[], Sequence[ServerStatus]]) -> None:
        self._statuses = statuses
        self._streams: set[EventStream] = set()
        self._finished = False

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[EventStream, None]:
        """A stream of all events from now on, for as long as the block lasts."""
        stream = EventStream(self._statuses)
        self._streams.add(stream)
        if self._finished:
            stream.finish()
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            with trio.CancelScope(shield=True):  # bounded: closing is one checkpoint
                await stream.aclose()

    def publish(self, event: Event | None) -> None:
        """Give an event to everyone; None is no event."""
        if event is not None:
            for stream in self._streams:
                stream.publish(event)

    def finish(self) -> None:
        """End every stream after what it has."""
        self._finished = True
        for stream in self._streams:
            stream.finish()
