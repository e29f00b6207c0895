"""Servers that another supervisor keeps: with names, filters and limits of their own, and no keepers.

Nothing runs here. What the lender's keepers write is shown in the same step, as the borrower sees it; calls go the
lender's way to the same connections.
"""

import math
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import trio

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
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.records import evolve, field, fields, frozen

from ..decisions.state_machine import Snapshot, StateMachine
from ..security.redaction import Redactor
from ..skills import Skill
from ..spec import ServerSpec
from ..tools.naming import is_offered
from ..tools.pins import Review
from ..tools.tool import Invoke
from ..transports import Transport
from .observable import Observable
from .projection import Projection
from .resource_state import Subscriptions, Updates
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
    """The lender's name of it."""
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
        """True if lender and borrower both want this tool."""
        wanted = self.borrowed
        return self.lender.offers(tool) and is_offered(
            tool, allow=wanted.allow, deny=wanted.deny, disabled=wanted.disabled_tools
        )

    @property
    def is_filtered(self) -> bool:
        """True if a filter of either may hide some of its tools."""
        wanted = self.borrowed
        return self.lender.is_filtered or tuple(wanted.allow) != ("*",) or bool(wanted.deny or wanted.disabled_tools)


class _Lens:
    """A keeper's snapshots as a borrower sees them, by the function by which the lender sees them: with the specs of
    what is borrowed, and the same object for the same spec."""

    def __init__(self, borrowed: Mapping[str, BorrowedServer], lender: Callable[[Snapshot], Snapshot]) -> None:
        self._borrowed = borrowed
        self._lender = lender
        self._specs: dict[str, tuple[ServerSpec, ServerSpec]] = {}

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        lent = self._lender(snapshot)
        spec, seen = self._specs.get(lent.spec.name, (None, None))
        if spec is not lent.spec or seen is None:
            seen = _borrowed_spec(lent.spec, self._borrowed[lent.spec.name])
            self._specs[lent.spec.name] = lent.spec, seen
        return evolve(lent, spec=seen)


def _borrowed_spec(spec: ServerSpec, borrowed: BorrowedServer) -> ServerSpec:
    values: dict[str, Any] = {each.name: getattr(spec, each.name) for each in fields(ServerSpec)}
    limits = {"call_timeout": borrowed.call_timeout, "max_result_chars": borrowed.max_result_chars}
    values.update((name, value) for name, value in limits.items() if value is not None)
    return _BorrowedSpec(**values, lender=spec, borrowed=borrowed)


class BorrowedSubscriptions(Subscriptions):
    """Subscriptions to the lender's servers; the borrower's own end with it."""

    def __init__(self, lender: Subscriptions) -> None:
        super().__init__(_nobody)
        self._lender = lender
        self._own: set[Updates] = set()

    @contextmanager
    def open(self, server: str, uri: str) -> Generator[Updates, None, None]:
        """A subscription that lasts as long as the block. The lender passes updates on."""
        with self._lender.open(server, uri) as updates:
            self._own.add(updates)
            try:
                yield updates
            finally:
                self._own.discard(updates)

    def end_all(self) -> None:
        """End the borrower's subscriptions."""
        for updates in self._own:
            updates.finish()


def _nobody(_server: str, _uris: frozenset[str]) -> None:
    """Notify no keeper: the lender notifies its own."""


class BorrowedServers(ServerView):
    """Servers that another supervisor keeps, or borrows in turn, as a borrower and its calls see them. The callbacks
    are for servers that ask in the middle of a call of the borrower's; None: the lender's. No tool may have a reserved
    name.

    Raises:
        ConfigError: A server is given twice.
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
        registry = lender.registry
        lens = _Lens(wanted, lender.projection.see)
        self._shown = Projection(settings, invoke, registry.figures, registry.leaving, {}, see=lens)
        super().__init__(settings, registry, self._shown, lender.timer, BorrowedSubscriptions(lender.subscriptions))
        self._lender = lender
        self._wanted = wanted
        self.callbacks = callbacks

    async def begin(self) -> None:
        """Show the servers from now on, until `end`, one in a turn of the loop, as if each had just come to its state.

        Raises:
            SupervisorClosed: The lender's block is being left.
        """
        self._lender.dependents.add(self)
        lent, shown = self.registry.snapshots, self._shown
        for name in self._wanted:
            spec = shown.see(lent[name].value).spec
            machine = StateMachine.configured(spec, self.settings.policy, trio.current_time())
            shown.snapshots[name] = Observable(machine.snapshot)
        shown.add(self._wanted)
        self.registry.borrowed.add(shown)
        for name in self._wanted:
            if name in shown.snapshots:
                shown.change(lent[name].value)
                await trio.lowlevel.checkpoint()
        self.check_open()

    def end(self) -> None:
        """End this view. The lender and its servers are not notified."""
        super().end()
        self._lender.dependents.discard(self)
        self.registry.borrowed.discard(self._shown)
        self._shown.end()
        self.subscriptions.end_all()

    @override
    def wake(self, server: str) -> None:
        self._lender.wake(server)

    @override
    def request_start(self, server: str) -> None:
        self._lender.request_start(server)

    @override
    def revive(self, server: str) -> None:
        self._lender.revive(server)

    @override
    def skip_restart_delay(self, server: str) -> None:
        self._lender.skip_restart_delay(server)

    @override
    async def learn_skills(
        self, server: str, skills: Mapping[str, Skill], *, whole: bool, transport: Transport
    ) -> Review:
        return await self._lender.learn_skills(server, skills, whole=whole, transport=transport)

    @override
    async def refresh_lists(self, servers: Iterable[str]) -> None:
        await self._lender.refresh_lists(servers)

    @override
    async def refresh_old(
        self, servers: Iterable[str], kinds: Collection[ListKind], *, since: float = math.inf
    ) -> None:
        await self._lender.refresh_old(servers, kinds, since=since)

    @override
    def refresh_expired(self) -> None:
        self._lender.refresh_expired()

    @override
    def redactor(self, server: str) -> Redactor:
        return self._lender.redactor(server)
