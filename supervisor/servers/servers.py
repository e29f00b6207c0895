"""All servers together: which there are, their keepers, and the commands to these."""

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from itertools import count
from typing import Any, Final

import trio

from mcp_nursery.actors.callbacks import Roots
from mcp_nursery.actors.deadlines import Timer
from mcp_nursery.actors.enums import ListKind, ServerState
from mcp_nursery.actors.errors import ConfigError, NotApproved
from mcp_nursery.actors.list_refresh import AWAITED_FOR
from mcp_nursery.actors.oauth.tokens import VAULT
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.process.orphans import LEDGER
from mcp_nursery.actors.process.stderr_tail import TELL_TAIL
from mcp_nursery.actors.process.tree import LEAVING, Leaving
from mcp_nursery.actors.records import evolve
from mcp_nursery.actors.secrets import SECRETS

from ..decisions.state_machine import StateMachine
from ..events import Reloaded, reloaded_event
from ..login.vault import ServerVault
from ..security.redaction import PLAIN, Redactor, ServerSecrets
from ..skills import Skill
from ..spec import ServerSpec
from ..stderr import StderrLogs
from ..storage.store import StoreUnreadable
from ..storage.tool_pins import ToolPins
from ..storage.worker import StoreWorker
from ..tools.pins import DefinitionChange, Review
from ..tools.tool import Invoke
from ..transports import Transport
from .call_counter import CallCounter
from .keeper import Keeper
from .keeper_commands import (
    AcceptChange,
    AnnounceRoots,
    Command,
    LearnSkills,
    PutFirst,
    Reconfigure,
    Refresh,
    RefreshExpired,
    RefreshOld,
    Remove,
    SendNotification,
    SkipRestartDelay,
    Subscribe,
    Wake,
)
from .observable import Observable
from .registry import ServerRegistry
from .resource_state import Subscriptions
from .settings import KeeperSettings, SupervisorSettings
from .view import ServerView

logger: Final = logging.getLogger(__name__)

_SENT_AT_ONCE = 20
"""Servers that are sent a command in one turn of the loop: what an in-process server does then is part of that turn."""

_LOOKS_EVERY = 1.0
"""Seconds between two checks of the ages of all lists, however often they are read; and so the least between two
refreshes of a list that a server calls fresh for less."""

_MOST_NAMED = 10
"""Servers that one line of the log names."""

_MOST_FORGOTTEN = 1000
"""Names of removed servers whose last incarnations are remembered."""


