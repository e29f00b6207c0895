"""The servers of a supervisor as calls and hosts see them."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import trio

from mcp_nursery.actors.callbacks import Callbacks
from mcp_nursery.actors.deadlines import Timer
from mcp_nursery.actors.enums import ListKind, ServerState
from mcp_nursery.actors.errors import SupervisorClosed, UnknownServer
from mcp_nursery.actors.pieces import Steps

from ..catalogue.catalogue import Catalogue
from ..decisions.state_machine import Snapshot
from ..decisions.suggestions import near_names
from ..events import InjectionSuspected
from ..resources import Resource
from ..security.redaction import Redactor
from ..security.untrusted_marks import clean_name
from ..skills import Skill
from ..tools.naming import may_be_public, possible_owners
from ..tools.pins import Review
from ..transports import Transport
from .observable import Observable
from .projection import Projection
from .registry import ServerRegistry
from .resource_state import Subscriptions
from .settings import SupervisorSettings, WaitFor, default_call_timeout

logger: Final = logging.getLogger(__name__)


class ServerView(ABC):
    """The states of servers, their offers, and the way of a call to them. The registry is that of the supervisor that
    keeps them; the timer ends calls which take too long. The open subscriptions are the registry's by default."""

    callbacks: Callbacks | None = None
    """The callbacks that answer servers in the middle of a call, where this supervisor has its own; None: those that
    the connection was made with."""

    def __init__(
        self,
        settings: SupervisorSettings,
        registry: ServerRegistry,
        projection: Projection,
        timer: Timer,
        subscriptions: Subscriptions | None = None,
    ) -> None:
        self.settings: Final = settings
        self.default_timeout: Final = default_call_timeout(settings.environ)
        """Seconds for a call without a limit, to a server without one: those of the environment, or `inf`."""
        self.pinned: Final = settings.pins == "block"
        """True if tools and skills that have changed are held back."""
        self.closed: bool = False
        """True while the supervisor's block is being left."""
        self.registry: Final = registry
        self.projection: Final = projection
        self.router: Final = registry.router
        self.timer: Final = timer
        self.counter: Final = projection.figures.counter
        self.subscriptions: Final = subscriptions or registry.subscriptions
        self.telemetry: Final = settings.telemetry
        self.snapshots: Final = projection.snapshots
        self.catalogue: Final = projection.catalogue
        self.events: Final = projection.events
        self.awaited_tools: Final = projection.awaited_tools
        self.breakers: Final = projection.figures.breakers
        self.dependents: Final[set[ServerView]] = set()
        """The views that end when this does: those of borrowers, and of further instances."""
        self._resources: tuple[Resource, ...] = ()
        self._resources_of: tuple[object, ...] = ()
        """The values of which the shown resources were made."""

    def end(self) -> None:
        """End this view: the block is being left, and all that wait for something here are woken."""
        self.closed = True
        for dependent in tuple(self.dependents):
            dependent.end()
        self.projection.notify()
        self.registry.task_news.wake()

    # -- what is known --------------------------------------------------------------------------------------------

    def snapshot(self, server: str) -> Observable[Snapshot]:
        """The snapshot of a server, to be waited for.

        Raises:
            UnknownServer: No server of that name.
            SupervisorClosed: The block was left.
        """
        self.check_open()
        if server not in self.snapshots:
            raise UnknownServer(server, near=near_names(server, self.snapshots))
        return self.snapshots[server]

    def check_open(self) -> None:
        """Refuse after the end.

        Raises:
            SupervisorClosed: The block is being left or was left.
        """
        if self.closed:
            raise SupervisorClosed

    @property
    def listed(self) -> Catalogue:
        """The catalogue, for a reader: lists in it that are too old are fetched again meanwhile."""
        self.refresh_expired()
        return self.catalogue.value

    def shown_resources(self) -> tuple[Resource, ...]:
        """The resources in the catalogue, for a reader, without those of skills that are held back; the same object
        until they change."""
        listed = self.listed.resources
        held = {name: one.value.skills for name, one in self.snapshots.items() if one.value.skills.review.held}
        if not held:
            return listed
        made_of = (listed, *held.values())
        if [*map(id, made_of)] != [*map(id, self._resources_of)]:
            self._resources_of = made_of
            self._resources = tuple(
                each for each in listed if each.server not in held or not held[each.server].holds(each.uri)
            )
        return self._resources

    async def first_attempts(self, servers: Iterable[str], start: Callable[[str], None]) -> None:
        """Wait until the first attempt of each of these is over. Servers that are removed meanwhile are passed over.
        `start` is `wake` or `request_start`, called for those that are idle, or become so, and for those that are
        starting.

        Raises:
            SupervisorClosed: The block is being left.
        """

        def settled(snapshot: Snapshot) -> bool | None:
            self.check_open()
            if snapshot.started_by_lists or snapshot.waits_for_place:
                start(snapshot.spec.name)
                return None
            return snapshot.settled or None

        for observable in [self.snapshots[name] for name in servers if name in self.snapshots]:
            await observable.wait(settled)

    async def update_lists(self, server: str | None, kinds: Collection[ListKind], *, refresh: bool = False) -> None:
        """Bring these lists of a server, or of all servers, up to date, as far as possible, once first attempts are
        over: those that may be old, or with `refresh` all. Servers at rest that have to be started for their lists are
        started, and with `refresh` all: `wake` does that for all servers, `request_start` for one that was named.

        Raises:
            UnknownServer: No server of that name.
            SupervisorClosed: The block is being left.
        """
        asked_at = trio.current_time()
        if server is not None:
            self.snapshot(server)
        servers = list(self.snapshots) if server is None else [server]
        start = self.wake if server is None else self.request_start
        with self.counter.in_use(servers):
            for name in servers:
                if refresh or self.snapshots[name].value.started_by_lists:
                    start(name)
            await self.first_attempts(servers, start)
            if refresh:
                await self.refresh_lists(servers)
            else:
                await self.refresh_old(servers, kinds, since=asked_at)

    async def pass_gate(self, wait_for: WaitFor) -> None:
        """Wait until it is known what is cached of every server, and first attempts are over: all, or those of servers
        of which nothing is cached.

        Raises:
            SupervisorClosed: The block is being left.
        """

        def passes(snapshot: Snapshot) -> bool | None:
            self.check_open()
            return (snapshot.listed and (snapshot.settled or wait_for == "uncached")) or None

        for observable in list(self.snapshots.values()):
            await observable.wait(passes)

    def unlisted(self) -> tuple[str, ...]:
        """The servers whose offers are not known yet, in the order of configuration."""
        return tuple(name for name, one in self.snapshots.items() if not one.value.listed)

    async def wait_listed(self, server: str) -> None:
        """Wait until a server's offers are known, or the server has gone. Starts nothing.

        Raises:
            UnknownServer: No server of that name.
            SupervisorClosed: The block was left.
        """

        def listed(snapshot: Snapshot) -> bool | None:
            self.check_open()
            return snapshot.listed or server not in self.snapshots or None

        await self.snapshot(server).wait(listed)

    def claimants_of(self, uri: str) -> Steps[list[str]]:
        """The servers that claim a URI, in the order of configuration: see `Catalogue.claimants_of`. Where one does,
        those with a skill that has the file count as well, and those in their first start: what they turn out to
        have is not read from another."""
        known = yield from self.catalogue.value.claimants_of(uri, self.snapshots)
        others = [name for name, one in self.snapshots.items() if one.value.is_unknown or one.value.skills.claims(uri)]
        return [name for name in self.snapshots if name in known or name in others] if known else []

    def owners_of(self, name: str, servers: Collection[str]) -> list[str]:
        """The servers among these that can have a tool with this public name, whatever tools they have."""
        return possible_owners(name, servers, self.settings.template)

    def offers(self, server: str, tool: str, definition: Mapping[str, Any] | None = None) -> bool:
        """True if a call of this tool may go to its server. A server may also have tools that it does not list, under
        names that no filter and no pin covers."""
        snapshot, catalogue = self.snapshot(server).value, self.catalogue.value
        if not snapshot.spec.offers(tool) or catalogue.held_back(tool, server) is not None:
            return False
        if snapshot.state is not ServerState.CONNECTED or not (self.pinned or snapshot.spec.is_filtered):
            return True
        known = catalogue.find(tool, server)
        return known is not None and (definition is None or not self.pinned or known.is_declared_as(definition))

    def for_models(self, server: str, tool: str) -> bool:
        """False if a server wants only its pages to call this tool."""
        part = self.catalogue.value.parts.get(server)
        return part is None or tool not in part.not_for_models

    def app_tools(self, name: str) -> dict[str, str]:
        """The tools that pages of their servers may call by this name, the servers' own: public names by server. None
        if it may be a public name: no tool of another server answers for that."""
        if may_be_public(name, self.snapshots, self.settings.template):
            return {}
        parts = self.catalogue.value.parts.items()
        return {server: part.public[name] for server, part in parts if name in part.for_apps and name in part.public}

    # -- calls ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def wake(self, server: str) -> None:
        """Start a server if it is idle. Never waits. One that has gone is skipped."""

    @abstractmethod
    def request_start(self, server: str) -> None:
        """`wake` for a caller that names this server and waits for it: its first start goes before those of servers
        that nobody waits for. Never waits. One that has gone is skipped."""

    @abstractmethod
    def revive(self, server: str) -> None:
        """Start a server that failed, for a call, if its spec says so. Never waits; many callers share one start."""

    @abstractmethod
    def skip_restart_delay(self, server: str) -> None:
        """Have the next start begin now, for a call. Never waits; many callers share one start."""

    @abstractmethod
    async def learn_skills(
        self, server: str, skills: Mapping[str, Skill], *, whole: bool, transport: Transport
    ) -> Review:
        """Know these skills, by URI, which a server that is reached so has just given, and compare them with what they
        were at first use. `whole`: no others are known any more.

        Raises:
            NotApproved: The server is reached in another way by now, or was removed.
            UnknownServer: No server of that name.
            SupervisorClosed: The block was left.
        """

    @abstractmethod
    async def refresh_lists(self, servers: Iterable[str]) -> None:
        """Fetch the lists of servers again, all at once. One that has gone is skipped."""

    @abstractmethod
    async def refresh_old(
        self, servers: Iterable[str], kinds: Collection[ListKind], *, since: float = math.inf
    ) -> None:
        """Wait, `AWAITED_FOR` seconds at most, until those of these lists were fetched again that may have changed
        without an announcement by their connected servers; all callers share one fetch. No list is fetched more than
        once within `ASKED_EVERY` seconds, or again if it was fetched from `since` on: see `ListRefresh.ask_old`."""

    @abstractmethod
    def refresh_expired(self) -> None:
        """Have those lists of connected servers fetched again that are too old. Never waits, and does nothing outside
        of Trio."""

    @abstractmethod
    def redactor(self, server: str) -> Redactor:
        """The redactor of texts about a server; also after it was removed, while a call of it is under way."""

    def report_injection(self, server: str, tool: str, signals: tuple[str, ...]) -> None:
        """Publish and log that what this server says looks like instructions for the model; `tool`: by the server's own
        name, or the resource or prompt that was asked for."""
        names = clean_name(server), clean_name(self.redactor(server).said(tool))
        logger.warning("%s: %s: its output looks like instructions for the model: %s", *names, ", ".join(signals))
        self.events.publish(InjectionSuspected(server, tool, signals, trio.current_time()))
