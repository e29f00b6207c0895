"""Servers that another supervisor keeps: with names, filters and limits of their own, and no keepers.

Nothing runs here. What the lender's keepers write is shown in the same step, in the way of the borrower; calls go
the lender's way to the same connections.
"""

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import trio
from attrs import evolve, field, fields, frozen

from mcp_nursery.actors.argument_checks import (
    at_least_one,
    finite_seconds_or_none,
    instance_of,
    setting,
    several,
)
from mcp_nursery.actors.callbacks import Callbacks
from mcp_nursery.actors.enums import ListKind
from mcp_nursery.actors.errors import ConfigError

from ..catalogue.catalogue import Catalogue, replace_parts
from ..catalogue.server_tools import dismissed
from ..events import BreakerChanged, DefinitionsChanged, ResourceUpdated, ResourceUpdates, StateChanged
from ..notices import NoticeHub
from ..security.redaction import Redactor
from ..spec import ServerSpec
from ..state_machine import Snapshot, StateMachine
from ..tools.filters import is_offered
from ..tools.tool import Invoke
from .commands import Command
from .kept_reads import KeptReads
from .observable import Observable
from .registry import Publication, ServerRegistry
from .settings import SupervisorSettings
from .subscriptions import Subscriptions
from .view import ServerView


def _at_least_one_or_none(value: object) -> str | None:
    return None if value is None else at_least_one(value)


@frozen
class BorrowedServer:
    """A server of another supervisor, and how much of it is borrowed. What its own spec filters out stays out.

    Raises:
        ConfigError: A value out of its range.
    """

    name: str = field(validator=setting(instance_of(str)))
    """As the lender calls it."""
    allow: Sequence[str] = field(default=("*",), kw_only=True, converter=several)
    """Globs on its own names of tools: only those that match one are offered."""
    deny: Sequence[str] = field(default=(), kw_only=True, converter=several)
    """Globs: tools that match one are not offered, whatever `allow` says."""
    disabled_tools: Sequence[str] = field(default=(), kw_only=True, converter=several)
    """Tools that are switched off, by name."""
    call_timeout: float | None = field(default=None, kw_only=True, validator=setting(finite_seconds_or_none))
    """Seconds for a call that names no timeout of its own; 0 for no limit. Default: as its own spec says."""
    max_result_chars: int | None = field(default=None, kw_only=True, validator=setting(_at_least_one_or_none))
    """Characters of a result that a model is shown. Default: as its own spec says."""


@frozen
class _BorrowedSpec(ServerSpec):
    """A spec as a borrower sees it."""

    lender: ServerSpec = field(kw_only=True)
    borrowed: BorrowedServer = field(kw_only=True)

    def offers(self, tool: str) -> bool:
        """Whether both want this tool."""
        wanted = self.borrowed
        return self.lender.offers(tool) and is_offered(
            tool, allow=wanted.allow, deny=wanted.deny, disabled=wanted.disabled_tools
        )


def _borrowed_spec(spec: ServerSpec, borrowed: BorrowedServer) -> ServerSpec:
    values: dict[str, Any] = {each.name: getattr(spec, each.name) for each in fields(ServerSpec)}
    limits = {"call_timeout": borrowed.call_timeout, "max_result_chars": borrowed.max_result_chars}
    values.update((name, value) for name, value in limits.items() if value is not None)
    return _BorrowedSpec(**values, lender=spec, borrowed=borrowed)


class BorrowedSubscriptions(Subscriptions):
    """Subscriptions with the lender's servers, of which the borrower's own end with it."""

    def __init__(self, lender: Subscriptions) -> None:
        super().__init__(_nobody)
        self._lender = lender
        self._own: set[ResourceUpdates] = set()

    @contextmanager
    def open(self, server: str, uri: str) -> Generator[ResourceUpdates, None, None]:
        """A subscription that lasts as long as the block. The lender hands on what it hears."""
        with self._lender.open(server, uri) as updates:
            self._own.add(updates)
            try:
                yield updates
            finally:
                self._own.discard(updates)

    def end_all(self) -> None:
        """Everything is over for the borrower."""
        for updates in self._own:
            updates.finish()


def _nobody(_server: str, _uris: frozenset[str]) -> None:
    """No keeper is told: the lender tells its own."""