class Servers(ServerView):
    """The servers that one supervisor keeps: all commands to their keepers go through this. `first` has the first
    instances of these servers, if these are further instances, which share the store, the figures and the telemetry."""

    def __init__(
        self,
        settings: SupervisorSettings,
        nursery: trio.Nursery,
        invoke: Invoke,
        first: "Servers | None" = None,
    ) -> None:
        self._nursery = nursery
        self._first = first
        self._context = copy_context()
        """The context in which the block was opened, for tasks that may last as long: a task copies the context of its
        starter, and the trace, request or call in which somebody adds a server is not the server's."""
        self._keepers: dict[str, Keeper] = {}
        self.stderr: Final = StderrLogs()
        counter = CallCounter(self._forget_secrets) if first is None else first.counter
        watched = settings if first is None else evolve(settings, telemetry=None)  # a server is measured once
        registry = ServerRegistry(watched, invoke, counter, Subscriptions(self._subscribe))
        super().__init__(settings, registry, registry, Timer())
        self._numbers = count()
        """The numbers that order first starts."""
        self._reloading = trio.Lock()
        self._leaving = Leaving()
        self._context.run(LEDGER.set, settings.ledger)
        self._context.run(LEAVING.set, self._leaving)
        self._secrets: dict[str, ServerSecrets] = {}
        self._looks_again_at: float = -math.inf
        """The time at which the age of lists is checked again, on Trio's clock."""
        self._vaults: dict[str, ServerVault] = {}
        self._last: dict[str, int] = {}
        """The last incarnations of removed servers, by name: those of a new server of the name are counted on, as calls
        of the old one may still be under way."""
        self._last_of_others: int = 0
        """The last incarnation of all removed servers whose names are remembered no more."""

    # -- secrets in what is said of them --------------------------------------------------------------------------

    @override
    def redactor(self, server: str) -> Redactor:
        return self._secrets[server].redactor if server in self._secrets else PLAIN

    def _forget_secrets(self, server: str) -> None:
        self._secrets.pop(server, None)

    def pins_of(self, spec: ServerSpec) -> ToolPins:
        """The pins for one more instance of a server: what the first has pinned in memory counts there, too."""
        return self._keepers[spec.name].pins.of(spec)

    # -- commands -------------------------------------------------------------------------------------------------

    async def execute(self, server: str, command: Command) -> Command:
        """Send a server's keeper this command, and wait for its answer.

        Raises:
            UnknownServer: No server of that name.
            SupervisorClosed: The block was left.
        """
        self.snapshot(server)
        self._keepers[server].send(command)
        await command.done.wait()
        return command

    async def accept_change(self, change: DefinitionChange) -> None:
        """Have a server's keeper pin a tool or a skill as it is after the change.

        Raises:
            UnknownServer: No server of that name.
            SupervisorClosed: The block was left.
            StoreUnreadable: It cannot be recorded.
        """
        self.registry.skills_fresh_until.pop(change.server, None)  # what was seen may not be what its server has by now
        command = await self.execute(change.server, AcceptChange(change))
        if command.error is not None:
            raise StoreUnreadable(command.error)

    @override
    async def learn_skills(
        self, server: str, skills: Mapping[str, Skill], *, whole: bool, transport: Transport
    ) -> Review:
        command = LearnSkills(skills, whole, transport)
        await self.execute(server, command)
        if command.error is not None:
            raise NotApproved(server, None, command.error)
        return command.review

    async def refresh_lists(self, servers: Iterable[str]) -> None:
        """Fetch the lists of servers again, all at once. One that has gone is skipped."""
        await self._execute_all(servers, Refresh)

    @override
    async def refresh_old(
        self, servers: Iterable[str], kinds: Collection[ListKind], *, since: float = math.inf
    ) -> None:
        now = trio.current_time()
        snapshots = (self.snapshots[name].value for name in servers if name in self.snapshots)
        old = [one.spec.name for one in snapshots if one.definitions.old_from <= now]
        with trio.move_on_after(AWAITED_FOR):
            await self._execute_all(old, partial(RefreshOld, kinds, since))

    @override
    def refresh_expired(self) -> None:
        if self.closed or not trio.lowlevel.in_trio_run() or (now := trio.current_time()) < self._looks_again_at:
            return
        self._looks_again_at = now + _LOOKS_EVERY
        for name, observable in self.snapshots.items():
            snapshot = observable.value
            if snapshot.definitions.fresh_until <= now and snapshot.state is ServerState.CONNECTED:
                self._send(name, RefreshExpired())

    async def set_roots(self, roots: Roots) -> None:
        """Give servers these folders from now on, and notify those that run of the change.

        Raises:
            SupervisorClosed: The block was left.
        """
        self.check_open()
        self.settings.roots.given = roots
        await self.announce_roots()
        for instance in self.dependents:
            if isinstance(instance, Servers):
                await instance.announce_roots()

    async def notify(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a server a notification, if it runs.

        Raises:
            UnknownServer: No server of that name.
            SupervisorClosed: The block was left.
        """
        self.snapshot(server)
        await self._execute_all([server], partial(SendNotification, method, params))

    async def announce_roots(self) -> None:
        """Notify servers that run that the folders have changed."""
        await self._execute_all(list(self._keepers), AnnounceRoots)

    async def _execute_all(self, servers: Iterable[str], made: Callable[[], Command]) -> None:
        commands: list[Command] = []
        for name in servers:
            if name in self._keepers:
                commands.append(self._send(name, made()))
            if len(commands) % _SENT_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        for command in commands:
            await command.done.wait()

    def _send(self, server: str, command: Command) -> Command:
        self._keepers[server].send(command)
        return command

    def _subscribe(self, server: str, uris: frozenset[str]) -> None:
        """Set the subscribed resources of a server. Never waits. A server that has gone meanwhile is ignored."""
        if server in self._keepers:
            self._send(server, Subscribe(uris))

    def wake(self, server: str) -> None:
        """Start a server if it is idle. Never waits. One that has gone is skipped."""
        observable = self.snapshots.get(server)
        if (
            observable is not None
            and observable.value.state is ServerState.IDLE
            and self.awaited_tools.claim_start(server)
        ):
            self._send(server, Wake())

    @override
    def request_start(self, server: str) -> None:
        observable = self.snapshots.get(server)
        if observable is None or not (observable.value.state is ServerState.IDLE or observable.value.waits_for_place):
            return
        awaited = self.awaited_tools.place(server)
        if observable.value.state is ServerState.IDLE:
            self.wake(server)
        elif self.awaited_tools.claim_start(server):
            self._send(server, PutFirst(awaited))

    def revive(self, server: str) -> None:
        """Start a server that failed, for a call, if its spec says so. Never waits; many callers share one start."""
        observable = self.snapshots.get(server)
        if observable is not None and observable.value.revives_on_call:
            self._send(server, Wake())

    def skip_restart_delay(self, server: str) -> None:
        """Have the next start begin now, for a call. Never waits; many callers share one start."""
        if server in self._keepers:
            self._send(server, SkipRestartDelay(self.snapshots[server].value.incarnation))

    # -- which servers there are ----------------------------------------------------------------------------------

    def start(self, specs: Iterable[ServerSpec]) -> None:
        """Start routing and keeping time, and keep these servers.

        Raises:
            ConfigError: See `add`.
        """
        tasks = [self.router.run, self.timer.run]
        if self._first is None:
            tasks += [worker.run for worker in self._store_workers]
        for task in tasks:
            self._context.run(self._nursery.start_soon, task)
        self._add_all(self.settings.applied(specs))

    async def add(self, spec: ServerSpec) -> None:
        """Keep one more server.

        Raises:
            ConfigError: There is a server of that name, or `MCP_TIMEOUT` is no number.
            SupervisorClosed: The block was left.
        """
        self.check_open()
        self._add_all(self.settings.applied([spec]))

    async def remove(self, server: str, *, drain: float) -> None:
        """Remove this server. It is no longer configured at once; returns when all it owned is closed.

        Raises:
            UnknownServer: No server of that name.
            SupervisorClosed: The block was left.
        """
        self.snapshot(server)
        command = self._start_removal(server, drain)
        self.registry.rebuild()
        await command.done.wait()

    async def reload(
        self,
        read: Callable[[], Awaitable[Sequence[ServerSpec]]],
        *,
        restart: bool | Collection[str],
        drain: float,
        applied: Callable[[], None],
    ) -> Reloaded:
        """Keep the servers that `read` gives and no others. See `Supervisor.reload`.

        `applied` is called in the step in which they take effect: the wait that follows may be cancelled.
        """
        self.check_open()
        async with self._reloading:
            specs = self.settings.applied(await read())
            self.check_open()
            names = frozenset(spec.name for spec in specs)
            await self._wait_removed(names)
            untrusted = await self._untrusted(specs)
            again = names if restart is True else frozenset(restart or ())
            again |= {name for name in names.difference(untrusted) if self._is_blocked(name)}
            pending, event = self._apply(specs, restart=again, untrusted=untrusted, drain=drain)
            applied()
            for command in pending:
                await command.done.wait()
        self.check_open()
        return event

    def specs(self) -> tuple[ServerSpec, ...]:
        """The specs of all servers that are configured now, also those that their keepers have yet to read of."""
        leaving = self.registry.leaving
        return tuple(self._keepers[name].spec for name in self.snapshots if name not in leaving)

    async def _untrusted(self, specs: Iterable[ServerSpec]) -> list[str]:
        """The names of the servers that will not start before somebody agrees."""
        requests = [spec.trust_request for spec in specs if spec.enabled and spec.trust_request is not None]
        return [request.server for request in requests if not await self.settings.trust_gate.is_agreed(request)]

    def _is_blocked(self, server: str) -> bool:
        observable = self.snapshots.get(server)
        return observable is not None and observable.value.state is ServerState.BLOCKED

    async def _wait_removed(self, servers: Collection[str]) -> None:
        """Wait until none of these is being removed: one that comes again must find nothing of itself alive."""
        while leaving := self.registry.leaving.keys() & servers:
            await self.registry.leaving[leaving.pop()].done.wait()
            self.check_open()

    def _apply(
        self, specs: Sequence[ServerSpec], *, restart: Collection[str], untrusted: Sequence[str], drain: float
    ) -> tuple[list[Command], Reloaded]:
        """Apply the specs in one step, so that nobody sees a part of it. Returns the commands to wait for, and the
        event."""
        settings = self._settings_of(specs)  # what is wrong is found before anything has changed
        before = {spec.name: spec for spec in self.specs()}
        event = reloaded_event(before, specs, restart=restart, untrusted=untrusted, now=trio.current_time())
        new = [spec for spec in specs if spec.name not in self.snapshots]
        kept = [spec for spec in specs if spec.name in self.snapshots]
        pending = [self._start_removal(name, drain) for name in self.snapshots if name not in settings]
        removing = bool(pending)
        for spec in kept:
            self._watch(spec, settings[spec.name])
            pending.append(self._send(spec.name, Reconfigure(spec, settings[spec.name], drain, spec.name in restart)))
        for spec in new:
            self._register(spec, settings[spec.name])
        self.registry.reorder((*settings, *self.registry.leaving))
        if new or removing:
            self._launch(new)
        self.events.publish(event)
        return pending, event

    def _start_removal(self, server: str, drain: float) -> Command:
        command = self._send(server, Remove(drain))
        self.registry.leaving[server] = command
        return command

    def _add_all(self, specs: Sequence[ServerSpec]) -> None:
        settings = self._settings_of(specs)
        for spec in specs:
            if spec.name in self.snapshots:
                raise ConfigError("a server of that name exists already", server=spec.name)
        for spec in specs:
            self._register(spec, settings[spec.name])
        self._launch(specs)

    def _launch(self, specs: Sequence[ServerSpec]) -> None:
        names = [spec.name for spec in specs]
        self.registry.add(names)
        for name in names:
            context = self._context.copy()
            context.run(SECRETS.set, self._secrets[name])
            context.run(VAULT.set, self._vaults[name])
            context.run(TELL_TAIL.set, partial(self.stderr.begin, name))
            context.run(partial(self._nursery.start_soon, self._keepers[name].run, name=f"keeper of {name}"))

    def _settings_of(self, specs: Iterable[ServerSpec]) -> dict[str, KeeperSettings]:
        """The settings of servers that are to be kept together, by name."""
        settings: dict[str, KeeperSettings] = {}
        for spec in specs:
            name = spec.name
            if name in settings:
                raise ConfigError("a server of that name exists already", server=name)
            settings[name] = KeeperSettings.of(
                spec,
                self.settings,
                secrets=self._secrets.get(name) or ServerSecrets(),
                counter=self.counter,
                tokens=self._vaults.get(name) or ServerVault(self.settings.vault),
                number=next(self._numbers),
            )
        return settings

    def _register(self, spec: ServerSpec, settings: KeeperSettings) -> None:
        self._watch(spec, settings)
        recalls = settings.definitions.lasts
        last = self._last.pop(spec.name, self._last_of_others)
        machine = StateMachine.configured(spec, self.settings.policy, trio.current_time(), recalls=recalls, last=last)
        self.snapshots[spec.name] = Observable(machine.snapshot)
        self._keepers[spec.name] = Keeper(machine, settings, self.registry, self._forget)

    def _watch(self, spec: ServerSpec, settings: KeeperSettings) -> None:
        """Begin to redact and count for a server. Secrets of an earlier spec are still looked for."""
        self._vaults[spec.name], self._secrets[spec.name] = settings.tokens, settings.secrets
        settings.secrets.redactor = settings.secrets.redactor.also_of(spec.transport)
        self.counter.watch(spec.name, spec.idle_limit)

    async def close(self, drain: float) -> None:
        """End every server, all at once, also when cancelled; returns within `drain` plus the shutdown timeout."""
        self.end()
        self._leaving.since = trio.current_time() + drain
        commands: dict[str, Command] = {}
        with trio.CancelScope(shield=True) as bound:
            bound.deadline = trio.current_time() + drain + self.settings.shutdown_timeout
            kept = list(self._keepers)
            for first in range(0, len(kept), _SENT_AT_ONCE):
                batch = {name: self._send(name, Remove(drain)) for name in kept[first : first + _SENT_AT_ONCE]}
                commands |= batch
                self.registry.dismiss(batch)
                await trio.lowlevel.cancel_shielded_checkpoint()
            for command in commands.values():
                await command.done.wait()
        if bound.cancelled_caught:
            survivors = [name for name, command in commands.items() if not command.done.is_set()]
            more = f" and {len(survivors) - _MOST_NAMED} more" if len(survivors) > _MOST_NAMED else ""
            names = ", ".join(survivors[:_MOST_NAMED]) + more
            logger.warning("still closing after %g s: %s", self.settings.shutdown_timeout, names)
            await self._cancel_keepers([commands[name] for name in survivors])
        if self._first is None:
            async with trio.open_nursery() as nursery:
                for worker in self._store_workers:
                    nursery.start_soon(worker.finish)
        self.events.finish()
        self.subscriptions.end_all()
        self.stderr.end_all()
        if self._first is None and self.telemetry is not None:
            self.telemetry.close()

    @property
    def _store_workers(self) -> Sequence[StoreWorker]:
        return list(dict.fromkeys((self.settings.store_worker, self.settings.ledger)))

    async def _cancel_keepers(self, closing: Sequence[Command]) -> None:
        """Cancel the keepers that still close. Steps that must be completed are, and are recorded before the store
        closes."""
        for keeper in self._keepers.values():
            keeper.cancel()
        with trio.CancelScope(shield=True):  # bounded: nothing but bounded steps is left of them
            for command in closing:
                await command.done.wait()

    def _forget(self, server: str) -> None:
        """Forget a server whose keeper has ended: everything it owned is closed."""
        if not self.closed:
            self._last[server] = self.snapshots[server].value.incarnation
            if len(self._last) > _MOST_FORGOTTEN:
                oldest = next(iter(self._last))
                self._last_of_others = max(self._last_of_others, self._last.pop(oldest))
            del self._keepers[server]
            del self._vaults[server]
            self.registry.forget(server)
            self.counter.forget(server)
            self.stderr.end(server)
