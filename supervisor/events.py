"""What happened, typed: pure functions of the catalogue and snapshots before and after, and streams of them.

A change of a server is told by one event of each kind that it is of, however many tools it has: its state, its tools,
what differs of them from when they were first used. All of them follow the step in which everybody can see the change.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import final

import trio
from attrs import define, field, frozen

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.outcomes import Challenge
from mcp_nursery.actors.pieces import Steps

from .catalogue.server_offers import ServerOffers
from .catalogue.server_tools import ServerTools
from .circuit_breaker import BreakerState
from .spec import ServerSpec
from .state_machine import Snapshot
from .status import ServerStatus
from .tools.pins import DefinitionChange

__all__ = [
    "BreakerChanged",
    "DefinitionChange",
    "DefinitionsChanged",
    "Event",
    "EventStream",
    "InjectionSuspected",
    "Lagged",
    "PromptsChanged",
    "ReloadFailed",
    "Reloaded",
    "ResourceUpdated",
    "ResourceUpdates",
    "ResourcesChanged",
    "ServerRemoved",
    "SnapshotEvent",
    "StateChanged",
    "ToolsChanged",
]

EVENT_BUFFER = 100
"""Events a reader may fall behind before it gets `Lagged` and snapshots instead; the snapshots do not count."""


@frozen
class StateChanged:
    """A server came to another state, or to the same one by another incarnation or attempt, or with another error."""

    server: str
    """Its name."""
    incarnation: int
    """The connection it is about, from 1; in `connecting` the one that is being made. 0 before the first."""
    old: ServerState | None
    """None for a server that was added."""
    new: ServerState
    """The state that it is in."""
    error: str | None
    """The last failure, one line; None once connected."""
    attempt: int
    """Which start this is, or which one is due, since the ladder began; from 1."""
    max_attempts: int
    """Starts in a row before it gives up."""
    retry_in: float | None
    """Seconds until the next start; None if none is due."""
    pid: int | None
    """Its process, where there is one."""
    at: float
    """When, on Trio's clock."""
    challenge: Challenge | None = None
    """In `needs_auth`: what the server said was missing, if it did."""


@frozen
class ToolsChanged:
    """A server's tools in the catalogue changed. Names are public ones."""

    server: str
    """Its name."""
    added: tuple[str, ...]
    """Tools that were not there before."""
    removed: tuple[str, ...]
    """Tools that are gone."""
    changed: tuple[str, ...]
    """Still there, with another definition."""
    at: float
    """When, on Trio's clock."""


@frozen
class ResourcesChanged:
    """A server's resources in the catalogue changed, or their templates."""

    server: str
    """Its name."""
    added: tuple[str, ...]
    """URIs, and templates, that were not there before."""
    removed: tuple[str, ...]
    """URIs, and templates, that are gone."""
    changed: tuple[str, ...]
    """Still there, with another definition. Of what they hold, `ResourceUpdated` tells."""
    at: float
    """When, on Trio's clock."""


@frozen
class PromptsChanged:
    """A server's prompts in the catalogue changed. Names are public ones."""

    server: str
    """Its name."""
    added: tuple[str, ...]
    """Prompts that were not there before."""
    removed: tuple[str, ...]
    """Prompts that are gone."""
    changed: tuple[str, ...]
    """Still there, with another definition."""
    at: float
    """When, on Trio's clock."""


@frozen
class ResourceUpdated:
    """What a resource holds has changed, or may have: read it again. Only of those that are subscribed."""

    server: str
    """Its server's name."""
    uri: str
    """What was subscribed: this resource, or one under it."""
    certain: bool
    """Whether the server said so. False: nobody listened for a while, after a loss for example."""
    at: float
    """When, on Trio's clock."""


@frozen
class ServerRemoved:
    """A server is configured no more."""

    server: str
    """Its name."""
    at: float
    """When, on Trio's clock."""


