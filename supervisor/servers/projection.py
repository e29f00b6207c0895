"""A projection: servers as one supervisor sees them, their snapshots, catalogue and events. See `registry`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

import trio

from mcp_nursery.actors.pieces import Steps, at_once
from mcp_nursery.actors.records import field, frozen

from ..catalogue.catalogue import NO_TOOLS, Catalogue, replace_parts
from ..catalogue.server_tools import Before, ServerTools, dismiss, part_of
from ..decisions.state_machine import Snapshot
from ..events import (
    DefinitionsChanged,
    Event,
    EventHub,
    ServerRemoved,
    StandingEvent,
    StateChanged,
    definitions_event,
    offers_events,
    skills_event,
    standing_events,
    state_event,
    tools_event,
)
from ..status import ServerStatus, status_of
from ..tools.naming import rivals_of
from ..tools.tool import Invoke
from .call_counter import CallCounter
from .observable import AwaitedTools, Observable
from .settings import SupervisorSettings

if TYPE_CHECKING:
    from .breakers import CircuitBreakers
    from .keeper_commands import Command


@frozen(eq=False)
class StatusFigures:
    """The figures of servers in their status: the same for all supervisors that use them."""

    counter: CallCounter
    breakers: "CircuitBreakers"
    instances: "dict[str, list[Projection]]" = field(factory=dict[str, "list[Projection]"])
    """The projections of further instances, by server."""


class Reviewed(Protocol):
    """A call that was agreed to, or is of a pinned tool."""

    def review(self) -> None:
        """Take the call back if it may not be sent any more."""
        ...


class Projection:
    """Servers as one supervisor sees them. Each change is one step: no part of it is seen alone. `leaving` has the
    owner's servers that are no longer configured. `see` makes of a keeper's snapshot the one that is seen here: the
    same one for the same spec."""

    def __init__(
        self,
        settings: SupervisorSettings,
        invoke: Invoke,
        figures: StatusFigures,
        leaving: "Mapping[str, Command]",
        snapshots: dict[str, Observable[Snapshot]],
        *,
        see: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
    ) -> None:
        self.snapshots: Final = snapshots
        """The snapshot of each server, in the order they were configured."""
        self.catalogue: Final = Observable(NO_TOOLS)
        self.awaited_tools: Final = AwaitedTools()
        self.events: Final = EventHub(self._standing)
        self.reviewed: Final = WeakSet[Reviewed]()
        """The calls that are bound to what is declared: each looks again when that or a transport may have changed."""
        self.figures: Final = figures
        self.see: Final = see
        self._leaving = leaving
        self._settings = settings
        self._invoke = invoke
        self._configured = frozenset[str]()
        """The names of servers that public names depend on."""

    # -- reading --------------------------------------------------------------------------------------------------

    def status(self) -> tuple[ServerStatus, ...]:
        """The status of every server."""
        return tuple(map(self.status_of, self.snapshots))

    def status_of(self, server: str) -> ServerStatus:
        """The status of one server."""
        figures = self.figures
        return status_of(
            self.snapshots[server].value,
            now=trio.current_time(),
            tool_count=len(self.catalogue.value.parts[server].tools),
            calls=figures.counter.tally(server).counts,
            breaker=figures.breakers.status(server),
            instances=tuple(each.status_of(server) for each in figures.instances.get(server, ())),
        )

    def _standing(self) -> Sequence[StandingEvent]:
        """The events with the present state of every server."""
        now = trio.current_time()
        return [
            event
            for status in self.status()
            for event in standing_events(self.snapshots[status.name].value, status, now)
        ]

    # -- what becomes of a server ---------------------------------------------------------------------------------

    def add(self, servers: Iterable[str]) -> Sequence[StateChanged]:
        """Show servers that are new; their snapshots are there already.

        Returns:
            The events that are also logged.
        """
        self.rebuild()
        now, snapshots = trio.current_time(), [self.snapshots[name].value for name in servers]
        events = [event for each in snapshots if (event := state_event(None, each, now)) is not None]
        for snapshot, event in zip(snapshots, events, strict=True):
            self.awaited_tools.note(snapshot)
            self.events.publish(event)
        return events

    def prepare(self, snapshot: Snapshot) -> Steps[Before | None]:
        """Make in pieces the part of a server whose keeper is about to write this; None: it stays as it is."""
        new, name = self.see(snapshot), snapshot.spec.name
        old, before = self.snapshots[name].value, self.catalogue.value.parts[name]
        if name in self._leaving or _shows_the_same(old, new):
            return None
        return new, (yield from self._part_of(new, (old, before)))

    def change(
        self, snapshot: Snapshot, prepared: Before | None = None
    ) -> tuple[StateChanged | None, DefinitionsChanged | None]:
        """Show a server as its keeper has just written it: catalogue, snapshot and events follow in one step. Whatever
        of its part was prepared is not made again.

        Returns:
            The events that are also logged.
        """
        new, name, now = self.see(snapshot), snapshot.spec.name, trio.current_time()
        old, before = self.snapshots[name].value, self.catalogue.value.parts[name]
        hidden = name in self._leaving or _shows_the_same(old, new)
        part = before if hidden else at_once(self._part_of(new, prepared or (old, before)))
        if part != before:
            self._show(replace_parts(self.catalogue.value, [part]))
        self.snapshots[name].set(new)
        self.awaited_tools.note(new, before, part)
        if not hidden:
            self._review_calls()
        change, skills, differing = state_event(old, new, now), None, None
        if name not in self._leaving:
            skills, differing = skills_event(old, new, now), definitions_event(old, new, now)
        for event in (change, *_events_between(before, part, now), skills, differing):
            if event is not None:
                self.events.publish(event)
        return change, differing

    def remove(self, server: str) -> None:
        """Stop showing a server that is closed entirely."""
        if (observable := self.snapshots.pop(server, None)) is not None:
            self.awaited_tools.forget(server)
            self.rebuild()
            observable.notify()
            self.events.publish(ServerRemoved(server, trio.current_time()))

    def rebuild(self) -> None:
        """Follow a change of the set of servers, which may change any public name. Servers that leave have no tools any
        more."""
        now, before, template = trio.current_time(), self.catalogue.value.parts, self._settings.template
        self._configured = names = frozenset(self.snapshots.keys() - self._leaving.keys())
        parts: list[ServerTools] = []
        for name, observable in self.snapshots.items():
            earlier = before.get(name)
            if name not in names:
                parts.append(dismiss(earlier or ServerTools(name)))
            elif earlier is None or earlier.rivals != rivals_of(name, names, template):
                snapshot = observable.value
                parts.append(at_once(self._part_of(snapshot, None if earlier is None else (snapshot, earlier))))
        self._show(replace_parts(self.catalogue.value, parts, before.keys() - self.snapshots.keys()))
        self.awaited_tools.notify()
        self._review_calls()
        for part in sorted(parts, key=lambda part: part.server):
            for event in _events_between(before.get(part.server, ServerTools(part.server)), part, now):
                self.events.publish(event)

    def end(self) -> None:
        """Offer nothing any more. Servers keep their last state."""
        self._show(replace_parts(self.catalogue.value, map(dismiss, self.catalogue.value.parts.values())))
        self._review_calls()
        self.events.finish()

    def notify(self) -> None:
        """Have everybody who waits for something here look again."""
        self.catalogue.notify()
        self.awaited_tools.notify()
        for observable in self.snapshots.values():
            observable.notify()

    def _part_of(self, snapshot: Snapshot, before: Before | None) -> Steps[ServerTools]:
        settings = self._settings
        return part_of(
            snapshot,
            self._configured,
            template=settings.template,
            reserved=settings.reserved,
            invoke=self._invoke,
            before=before,
        )

    def _review_calls(self) -> None:
        """Have bound calls look again, once snapshots and catalogue are as one."""
        for call in tuple(self.reviewed):
            call.review()

    def _show(self, catalogue: Catalogue) -> None:
        self.catalogue.set(catalogue)


def _events_between(before: ServerTools, part: ServerTools, now: float) -> Sequence[Event]:
    """The events for the difference between one part of the catalogue and the next."""
    if before is part:
        return []
    tools = tools_event(before, part, now)
    return [*([] if tools is None else [tools]), *offers_events(before, part, now)]


def _shows_the_same(old: Snapshot, new: Snapshot) -> bool:
    """True if the change from one to the other does not concern the catalogue."""
    parts = ((one.spec, one.owner, one.definitions, one.review) for one in (old, new))
    return old.state is new.state and all(one is other for one, other in zip(*parts, strict=True))
