"""The registry of servers: what everybody may read of them. Catalogue, routes and events follow from what keepers
write.

What follows from a snapshot is prepared in pieces before it is written: a server with ten thousand tools holds up
nobody while they are named and compared, and what was prepared is shown by one assignment.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

import trio
from attrs import frozen

from mcp_nursery.actors.account import Account
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.pieces import Steps, at_once
from mcp_nursery.actors.router import RouterActor
from mcp_nursery.actors.secrets import HIDE_SECRETS

from ..catalogue.catalogue import NO_TOOLS, Catalogue, replace_parts
from ..catalogue.server_tools import ServerTools, dismissed, part_steps
from ..events import (
    BreakerChanged,
    DefinitionsChanged,
    EventHub,
    PromptsChanged,
    ResourcesChanged,
    ResourceUpdated,
    ServerRemoved,
    StandingEvent,
    StateChanged,
    ToolsChanged,
    definitions_event_steps,
    offers_event_steps,
    standing_events,
    state_event,
    tools_event_steps,
)
from ..notices import NoticeHub
from ..security.untrusted_marks import clean_name
from ..state_machine import Snapshot
from ..status import ServerStatus, status_of
from ..tools.tool import Invoke
from ..transition_log import TransitionLog, offer_of
from .breakers import CircuitBreakers
from .commands import Command
from .kept_reads import KeptReads
from .observable import AwaitedTools, Observable
from .settings import SupervisorSettings
from .subscriptions import Subscriptions
from .usage import Usage

logger: Final = logging.getLogger(__name__)

_NAMED = 20
"""Tools that one line of the log names."""

_FEW = 100
"""Tools that are taken out of the catalogue in no time."""

_TRIES = 3
"""Times that what is about to be written is made ready in turns."""


@frozen(eq=False)
class Publication:
    """The part of the catalogue that a snapshot leads to, and the events about it."""

    old: Snapshot
    before: ServerTools
    """The part that it replaces."""
    servers: frozenset[str]
    """The names of all servers by which its tools are named."""
    part: ServerTools
    tools_changed: ToolsChanged | None
    offers_changed: Sequence[ResourcesChanged | PromptsChanged]
    differing: DefinitionsChanged | None

    def is_of(self, old: Snapshot, before: ServerTools | None, servers: frozenset[str]) -> bool:
        """Whether it was made of these."""
        return self.old is old and self.before is before and self.servers is servers


Publications = Mapping[str, Publication]
"""What servers show under other names, by their own."""


class Follower(Protocol):
    """Who shows some of these servers in a way of its own. Told in one step with each change."""

    async def prepare_lent(self, snapshot: Snapshot) -> None:
        """The keeper of a server is about to write this; the one call that may wait."""
        ...

    def publish_lent(self, snapshot: Snapshot) -> None:
        """It wrote."""
        ...

    def tell_lent(self, event: ResourceUpdated | BreakerChanged) -> None:
        """This happened, and changes nothing of where a server stands."""
        ...

    def take_back(self, leaving: Mapping[str, Command]) -> None:
        """These servers are configured no more."""
        ...

    def forget_lent(self, server: str) -> None:
        """Everything that a server which was leaving has owned is closed."""
        ...


class ServerRegistry:
    """The snapshots of all servers, and what follows from them. Each change is one step: no part of it is seen alone.

    Args:
        settings: What holds for all servers.
        invoke: What calls a tool for a model.
        usage: What was counted for each server.
        subscriptions: Who wants to hear of which resources.
        breakers: The circuit breakers of servers that another registry has; None: of these.
    """

    def __init__(
        self,
        settings: SupervisorSettings,
        invoke: Invoke,
        usage: Usage,
        subscriptions: Subscriptions,
        breakers: CircuitBreakers | None = None,
    ) -> None:
        self.subscriptions: Final = subscriptions
        self.snapshots: dict[str, Observable[Snapshot]] = {}
        """The snapshot of each server, in the order they were configured."""
        self.catalogue: Final = Observable(NO_TOOLS)
        self.awaited_tools: Final = AwaitedTools()
        self.router: Final = RouterActor()
        self.events: Final = EventHub(self._standing)
        self.notices: NoticeHub = NoticeHub()
        """What servers say that is about no request."""
        self._log = TransitionLog()
        self.breakers: Final = breakers or CircuitBreakers(self.snapshots, self._publish_breaker)
        self.telemetry: Final = settings.telemetry
        self.leaving: dict[str, Command] = {}
        """Servers that are configured no more, until everything they owned is closed and their command is answered."""
        self._settings = settings
        self._invoke = invoke
        self._usage = usage
        self._has_keepers = breakers is None
        self.followers: Final[set[Follower]] = set()
        """Those who borrow servers: each change here is one there too, in the same step."""
        self.instances: dict[str, list[ServerRegistry]] = {}
        """Those of further instances of a server, by its name."""
        self._reads: dict[str, KeptReads] = {}
        """Of each server whose resources somebody has read."""
        self._configured = frozenset[str]()
        """The names that tools are named by; another object whenever they have changed."""

    # -- reading --------------------------------------------------------------------------------------------------

    def status(self) -> tuple[ServerStatus, ...]:
        """Where every server stands now."""
        now, parts, tally = trio.current_time(), self.catalogue.value.parts, self._usage.tally
        breaker = self.breakers.status
        return tuple(
            status_of(
                observable.value,
                now=now,
                tool_count=len(parts[name].tools),
                calls=tally(name).counts,
                breaker=breaker(name),
                instances=tuple(each.status_of(name) for each in self.instances.get(name, ())),
            )
            for name, observable in self.snapshots.items()
        )

    def status_of(self, server: str) -> ServerStatus:
        """Where one server stands now."""
        return status_of(
            self.snapshots[server].value,
            now=trio.current_time(),
            tool_count=len(self.catalogue.value.parts[server].tools),
            calls=self._usage.tally(server).counts,
            breaker=self.breakers.status(server),
            instances=tuple(each.status_of(server) for each in self.instances.get(server, ())),
        )

    def _standing(self) -> Sequence[StandingEvent]:
        """What tells a reader where every server stands."""
        now = trio.current_time()
        return [
            event
            for status in self.status()
            for event in standing_events(self.snapshots[status.name].value, status, now)
        ]

    def account(self, server: str) -> Account:
        """What waits for it, or of what it has said."""
        return self._usage.tally(server).account

    def reads_of(self, server: str) -> KeptReads:
        """What was read of its resources since it was connected, or said that something changed."""
        if server not in self._reads:
            self._reads[server] = KeptReads(self.snapshots[server].value.spec.max_kept_bytes)
        return self._reads[server]

    def trace(self, server: str) -> AbstractContextManager[Any]:
        """The trace in which this server is being connected, to be entered by who does that."""
        return nullcontext() if self.telemetry is None else self.telemetry.connecting(server)

    # -- one server has changed -----------------------------------------------------------------------------------

    async def prepare(self, old: Snapshot, new: Snapshot) -> Publication | None:
        """A keeper is about to write this: make ready in turns what `publish` will show. Nothing is changed by it.

        What a change of the configured servers, to which names owe much, has overtaken is made again; who reconfigures
        without end has it made by `publish` in one go.
        """
        for follower in tuple(self.followers):
            await follower.prepare_lent(new)
        name = new.spec.name
        for _ in range(_TRIES):
            if name in self.leaving:
                return None
            publication = await by_turns(self._publication(old, new, self._configured))
            if publication.servers is self._configured:
                return publication
        return None

    def publish(self, old: Snapshot, new: Snapshot, prepared: Publication | None = None) -> None:
        """A keeper wrote: catalogue, router, snapshot and events follow, before anybody else runs.

        Args:
            old: Where the server stood.
            new: Where it stands.
            prepared: What `prepare` has made of them. If the set of servers has changed since, it is made again, in
                one go.
        """
        name, before = new.spec.name, self.catalogue.value.parts[new.spec.name]
        if name in self.leaving or _shows_the_same(old, new):
            prepared = None
        elif prepared is None or prepared.servers is not self._configured:
            prepared = at_once(self._publication(old, new, self._configured))
        part = before if prepared is None else prepared.part
        if part != before:
            self._show(replace_parts(self.catalogue.value, [part]))
        self.snapshots[name].set(new)
        if new.owner is not old.owner or new.definitions.resources is not old.definitions.resources:
            self._reads.pop(name, None)
        self._count(old, new)
        self.awaited_tools.note(new, before, part)
        change = state_event(old, new, trio.current_time())
        if change is not None:
            self.events.publish(change)
        if new.owner is not old.owner and self._has_keepers:  # that of a borrowed server is its lender's
            self.breakers.close(name)
        if prepared is not None:
            self._publish_tools(prepared)
        self._write_log(change, old, new, None if prepared is None else prepared.differing)
        for follower in self.followers:
            follower.publish_lent(new)

    def _count(self, old: Snapshot, new: Snapshot) -> None:
        """Tell those who count and measure. What is borrowed is counted where it is kept."""
        if self.telemetry is not None:
            self.telemetry.note(old, new)
        if self._has_keepers:
            self._usage.note(old, new)

    def _publication(self, old: Snapshot, new: Snapshot, servers: frozenset[str]) -> Steps[Publication]:
        """What one snapshot leads to after another, with tools named by these servers."""
        settings, now = self._settings, trio.current_time()
        before = self.catalogue.value.parts[new.spec.name]
        part = yield from part_steps(
            new,
            servers,
            template=settings.template,
            reserved=settings.reserved,
            invoke=self._invoke,
            before=(old, before),
        )
        tools_changed = yield from tools_event_steps(before, part, now)
        offers_changed = yield from offers_event_steps(new.spec.name, before.offers, part.offers, now)
        differing = yield from definitions_event_steps(old, new, now)
        return Publication(old, before, servers, part, tools_changed, offers_changed, differing)

    def _publish_tools(self, publication: Publication) -> None:
        """Report which tools changed, and which differ from what they were when they were first used."""
        if publication.tools_changed is not None:
            self.events.publish(publication.tools_changed)
        for event in publication.offers_changed:
            self.events.publish(event)
        if publication.differing is not None:
            self.events.publish(publication.differing)

    def _write_log(
        self, change: StateChanged | None, old: Snapshot, new: Snapshot, differing: DefinitionsChanged | None
    ) -> None:
        """A server's words stand in the events alone, not here."""
        if change is not None:
            self._log.note(change, offer_of(new, len(self.catalogue.value.parts[new.spec.name].tools)))
        if differing is not None:
            tools = ", ".join(clean_name(HIDE_SECRETS.get()(each.tool)) for each in differing.changes[:_NAMED])
            if len(differing.changes) > _NAMED:
                tools += f" and {len(differing.changes) - _NAMED} more"
            held = " and are held back" if differing.held else ""
            found = f"have changed since they were first used{held}: {tools}; see `mcp-nursery pins`"
            logger.warning("%s: definitions of tools %s", clean_name(new.spec.name), found)
        elif new.review is not old.review and (
            unknown := set(new.review.held.values()) - set(old.review.held.values())
        ):
            logger.warning("%s: its tools are held back: %s", clean_name(new.spec.name), unknown.pop())

    def _publish_breaker(self, change: BreakerChanged) -> None:
        self.events.publish(change)
        self._log.note_breaker(change)
        for follower in self.followers:
            follower.tell_lent(change)

    def publish_update(self, update: ResourceUpdated) -> None:
        """A resource that is subscribed has changed, or may have: it, or what is under it."""
        self._reads.pop(update.server, None)
        self.events.publish(update)
        self.subscriptions.deliver(update)
        for follower in self.followers:
            follower.tell_lent(update)

    # -- the set of servers has changed ---------------------------------------------------------------------------

    async def prepare_names(self, change: Callable[[frozenset[str]], Collection[str]]) -> Publications:
        """The set of servers is about to change, and names with it: prepare in turns what `rebuild` will show.

        What has changed meanwhile is made again; after some times, by `rebuild` in one go.

        Args:
            change: The names of all configured servers, by what they are now.
        """
        publications: Publications = {}
        for _ in range(_TRIES):
            servers = self._reuse(frozenset(change(self._named_servers())))
            if servers is self._configured:
                return {}
            publications = await by_turns(self._named_steps(servers))
            if change(self._named_servers()) == servers:
                break
        return publications

    def _named_steps(self, servers: frozenset[str]) -> Steps[Publications]:
        publications: dict[str, Publication] = {}
        for name in servers:
            yield
            if name in self.snapshots and not self._is_named_by(name, servers):
                snapshot = self.snapshots[name].value
                publications[name] = yield from self._publication(snapshot, snapshot, servers)
        return publications

    def _named_servers(self) -> frozenset[str]:
        return frozenset(self.snapshots.keys() - self.leaving.keys())

    def _reuse(self, servers: frozenset[str]) -> frozenset[str]:
        """The same object as before, if they are."""
        return self._configured if servers == self._configured else servers

    def _is_named_by(self, server: str, servers: frozenset[str]) -> bool:
        """Whether its part is as it is named by these."""
        return (part := self.catalogue.value.parts.get(server)) is not None and part.named_by is servers

    def publish_new(self, servers: Iterable[str], publications: Publications) -> None:
        """These are new; their snapshots are there already. For `publications` see `rebuild`."""
        self.rebuild(publications)
        for name in servers:
            self.awaited_tools.note(self.snapshots[name].value)
            if self.telemetry is not None:
                self.telemetry.note(None, self.snapshots[name].value)
            event = state_event(None, self.snapshots[name].value, trio.current_time())
            assert event is not None  # of a server that is new
            self.events.publish(event)
            self._log.note_attempt(event)

    def reorder(self, servers: Iterable[str]) -> None:
        """All there are, in the order in which they are configured now."""
        for name in servers:
            self.snapshots[name] = self.snapshots.pop(name)

    def rebuild(self, publications: Publications) -> None:
        """The set of servers changed, and with it perhaps any name. Those that leave have no tools any more.

        Args:
            publications: From `prepare_names`. What of it does not hold any more is made again, in one go.
        """
        now, before = trio.current_time(), self.catalogue.value.parts
        configured = self._named_servers()
        ready = (publication.servers for publication in publications.values() if publication.servers == configured)
        self._configured = self._reuse(next(ready, configured))
        moved = [
            self._renamed(name, publications) for name in configured if not self._is_named_by(name, self._configured)
        ]
        left = [dismissed(before[name]) for name in self.leaving]
        events: list[ToolsChanged | ResourcesChanged | PromptsChanged | None] = []
        for publication in moved:
            events += [publication.tools_changed, *publication.offers_changed]
        for part in left:
            events += [at_once(tools_event_steps(before[part.server], part, now))]
            events += at_once(offers_event_steps(part.server, before[part.server].offers, part.offers, now))
        parts = [*(publication.part for publication in moved), *left]
        self._show(replace_parts(self.catalogue.value, parts, before.keys() - self.snapshots.keys()))
        self.awaited_tools.notify()
        for event in sorted((event for event in events if event is not None), key=lambda event: event.server):
            self.events.publish(event)
        for follower in self.followers:
            follower.take_back(self.leaving)

    def dismiss(self, servers: Mapping[str, Command]) -> None:
        """These end, with everybody else: their tools are gone in one step. A catalogue for each would take a thousand
        servers as long again as all the rest. One with many tools is left to its keeper, which goes in turns."""
        now, before = trio.current_time(), self.catalogue.value.parts
        few = [before[name] for name in servers if len(before[name].tools) <= _FEW]
        left = {part.server: dismissed(part) for part in few}
        self.leaving.update((name, servers[name]) for name in left)
        self._show(replace_parts(self.catalogue.value, left.values()))
        for part in few:
            event = at_once(tools_event_steps(part, left[part.server], now))
            if event is not None:
                self.events.publish(event)

    def _renamed(self, server: str, publications: Publications) -> Publication:
        snapshot, publication = self.snapshots[server].value, publications.get(server)
        before = self.catalogue.value.parts.get(server)
        if before is None:  # new, and has told of nothing yet
            blank = ServerTools(server, named_by=self._configured)
            return Publication(snapshot, blank, self._configured, blank, None, (), None)
        if publication is not None and publication.is_of(snapshot, before, self._configured):
            return publication
        return at_once(self._publication(snapshot, snapshot, self._configured))

    def forget(self, server: str) -> None:
        """Everything that a server which was leaving has owned is closed."""
        observable = self.snapshots.pop(server)
        del self.leaving[server]
        self.awaited_tools.forget(server)
        self.rebuild({})
        observable.notify()
        self.events.publish(ServerRemoved(server, trio.current_time()))
        for follower in self.followers:
            follower.forget_lent(server)
        self.subscriptions.end(server)
        self._reads.pop(server, None)
        self._log.forget(server)
        if self.telemetry is not None:
            self.telemetry.forget(server)

    def notify(self) -> None:
        """Have everybody who waits for something here look again."""
        self.catalogue.notify()
        self.awaited_tools.notify()
        for observable in self.snapshots.values():
            observable.notify()

    def _show(self, catalogue: Catalogue) -> None:
        self.router.swap(catalogue.parts)
        self.catalogue.set(catalogue)


def _shows_the_same(old: Snapshot, new: Snapshot) -> bool:
    """Whether the catalogue has nothing to take from the change of one to the other."""
    parts = ((one.spec, one.owner, one.definitions, one.review) for one in (old, new))
    return old.state is new.state and all(one is other for one, other in zip(*parts, strict=True))