@frozen
class Reloaded:
    """Servers were configured anew, all in one step: see `Supervisor.reload`. Each name stands in one of the lists."""

    added: tuple[str, ...]
    """Servers that are new."""
    changed: tuple[str, ...]
    """Servers that begin again: by another spec, or because all were to."""
    removed: tuple[str, ...]
    """Servers that are configured no more."""
    untouched: tuple[str, ...]
    """Servers that go on as they are."""
    at: float
    """When, on Trio's clock."""


@frozen
class ReloadFailed:
    """Servers were to be configured anew, and what was given cannot be used. Nothing has changed."""

    error: str
    """Why, one line."""
    at: float
    """When, on Trio's clock."""


@frozen
class InjectionSuspected:
    """A server said something that looks as if it was to instruct the model. Nothing was held back or changed."""

    server: str
    """Its name."""
    tool: str
    """The server's own name of the tool that was called."""
    signals: tuple[str, ...]
    """Names of the injection signals found."""
    at: float
    """When, on Trio's clock."""


@frozen
class DefinitionsChanged:
    """Tools are not what they were when they were first used. One event for all new differences that a server shows at
    once, however many tools it has; behind a `SnapshotEvent`, for all that nobody has accepted yet."""

    server: str
    """Its name."""
    changes: tuple[DefinitionChange, ...]
    """The tools, and how each differs: `change.tool`, `change.fields`, `change.diff`."""
    held: bool
    """Whether they are held back until a person accepts them."""
    at: float
    """When, on Trio's clock."""


@frozen
class BreakerChanged:
    """The circuit breaker of a server has opened, lets a call probe, or is closed again."""

    server: str
    """Its name."""
    state: BreakerState
    """`open`: calls fail at once. `half_open`: one call probes. `closed`: calls are sent."""
    failures: int
    """Failures in a row so far."""
    retry_in: float | None
    """Seconds until a call may probe; None while it is closed."""
    at: float
    """When, on Trio's clock."""


@frozen
class Lagged:
    """The reader fell behind: this many events were dropped. What a stream begins with follows: where every server
    stands, and then what happens from now on. A reader that forgets here what it put together from events then has the
    truth again."""

    missed: int
    """How many."""


@frozen
class SnapshotEvent:
    """Where a server stands, at the beginning and after a lag. Where its tools are not what they were when they were
    first used, and nobody has accepted that, `DefinitionsChanged` follows."""

    status: ServerStatus
    """Its status now."""


Event = (
    StateChanged
    | ToolsChanged
    | ResourcesChanged
    | PromptsChanged
    | ResourceUpdated
    | ServerRemoved
    | Reloaded
    | ReloadFailed
    | InjectionSuspected
    | DefinitionsChanged
    | BreakerChanged
    | Lagged
    | SnapshotEvent
)

StandingEvent = SnapshotEvent | DefinitionsChanged
"""What a stream begins with."""


