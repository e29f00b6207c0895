"""The events of servers, typed: pure functions of the catalogue and snapshots before and after, and streams of them.

A change of a server is reported by one event of each kind concerned, however many tools it has: its state, its tools,
their differences from first use. The events follow the step in which the change becomes visible to everybody.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import final

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.outcomes import Challenge
from mcp_nursery.actors.queues import BoundedQueue, QueueReader, WhenFull
from mcp_nursery.actors.records import define, field, frozen

from .catalogue.server_tools import ServerOffers, ServerTools
from .decisions.circuit_breaker import BreakerState
from .decisions.state_machine import Snapshot
from .decisions.task_records import TaskInfo
from .spec import ServerSpec
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
    "SkillsChanged",
    "SnapshotEvent",
    "StateChanged",
    "TaskChanged",
    "ToolsChanged",
]

EVENT_BUFFER = 100
"""Events that may wait for a reader before it gets `Lagged` and snapshots instead; the snapshots do not count."""


@frozen
class StateChanged:
    """A change of a server's state, or, within one state, of its incarnation, attempt, error or excess over a limit."""

    server: str
    """The server's name."""
    incarnation: int
    """The number of the connection concerned, from 1; in `connecting` the one that is being made. 0 before the
    first."""
    old: ServerState | None
    """The state before; None for a server that was added."""
    new: ServerState
    """The state after."""
    error: str | None
    """The last failure, one line; None once connected."""
    attempt: int
    """The number of the current start, or of the one that is due, since the ladder began; from 1."""
    max_attempts: int
    """Starts in a row before it gives up."""
    retry_in: float | None
    """Seconds until the next start; None if none is due."""
    pid: int | None
    """The number of its process, where there is one."""
    at: float
    """The time, on Trio's clock."""
    challenge: Challenge | None = None
    """In `needs_auth`: what the server said was missing, if it did."""
    over_limit: str | None = None
    """In `connected`: the limit that it is over, and why it is not renewed yet. In `connecting`: the limit for which it
    is renewed."""


@frozen
class CatalogueChanged:
    """A server's part of one of the catalogue's lists changed."""

    server: str
    """The server's name."""
    added: tuple[str, ...]
    """The entries that were not there before."""
    removed: tuple[str, ...]
    """The entries that are gone."""
    changed: tuple[str, ...]
    """The entries that are still there, with another definition."""
    at: float
    """The time, on Trio's clock."""
    cached: bool = False
    """True if the entries are those of an earlier run: the server has not been connected yet."""


@frozen
class ToolsChanged(CatalogueChanged):
    """A server's tools in the catalogue changed. Entries are public names."""


@frozen
class ResourcesChanged(CatalogueChanged):
    """A server's resources in the catalogue changed, or their templates. Entries are URIs and URI templates.
    `ResourceUpdated` reports changes of contents."""


@frozen
class PromptsChanged(CatalogueChanged):
    """A server's prompts in the catalogue changed. Entries are public names."""


@frozen
class SkillsChanged(CatalogueChanged):
    """The known skills of a server that are not held back changed, because it was asked for them again, or a change was
    accepted. Entries are URIs."""


@frozen
class ResourceUpdated:
    """A change, or a possible change, of a resource's contents: read it again. Only for subscribed resources."""

    server: str
    """The name of its server."""
    uri: str
    """The URI that was subscribed: this resource, or one under it."""
    certain: bool
    """True if the server reported it. False: notifications may have been missed, after a loss for example."""
    at: float
    """The time, on Trio's clock."""


@frozen
class ServerRemoved:
    """A server is no longer configured."""

    server: str
    """The server's name."""
    at: float
    """The time, on Trio's clock."""


@frozen
class Reloaded:
    """Servers were configured anew, all in one step: see `Supervisor.reload`. Each name is in one of the first four
    lists."""

    added: tuple[str, ...]
    """Servers that are new."""
    changed: tuple[str, ...]
    """Servers that begin again: their spec has changed, or a restart was asked for."""
    removed: tuple[str, ...]
    """Servers that are no longer configured."""
    untouched: tuple[str, ...]
    """Servers that go on as they are."""
    at: float
    """The time, on Trio's clock."""
    untrusted: tuple[str, ...] = ()
    """Servers among these whose entries nobody has agreed to yet: they are `blocked`, unless `trust=` agrees."""


@frozen
class ReloadFailed:
    """A new configuration cannot be used. Nothing has changed."""

    error: str
    """The reason, one line."""
    at: float
    """The time, on Trio's clock."""