class BorrowedRegistry(ServerRegistry):
    """What is known of borrowed servers: follows the lender's registry, in the same step.

    Args:
        lender: Whom it follows.
        settings: What holds for the borrower.
        invoke: What calls a tool for a model of the borrower's.
        borrowed: What is borrowed, by name.
    """

    def __init__(
        self,
        lender: ServerView,
        settings: SupervisorSettings,
        invoke: Invoke,
        borrowed: Mapping[str, BorrowedServer],
    ) -> None:
        subscriptions = BorrowedSubscriptions(lender.subscriptions)
        super().__init__(settings, invoke, lender.usage, subscriptions, lender.breakers)
        self._lender = lender
        self.notices: NoticeHub = lender.registry.notices
        self._borrowed = borrowed
        self._ready: dict[str, tuple[Snapshot, Snapshot, Publication | None]] = {}
        """What `prepare_lent` has made, by server: of what, how it is seen here, and what is shown of it."""
        self._specs: dict[str, tuple[ServerSpec, ServerSpec]] = {}
        """The lender's specs, and what they are here: the same object for the same."""

    def reads_of(self, server: str) -> KeptReads:
        """The lender's."""
        return self._lender.registry.reads_of(server)

    async def follow(self) -> None:
        """Begin: as if every server had just come to where it stands. Made ready in turns, and shown in one step."""
        lent = self._lender.snapshots
        for name in self._borrowed:
            spec = self._spec_of(lent[name].value.spec)
            machine = StateMachine.configured(spec, self._settings.policy, trio.current_time())
            self.snapshots[name] = Observable(machine.snapshot)
        self.publish_new(list(self.snapshots), {})
        self._lender.registry.followers.add(self)
        self.take_back(self._lender.registry.leaving)
        for name in self._borrowed:
            if name in lent:
                await self.prepare_lent(lent[name].value)
        for name in self.snapshots:
            self.publish_lent(lent[name].value)

    async def prepare_lent(self, snapshot: Snapshot) -> None:
        """See `Follower`."""
        name = snapshot.spec.name
        if name in self.snapshots:
            seen = self._seen(snapshot)
            self._ready[name] = snapshot, seen, await self.prepare(self.snapshots[name].value, seen)

    def publish_lent(self, snapshot: Snapshot) -> None:
        """See `Follower`."""
        name = snapshot.spec.name
        if name in self.snapshots:
            of, seen, publication = self._ready.pop(name, (None, None, None))
            if of is not snapshot or seen is None:
                seen, publication = self._seen(snapshot), None
            self.publish(self.snapshots[name].value, seen, publication)

    def tell_lent(self, event: ResourceUpdated | BreakerChanged) -> None:
        """See `Follower`."""
        if event.server in self.snapshots:
            self.events.publish(event)
            for follower in self.followers:
                follower.tell_lent(event)

    def take_back(self, leaving: Mapping[str, Command]) -> None:
        """See `Follower`."""
        gone = {name: leaving[name] for name in leaving.keys() & self.snapshots.keys() - self.leaving.keys()}
        if gone:
            self.leaving.update(gone)
            self.rebuild({})

    def forget_lent(self, server: str) -> None:
        """See `Follower`."""
        if server in self.snapshots:
            self._ready.pop(server, None)
            self.forget(server)

    def end(self) -> None:
        """Follow no more. Nothing is offered, and where servers stood is where they stand."""
        self._lender.registry.followers.discard(self)
        self._show(replace_parts(self.catalogue.value, map(dismissed, self.catalogue.value.parts.values())))
        self.events.finish()
        self.subscriptions.end_all()

    def _seen(self, snapshot: Snapshot) -> Snapshot:
        return evolve(snapshot, spec=self._spec_of(snapshot.spec))

    def _spec_of(self, spec: ServerSpec) -> ServerSpec:
        of, seen = self._specs.get(spec.name, (None, None))
        if of is not spec or seen is None:
            seen = _borrowed_spec(spec, self._borrowed[spec.name])
            self._specs[spec.name] = spec, seen
        return seen

    def _show(self, catalogue: Catalogue) -> None:
        self.catalogue.set(catalogue)  # calls are routed by the lender's

    def _write_log(
        self, change: StateChanged | None, old: Snapshot, new: Snapshot, differing: DefinitionsChanged | None
    ) -> None:
        """The lender has written it."""


class BorrowedServers(ServerView):
    """Servers that another supervisor keeps, as a borrower and its calls see them.

    Args:
        lender: Who keeps them, or borrows them in turn.
        borrowed: What is borrowed.
        invoke: What calls a tool for a model.
        callbacks: What answers servers that ask in the middle of a call of the borrower's; None: the lender's.
        template: How public names are made.
        reserved: Names that no tool may have.

    Raises:
        ConfigError: One server twice.
        UnknownServer: The lender has none of that name.
        SupervisorClosed: The lender's block was left.
    """

    def __init__(
        self,
        lender: ServerView,
        borrowed: Iterable[BorrowedServer],
        invoke: Invoke,
        *,
        callbacks: Callbacks | None,
        template: str,
        reserved: Collection[str],
    ) -> None:
        wanted: dict[str, BorrowedServer] = {}
        for each in borrowed:
            lender.snapshot(each.name)
            if each.name in wanted:
                raise ConfigError("it is borrowed twice", server=each.name, field="servers")
            wanted[each.name] = each
        settings = evolve(lender.settings, template=template, reserved=frozenset(reserved))
        # What becomes of a server is traced and measured once, by the lender.
        self._follower = BorrowedRegistry(lender, evolve(settings, telemetry=None), invoke, wanted)
        super().__init__(settings, self._follower, lender.router, lender.timer, lender.usage)
        self._lender = lender
        self.callbacks = callbacks

    async def begin(self) -> None:
        """Show the servers from now on, until `end`.

        Raises:
            SupervisorClosed: The lender's block is being left.
        """
        self._lender.borrowers.add(self)
        await self._follower.follow()
        self.check_open()

    def end(self) -> None:
        """See `ServerView`. The lender and its servers know nothing of it."""
        super().end()
        self._lender.borrowers.discard(self)
        self._follower.end()

    def wake(self, server: str) -> None:
        """See `ServerView`."""
        self._lender.wake(server)

    def want(self, server: str) -> None:
        """See `ServerView`."""
        self._lender.want(server)

    def revive(self, server: str) -> None:
        """See `ServerView`."""
        self._lender.revive(server)

    def hasten(self, server: str) -> None:
        """See `ServerView`."""
        self._lender.hasten(server)

    async def refresh_lists(self, servers: Iterable[str]) -> None:
        """See `ServerView`."""
        await self._lender.refresh_lists(servers)

    async def refresh_old(self, servers: Iterable[str], kinds: Collection[ListKind]) -> None:
        """See `ServerView`."""
        await self._lender.refresh_old(servers, kinds)

    def refresh_expired(self) -> None:
        """See `ServerView`."""
        self._lender.refresh_expired()

    def redactor(self, server: str) -> Redactor:
        """See `ServerView`."""
        return self._lender.redactor(server)