def _standing(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.state, snapshot.incarnation, snapshot.attempt, snapshot.error


def state_event(old: Snapshot | None, new: Snapshot, now: float) -> StateChanged | None:
    """The event that tells one snapshot from the next, if a user would care."""
    if old is not None and _standing(old) == _standing(new):
        return None
    return StateChanged(
        server=new.spec.name,
        incarnation=new.incarnation,
        old=None if old is None else old.state,
        new=new.state,
        error=new.error,
        attempt=new.attempt,
        max_attempts=new.max_attempts,
        retry_in=new.retry_in(now),
        pid=new.pid,
        at=now,
        challenge=new.challenge,
    )


def tools_event_steps(old: ServerTools | None, new: ServerTools, now: float) -> Steps[ToolsChanged | None]:
    """The event that tells one part of the catalogue from the next, if its tools differ."""
    old = ServerTools(new.server) if old is None else old
    if old.tools is new.tools:
        return None
    before, after = old.names, new.names
    changed: list[str] = []
    for name in before.keys() & after.keys():
        yield
        one, other = old.tools[before[name]].declared, new.tools[after[name]].declared
        if one is not other and one != other:
            changed.append(name)
    added, removed = after.keys() - before.keys(), before.keys() - after.keys()
    if not (added or removed or changed):
        return None
    return ToolsChanged(new.server, tuple(sorted(added)), tuple(sorted(removed)), tuple(sorted(changed)), now)


def offers_event_steps(
    server: str, old: ServerOffers, new: ServerOffers, now: float
) -> Steps[list[ResourcesChanged | PromptsChanged]]:
    """The events that tell what a server offers besides tools from what it offered before."""
    events: list[ResourcesChanged | PromptsChanged] = []
    resources = yield from _difference(_readable(old), _readable(new))
    if resources is not None:
        events.append(ResourcesChanged(server, *resources, now))
    prompts = yield from _difference(_named(old), _named(new))
    if prompts is not None:
        events.append(PromptsChanged(server, *prompts, now))
    return events


def _readable(offers: ServerOffers) -> dict[str, object]:
    if not offers.shown:
        return {}
    known: dict[str, object] = {template.uri_template: template.declared for template in offers.templates}
    return known | {resource.uri: resource.declared for resource in offers.resources}


def _named(offers: ServerOffers) -> dict[str, object]:
    return {prompt.name: prompt.declared for prompt in offers.prompts if prompt.name and offers.shown}


_Names = tuple[str, ...]


def _difference(before: dict[str, object], after: dict[str, object]) -> Steps[tuple[_Names, _Names, _Names] | None]:
    """What was added, removed and changed; None if nothing was."""
    changed: list[str] = []
    for name in before.keys() & after.keys():
        yield
        if before[name] is not after[name] and before[name] != after[name]:
            changed.append(name)
    added, removed = after.keys() - before.keys(), before.keys() - after.keys()
    if not (added or removed or changed):
        return None
    return tuple(sorted(added)), tuple(sorted(removed)), tuple(sorted(changed))


def definitions_event_steps(old: Snapshot, new: Snapshot, now: float) -> Steps[DefinitionsChanged | None]:
    """The event that tells which tools are found to differ from what they were when they were first used, if any."""
    known, review = old.review.changes, new.review
    if known is review.changes:
        return None
    changes: list[DefinitionChange] = []
    for tool, change in review.changes.items():
        yield
        if known.get(tool) != change:
            changes.append(change)
    return _differing(new, changes, now)


def standing_events(snapshot: Snapshot, status: ServerStatus, now: float) -> Sequence[StandingEvent]:
    """What tells a reader that heard nothing before where a server stands."""
    differing = _differing(snapshot, snapshot.review.changes.values(), now)
    return [SnapshotEvent(status), *([] if differing is None else [differing])]


def _differing(snapshot: Snapshot, changes: Collection[DefinitionChange], now: float) -> DefinitionsChanged | None:
    if not changes:
        return None
    held = any(change.tool in snapshot.review.held for change in changes)
    return DefinitionsChanged(snapshot.spec.name, tuple(changes), held, now)


def reloaded_event(
    before: Mapping[str, ServerSpec], specs: Sequence[ServerSpec], *, restart: Collection[str], now: float
) -> Reloaded:
    """The event that tells which servers are others, of those that were configured by their names before."""
    after = {spec.name: spec for spec in specs}
    kept = [name for name in after if name in before]
    changed = tuple(name for name in kept if name in restart or after[name] != before[name])
    return Reloaded(
        added=tuple(name for name in after if name not in before),
        changed=changed,
        removed=tuple(name for name in before if name not in after),
        untouched=tuple(name for name in kept if name not in changed),
        at=now,
    )


@define(eq=False)
class _Backlog:
    """What one reader has not read yet, between the hub, which writes, and the reader's stream.

    What a reader that fell behind gets instead does not count against what it may fall behind: with more servers
    than that it would never hear a live event again.
    """

    _standing: Callable[[], Sequence[Event]]
    finished: bool = field(default=False, init=False)
    """Whether nothing more comes."""
    readers: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _catching_up: deque[Event] = field(factory=deque[Event], init=False)
    _live: deque[Event] = field(factory=deque[Event], init=False)
    _missed: int = field(default=0, init=False)
    _updated: set[tuple[str, str]] = field(factory=set[tuple[str, str]], init=False)
    """Resources, by server and URI, of which the reader will hear: once more would say nothing more."""

    def begin(self) -> None:
        """Tell where everything stands."""
        self._catching_up.extend(self._standing())

    def add(self, event: Event) -> None:
        """Something has happened."""
        if isinstance(event, ResourceUpdated):
            if (event.server, event.uri) in self._updated:
                return
            self._updated.add((event.server, event.uri))
        if self._missed or len(self._live) >= EVENT_BUFFER:
            self._missed += 1  # and all that follow, until the snapshots that cover them
        else:
            self._live.append(event)
        self.readers.unpark_all()

    def finish(self) -> None:
        """Nothing more comes."""
        self.finished = True
        self.readers.unpark_all()

    def take(self) -> Event | None:
        """The next event, if there is one. What was dropped is covered by where everything stands now."""
        if not self._catching_up and not self._live and self._missed:
            self._catching_up.append(Lagged(self._missed))
            self.begin()
            self._missed = 0
            self._updated.clear()
        waiting = self._catching_up or self._live
        event = waiting.popleft() if waiting else None
        if isinstance(event, ResourceUpdated):
            self._updated.discard((event.server, event.uri))
        return event


@final
class EventStream(trio.abc.ReceiveChannel[Event]):
    """A reader's own channel of events: see `Supervisor.events`, which makes it. A reader that falls behind loses
    events, never the truth about the servers."""

    def __init__(self, backlog: _Backlog) -> None:
        self._backlog = backlog
        self._closed = False

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
            event = self._backlog.take()
            if event is not None:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return event
            if self._backlog.finished:
                raise trio.EndOfChannel
            await self._backlog.readers.park()

    async def aclose(self) -> None:
        """Read no more."""
        self._closed = True
        self._backlog.readers.unpark_all()
        await trio.lowlevel.checkpoint()


@final
class ResourceUpdates(trio.abc.ReceiveChannel[ResourceUpdated]):
    """News of one resource: see `Supervisor.subscribe`, which makes it. What was not received yet is one event, however
    often it has changed: there is nothing to fall behind."""

    def __init__(self) -> None:
        self._update: ResourceUpdated | None = None
        self._readers = trio.lowlevel.ParkingLot()
        self._finished = False
        self._closed = False

    def add(self, update: ResourceUpdated) -> None:
        """It has changed, or may have."""
        if self._update is None or update.certain:
            self._update = update
        self._readers.unpark_all()

    def finish(self) -> None:
        """Nothing more comes."""
        self._finished = True
        self._readers.unpark_all()

    async def receive(self) -> ResourceUpdated:
        """The next news.

        Raises:
            trio.EndOfChannel: The server was removed, or the supervisor is closed.
            trio.ClosedResourceError: The subscription is over.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._closed:
                raise trio.ClosedResourceError
            update, self._update = self._update, None
            if update is not None:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return update
            if self._finished:
                raise trio.EndOfChannel
            await self._readers.park()

    async def aclose(self) -> None:
        """Hear no more."""
        self._closed = True
        self._readers.unpark_all()
        await trio.lowlevel.checkpoint()


@define(eq=False)
class EventHub:
    """Gives every open stream each event."""

    _standing: Callable[[], Sequence[Event]]
    """What tells a reader that heard nothing before where everything stands."""
    _backlogs: set[_Backlog] = field(factory=set[_Backlog], init=False)
    _finished: bool = field(default=False, init=False)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[EventStream, None]:
        """A stream of where everything stands and of all events from now on, for as long as the block lasts."""
        backlog = _Backlog(self._standing)
        stream = EventStream(backlog)
        self._backlogs.add(backlog)
        if self._finished:
            backlog.finish()
        else:
            backlog.begin()
        try:
            yield stream
        finally:
            self._backlogs.discard(backlog)
            with trio.CancelScope(shield=True):  # bounded: closing is one checkpoint
                await stream.aclose()

    def publish(self, event: Event) -> None:
        """Give an event to everyone."""
        for backlog in self._backlogs:
            backlog.add(event)

    def finish(self) -> None:
        """End every stream after what it has."""
        self._finished = True
        for backlog in self._backlogs:
            backlog.finish()