@frozen
class InjectionSuspected:
    """A text from a server looks like an attempt to instruct the model. Nothing was held back or changed."""

    server: str
    """The server's name."""
    tool: str
    """The server's own name of the tool that was called."""
    signals: tuple[str, ...]
    """Names of the injection signals found."""
    at: float
    """The time, on Trio's clock."""


@frozen
class DefinitionsChanged:
    """Tools or skills of a server differ from what they were at first use. One event reports all new differences that
    appear at once, however many there are; after a `SnapshotEvent`, all that are not accepted yet."""

    server: str
    """The server's name."""
    changes: tuple[DefinitionChange, ...]
    """The tools and skills, and how each differs: `change.kind`, `change.tool`, `change.fields`, `change.diff`."""
    held: bool
    """True if they are held back until a person accepts them."""
    at: float
    """The time, on Trio's clock."""


@frozen
class BreakerChanged:
    """The circuit breaker of a server has opened, lets a call probe, or is closed again."""

    server: str
    """The server's name."""
    state: BreakerState
    """`open`: calls fail at once. `half_open`: one call probes. `closed`: calls are sent."""
    failures: int
    """Failures in a row so far."""
    retry_in: float | None
    """Seconds until a call may probe; None while it is closed."""
    at: float
    """The time, on Trio's clock."""


@frozen
class TaskChanged:
    """A change of a recorded task that this host follows or watches: see `Supervisor.submit`."""

    server: str
    """The server's name."""
    task: TaskInfo
    """The task after the change."""
    at: float
    """The time, on Trio's clock."""


@frozen
class Lagged:
    """The reader fell behind: this many events were dropped. The events that a stream begins with follow: the status of
    every server, then all changes from now on. A reader that discards here what it derived from events is up to date
    again."""

    missed: int
    """The number of events."""


@frozen
class SnapshotEvent:
    """The state of a server, at the beginning and after a lag. If its tools or skills differ from what they were at
    first use, and that is not accepted, `DefinitionsChanged` follows."""

    status: ServerStatus
    """The status now."""


Event = (
    StateChanged
    | ToolsChanged
    | ResourcesChanged
    | PromptsChanged
    | SkillsChanged
    | ResourceUpdated
    | ServerRemoved
    | Reloaded
    | ReloadFailed
    | InjectionSuspected
    | DefinitionsChanged
    | BreakerChanged
    | TaskChanged
    | Lagged
    | SnapshotEvent
)

StandingEvent = SnapshotEvent | DefinitionsChanged
"""The events that a stream begins with."""


def _visible_state(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.state, snapshot.incarnation, snapshot.attempt, snapshot.error, snapshot.over_limit


def state_event(old: Snapshot | None, new: Snapshot, now: float) -> StateChanged | None:
    """The event for the change from one snapshot to the next, if it matters to a user."""
    if old is not None and _visible_state(old) == _visible_state(new):
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
        over_limit=new.over_limit,
    )


def tools_event(old: ServerTools, new: ServerTools, now: float) -> ToolsChanged | None:
    """The event for the change from one part of the catalogue to the next, if its tools differ."""
    if old.tools is new.tools:
        return None
    difference = _difference(_declared_tools(old), _declared_tools(new))
    return None if difference is None else ToolsChanged(new.server, *difference, now, cached=_is_cached(old, new))


def offers_events(old: ServerTools, new: ServerTools, now: float) -> list[ResourcesChanged | PromptsChanged]:
    """The events for the change of what a server offers besides tools."""
    events: list[ResourcesChanged | PromptsChanged] = []
    if old.offers is new.offers:
        return events
    cached = _is_cached(old, new)
    resources = _difference(_declared_resources(old.offers), _declared_resources(new.offers))
    if resources is not None:
        events.append(ResourcesChanged(new.server, *resources, now, cached=cached))
    prompts = _difference(_declared_prompts(old.offers), _declared_prompts(new.offers))
    if prompts is not None:
        events.append(PromptsChanged(new.server, *prompts, now, cached=cached))
    return events


def skills_event(old: Snapshot, new: Snapshot, now: float) -> SkillsChanged | None:
    """The event for the change of what is known of a server's skills, if those that are shown differ."""
    if old.skills is new.skills:
        return None
    before, after = ({uri: skill.declared for uri, skill in each.skills.shown.items()} for each in (old, new))
    difference = _difference(before, after)
    return None if difference is None else SkillsChanged(new.spec.name, *difference, now)


def _is_cached(old: ServerTools, new: ServerTools) -> bool:
    """True if a server shows something before it was connected for the first time."""
    return old.is_blank and new.owner is None


def _declared_tools(part: ServerTools) -> dict[str, object]:
    return {name: part.tools[place].declared for name, place in part.names.items()}


def _declared_resources(offers: ServerOffers) -> dict[str, object]:
    if not offers.shown:
        return {}
    known: dict[str, object] = {template.uri_template: template.declared for template in offers.templates}
    return known | {resource.uri: resource.declared for resource in offers.resources}


def _declared_prompts(offers: ServerOffers) -> dict[str, object]:
    return {prompt.name: prompt.declared for prompt in offers.prompts if prompt.name and offers.shown}


_Names = tuple[str, ...]


def _difference(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[_Names, _Names, _Names] | None:
    """The names that were added, removed and changed; None if there are none."""
    both = before.keys() & after.keys()
    changed = [name for name in both if before[name] is not after[name] and before[name] != after[name]]
    added, removed = after.keys() - before.keys(), before.keys() - after.keys()
    if not (added or removed or changed):
        return None
    return tuple(sorted(added)), tuple(sorted(removed)), tuple(sorted(changed))


def definitions_event(old: Snapshot, new: Snapshot, now: float) -> DefinitionsChanged | None:
    """The event for tools and skills newly found to differ from what they were at first use, if any."""
    reviews = ((old.review, new.review), (old.skills.review, new.skills.review))
    pairs = [(known.changes, found.changes) for known, found in reviews if known.changes is not found.changes]
    new_ones = [change for known, found in pairs for name, change in found.items() if known.get(name) != change]
    return _differences(new, new_ones, now)


def standing_events(snapshot: Snapshot, status: ServerStatus, now: float) -> Sequence[StandingEvent]:
    """The events from which a reader without any earlier event learns the state of a server."""
    differing = _differences(snapshot, snapshot.changes, now)
    return [SnapshotEvent(status), *([] if differing is None else [differing])]


def _differences(snapshot: Snapshot, changes: Collection[DefinitionChange], now: float) -> DefinitionsChanged | None:
    if not changes:
        return None
    held = any(each.changes.keys() & each.held.keys() for each in (snapshot.review, snapshot.skills.review))
    return DefinitionsChanged(snapshot.spec.name, tuple(changes), held, now)


def reloaded_event(
    before: Mapping[str, ServerSpec],
    specs: Sequence[ServerSpec],
    *,
    restart: Collection[str],
    untrusted: Sequence[str] = (),
    now: float,
) -> Reloaded:
    """The event for a new set of servers, compared by name with the earlier one."""
    after = {spec.name: spec for spec in specs}
    kept = [name for name in after if name in before]
    changed = tuple(name for name in kept if name in restart or after[name] != before[name])
    return Reloaded(
        added=tuple(name for name in after if name not in before),
        changed=changed,
        removed=tuple(name for name in before if name not in after),
        untouched=tuple(name for name in kept if name not in changed),
        at=now,
        untrusted=tuple(untrusted),
    )


@final
class EventStream(QueueReader[Event]):
    """A reader's own channel of events: see `Supervisor.events`, which makes it. A reader that falls behind loses
    events, never the truth about the servers. The stream ends when the supervisor is closed."""


@final
class ResourceUpdates(QueueReader[ResourceUpdated]):
    """The updates of one resource: see `Supervisor.subscribe`, which makes it. Updates not received yet are merged into
    one event, so that no reader can fall behind. The channel ends when the server is removed, or the supervisor is
    closed."""


@define(eq=False)
class EventHub:
    """The open streams, each of which gets every event."""

    _visible_state: Callable[[], Sequence[Event]]
    """The events for a new reader: the present state of everything."""
    _open: set[BoundedQueue[Event]] = field(factory=set[BoundedQueue[Event]], init=False)
    _finished: bool = field(default=False, init=False)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[EventStream, None]:
        """A stream of the present state of everything and of all events from now on, while the block lasts."""

        def begin() -> None:
            for event in self._visible_state():
                queue.put(
                    event, when_full=WhenFull.EXCEED
                )  # with more servers than events may wait, none would be live

        def lagged(missed: int) -> Lagged:
            begin()
            return Lagged(missed)

        queue = BoundedQueue[Event](EVENT_BUFFER, gap=lagged)
        self._open.add(queue)
        if self._finished:
            queue.finish()
        else:
            begin()
        try:
            yield EventStream(queue)
        finally:
            self._open.discard(queue)
            queue.close()

    def publish(self, event: Event) -> None:
        """Give an event to every stream; an update of a resource only to those in which no other update of it waits."""
        key = (event.server, event.uri) if isinstance(event, ResourceUpdated) else None
        for queue in self._open:
            queue.put(event, key=key)

    def finish(self) -> None:
        """End every stream after the events that wait in it."""
        self._finished = True
        for queue in self._open:
            queue.finish()
