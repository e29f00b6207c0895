"""The keeper of a server: one task, which runs its incarnations one after the other, and obeys commands.

Theory of operation
-------------------

A server outlives its processes and connections. Each of these is an incarnation, run by a `ServerActor`; the keeper is
the actor above it, and the only task that decides about the server. It alternates between two places:

    at rest       no incarnation lives, and it waits until the next start is due. A command may set that time or unset
                  it. While the server lacks authorisation, a person is asked meanwhile.
    incarnate     one incarnation lives in a nursery of the keeper. Its reports and the commands of everybody come in
                  one mailbox, in one order: "connected" and "stop" have no race.

Decisions are made elsewhere, and are pure. Each event is a method of the `StateMachine` that returns the next machine:
the state that everybody sees, and the time at which a start is due. `_write` takes it, and publishes the new snapshot
in the registry before it returns, so that nothing is decided that is not visible yet.

The end of an incarnation has two sides, which reports tell apart:

    Ending    its calls are decided: the state changes now, and waiting callers learn what comes next
    Ended     all that it owned is closed: the next start may begin

That is why two transports of one server are never alive at the same time. A command that ends an incarnation writes
what is due after it at once, sets `_overruled`, and has the actor stop; what that one still reports changes nothing.
No end is awaited in a command, or the next command would wait for a server that does not exit.

Commands are answered by `PendingCommands`: each waits in a list named for what answers it (the outcome of an attempt, a
list, the closing of what is there), and one event of the server's life answers all in some of these lists. So a hundred
callers who reconnect a server share one reconnect, and no caller is left waiting when the keeper ends: a command that
comes later is settled in `send`.

Whether a server is idle for too long, or over a limit and not in use, is decided here, in one step with the snapshot: a
call either began before, and then the server is in use, or it finds the server `idle`, and has it started, or
`connecting`. None meets a connection that is being closed for that.

No long work is done in this task: the worker of the store reads and writes pins and cached definitions, and the
incarnation reads lists. If the keeper is cancelled, its nursery ends the incarnation, and all commands are settled on
the way out.
"""

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import trio

from mcp_nursery.actors.account import Account
from mcp_nursery.actors.callbacks import Host
from mcp_nursery.actors.enums import Era, ExitKind, ServerState
from mcp_nursery.actors.errors import ConfigError, NurseryError, one_line
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.limits import CONNECT_SETTINGS
from mcp_nursery.actors.mailbox import Mailbox
from mcp_nursery.actors.messages import Connected, Ended, Ending, ExitReason, Opened, Refreshed, Report
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.actors.oauth.tokens import LOG_IN
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.process.table import memory_of
from mcp_nursery.actors.records import Factory, define, evolve, field
from mcp_nursery.actors.server_actor import Connector, ServerActor, log_crash
from mcp_nursery.actors.start_limiter import UNLIMITED, Turn

from ..decisions.error_line import redact_tail
from ..decisions.renewal_limits import COMPARED_AGAIN, MEASURED_EVERY, Limits, excess_of, next_look
from ..decisions.server_info import introduction_of
from ..decisions.state_machine import CALLS_WAIT, Snapshot, StateMachine
from ..events import ResourceUpdated
from ..logs import ServerLog
from ..security.untrusted_marks import clean_name
from ..skills import with_roots
from ..spec import ServerSpec
from ..storage.store import StoreUnreadable
from ..storage.tool_pins import ToolPins
from ..tools.pins import UNREVIEWED
from .keeper_commands import (
    AcceptChange,
    AnnounceRoots,
    Authorised,
    Command,
    LearnSkills,
    Measured,
    NotAuthorised,
    PendingCommands,
    PutFirst,
    Recall,
    Reconfigure,
    Reconnect,
    Refresh,
    RefreshExpired,
    RefreshOld,
    Remove,
    SendNotification,
    SkipRestartDelay,
    Start,
    Stop,
    Subscribe,
    Wake,
)
from .registry import NOTHING_PREPARED, Prepared, ServerRegistry
from .settings import KeeperSettings, modules_for

logger: Final = logging.getLogger(__name__)

_REMOVED = "the server was removed"

INSTALL_SETTINGS = "install_timeout, or installSeconds"
"""The settings of the time to connect while a command installs what it starts, for people."""

_INSTALLER_LOOKED_AT = 1.0
"""Seconds between two looks at what an installing command has written."""

_RUNNING = (ServerState.CONNECTING, ServerState.CONNECTED)
_UNBLOCKED_BY_RELOAD = (ServerState.FAILED, ServerState.NEEDS_AUTH)
"""States that a reload ends although nothing changed here: what was in the way may have gone."""


@define(eq=False)
class Keeper:
    """The keeper of one server, by its policy."""

    _machine: StateMachine
    """The state of the server, and what is due. At first nothing was done."""
    _settings: KeeperSettings
    """The settings by which it is kept."""
    _registry: ServerRegistry
    """The registry in which each of its snapshots is published."""
    _on_end: Callable[[str], None] = lambda _name: None
    """Called with its name in the step in which the keeper ends, unless it was cancelled."""
    _now: Snapshot = field(default=Factory(lambda self: self._machine.snapshot, takes_self=True), init=False)
    """The state of the server now."""
    spec: ServerSpec = field(default=Factory(lambda self: self._now.spec, takes_self=True), init=False)
    """The spec by which it keeps the server once it has obeyed all commands."""
    _log: ServerLog = field(
        default=Factory(lambda self: ServerLog(self._now.spec.name, self._settings.secrets.hide_line), takes_self=True),
        init=False,
    )
    """The receiver of its log messages if the host has no callback for them."""
    _pending: PendingCommands = field(factory=PendingCommands, init=False)
    _mailbox: Mailbox[Command | Report] = field(factory=lambda: Mailbox(math.inf), init=False)
    _life: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _removed: bool = field(default=False, init=False)
    """True if no incarnation follows this one."""
    _actor: ServerActor | None = field(default=None, init=False)
    """The living incarnation, or one that is being closed."""
    _subscribed: frozenset[str] = field(default=frozenset(), init=False)
    """Resources that somebody subscribes to, besides those of the spec."""
    _heard_of: set[str] = field(factory=set[str], init=False)
    """Resources that were subscribed before: when they are subscribed again, they may have changed meanwhile."""
    _overruled: bool = field(default=False, init=False)
    """True if a command has ended the incarnation: what it still reports changes nothing."""
    _may_install: bool = field(default=False, init=False)
    """True if the living incarnation's command may install what it starts."""
    _unused_from: float = field(default=-math.inf, init=False)
    """The time at which it was connected last, but for renewals: from then on it counts as idle if nobody uses it."""
    _memory: int | None = field(default=None, init=False)
    """Bytes that the processes of the living incarnation took at the last look; None if that is not known."""
    _measured_next: float = field(default=-math.inf, init=False)
    """The time of the next look at them; `inf` while one is under way."""
    _limits_due: float = field(default=-math.inf, init=False)
    """The time at which the server is compared with its limits again."""
    _renewed_at: float = field(default=-math.inf, init=False)
    """The time at which it was renewed last for being over a limit."""
    _asked_person: bool = field(default=False, init=False)
    """True if a person was asked to authorise it, and it was neither connected nor started by anybody since."""
    _looks_for_person: bool = field(default=False, init=False)
    """True while tasks of this keeper wait for a person."""

    @property
    def pins(self) -> ToolPins:
        """The pins of the server."""
        return self._settings.pins

    def send(self, command: Command) -> None:
        """Send a command. Never waits; one that comes after the keeper has ended is answered at once."""
        if isinstance(command, Reconfigure):
            self.spec = command.spec
        try:
            self._mailbox.put_nowait(command)
        except trio.BrokenResourceError:
            command.settle(self._now, _REMOVED)

    def cancel(self) -> None:
        """End the keeper without waiting for what closes in its own time."""
        self._life.cancel()

    # -- the life of a server -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the server until it is removed."""
        with self._life:
            try:
                self._look_up_definitions()
                await self._settings.notes.recall()  # at any rate: it opens the store, which looks for orphans
                while not self._removed:
                    await self._rest()
                    if not self._removed:
                        await self._incarnate()
            finally:
                self._pending.stopped(self._now)
                self._pending.closed(self._now)
                for message in self._mailbox.close():
                    if isinstance(message, Command):
                        message.settle(self._now, _REMOVED)
            self._on_end(self._now.spec.name)

    async def _rest(self) -> None:
        """Wait for the time of the next start; a command may set it, or unset it."""
        while self._is_resting():
            if self._now.state is ServerState.NEEDS_AUTH:
                await self._wait_for_person()
            else:
                await self._rest_a_while()
        if self._now.state in _UNBLOCKED_BY_RELOAD:
            self._write(self._machine.started(trio.current_time()))  # revived, or asked again: its time has come

    def _is_resting(self) -> bool:
        return not self._removed and trio.current_time() < self._machine.due

    async def _rest_a_while(self) -> None:
        message = await self._next(until=self._machine.due)
        if message is not None:
            assert isinstance(message, Command)  # no incarnation lives that could report
            await self._obey(message)

    async def _wait_for_person(self) -> None:
        """Rest, and watch for somebody to authorise the server. A command that ends this is answered when it is
        over."""
        self._looks_for_person = True
        async with run_alongside(self._await_tokens, self._ask_person):
            while self._is_resting() and self._now.state is ServerState.NEEDS_AUTH:
                await self._rest_a_while()
        self._looks_for_person = False
        self._pending.closed(self._now)

    async def _await_tokens(self) -> None:
        await self._settings.tokens.changed()
        self.send(Authorised())

    async def _ask_person(self) -> None:
        if self._settings.log_in is None or self._asked_person:
            return
        self._asked_person = True
        try:
            await self._settings.log_in()
        except NurseryError as error:
            why = one_line(self._settings.secrets.hide_line(str(error)))
            logger.warning("%s", why)
            self.send(NotAuthorised(why))
        else:
            self.send(Authorised())

    async def _incarnate(self) -> None:
        """Run one incarnation until it is closed. What is due after it is decided on the way."""
        self._overruled = False
        LOG_IN.set(self._settings.log_in)
        await modules_for(self._now.spec).ensure_loaded()
        await self._settings.notes.recall()  # nothing, unless it was reconfigured
        connector = self._make_connector()
        if connector is None:
            return
        self._may_install = self._installs_next()
        self._write(self._machine.incarnated())
        self._settings.definitions.declare(self._settings.offered.declared)
        self._actor = self._new_actor(connector)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._actor.run)
            await self._attend(nursery)
            nursery.cancel_scope.cancel()  # a look at its memory may be under way
        self._actor = None
        await self._settings.definitions.save()
        self._pending.closed(self._now)

    def _installs_next(self) -> bool:
        """True if the next incarnation's command may install what it starts: it has never answered, or was cut off
        while it wrote something. Who is as patient as before would cut it off at the same place."""
        if self._settings.installer is None:
            return False
        was_cut_off = self._now.ended is ExitKind.CONNECT_FAILED and self._now.stderr_tail is not None
        return was_cut_off or (self._now.introduction is None and self._settings.notes.era is None)

    def _make_connector(self) -> Connector | None:
        """The connector of the next incarnation; None if its transport has none: what follows is decided then.

        The transport may be the host's own: whatever it raises ends an incarnation of this server, and nothing else.
        """
        try:
            return self._now.spec.transport.connector(close_grace=self._settings.close_grace)
        except ConfigError as error:
            machine, kind, loss = self._machine.withheld(), ExitKind.UNUSABLE, Loss(str(error))
        except Exception as crash:
            machine, kind, loss = self._machine.incarnated(), ExitKind.LOST, log_crash(crash, self._now.spec.name)
        self._write(machine)
        self._decide(ExitReason(kind, loss, at=trio.current_time()))
        return None

    async def _attend(self, nursery: trio.Nursery) -> None:
        """Receive commands and reports while the incarnation lives. Meanwhile, stop the incarnation when it is idle or
        over a limit, compare its tools with their pins again, and save its definitions."""
        while True:
            message = await self._next(
                until=min(
                    *(self._idle_at(), self._limits_at(), self._review_at()),
                    *(self._settings.definitions.save_at, self._installer_looked_at()),
                )
            )
            match message:
                case None:
                    self._look_at_installer()
                    await self._review_again()
                    await self._save_definitions()
                    self._stop_if_idle()
                    self._compare_with_limits(nursery)
                case Command():
                    await self._obey(message)
                case Ending():
                    self._hear_ending(message.reason)
                case Ended():
                    return
                case _ if self._overruled:
                    continue
                case Opened():
                    self._write(self._machine.opened(message.pid))
                    self._look_at_installer()
                case Connected():
                    await self._hear_connected(message)
                case Refreshed():
                    await self._hear_refreshed(message)

    def _installer_looked_at(self) -> float:
        """The time of the next look at what an installing command has written."""
        return math.inf if self._now.installing is None else trio.current_time() + _INSTALLER_LOOKED_AT

    def _look_at_installer(self) -> None:
        """Show what an installing command has written last."""
        if self._may_install and self._now.state is ServerState.CONNECTING and not self._overruled:
            assert self._actor is not None
            said = one_line(self._settings.secrets.hide_line(self._actor.last_line))
            self._write(self._machine.installing(": ".join(filter(None, (self._settings.installer, said)))))

    async def _next(self, *, until: float) -> Command | Report | None:
        """The next message; None if none has come by then."""
        if until == math.inf:  # as for most servers most of the time: each would keep a scope
            return (await self._mailbox.take(1))[0]
        with trio.move_on_at(until):
            return (await self._mailbox.take(1))[0]
        return None

    def _new_actor(self, connector: Connector) -> ServerActor:
        return ServerActor(
            connector,
            incarnation=self._now.incarnation,
            connect_timeout=self._settings.install_timeout if self._may_install else self._settings.connect_timeout,
            raised_by=INSTALL_SETTINGS if self._may_install else CONNECT_SETTINGS,
            era=self._settings.notes.era,
            mailbox_size=self._now.spec.mailbox_size,
            max_in_flight=self._now.spec.max_in_flight,
            permit=self._settings.permit,
            limiter=self._settings.limiter if self._now.attempt == 1 else UNLIMITED,
            turn=Turn(self._settings.number),
            host=self._host(),
            liveness=self._now.spec.liveness,
            report=self._mailbox.put_nowait,
            updated=self._hear_update,
            trace=self._registry.trace(self._now.spec.name),
        )

    def _host(self) -> Host:
        spec = self._now.spec
        overhear = partial(self._registry.notices.publish, spec.name)
        account = Account(whole=self._registry.account(spec.name))
        offered, told, limit = self._settings.offered, self._settings.told, spec.human_limit
        return Host(spec.name, offered, spec.cost_limits, spec.protocol, self._log, overhear, account, limit, told)

    def _write(self, machine: StateMachine, prepared: Prepared = NOTHING_PREPARED) -> None:
        """Take the machine that follows an event; all that depends on it is published in the same step."""
        old, self._now, self._machine = self._now, machine.snapshot, machine
        if self._now is not old:
            self._registry.publish(self._now, prepared)

    async def _write_definitions(self, machine: StateMachine) -> None:
        """Take the machine that follows new definitions: their tools are made in turns before that step."""
        self._write(machine, await by_turns(self._registry.prepare_all(machine.snapshot)))

    # -- what an incarnation reports ------------------------------------------------------------------------------

    def _hear_ending(self, reason: ExitReason) -> None:
        era, answered = reason.era, reason.era_answered
        if not self._overruled:
            self._decide(reason)
            if reason.kind is ExitKind.PROBE_REFUSED:
                era, answered = Era.HANDSHAKE, True
        self._settings.notes.learn(era, answered=answered)

    def _decide(self, reason: ExitReason) -> None:
        """Follow up an end that was not asked for."""
        self._write(self._machine.ended(reason, self._settings.secrets.hide))
        if reason.kind is ExitKind.PROBE_REFUSED:
            return
        for line in (self._now.stderr_tail or "").splitlines():
            logger.debug("%s: wrote to stderr: %s", clean_name(self._now.spec.name), line)
        self._pending.ended(self._now)

    async def _hear_connected(self, report: Connected) -> None:
        self._asked_person = False
        self._settings.notes.learn(report.handshake.remembered, answered=report.handshake.era_answered)
        redact, modern = self._settings.secrets.hide, report.handshake.era is Era.MODERN
        announced = self._settings.told if modern else self._settings.offered.declared
        review = await self._settings.pins.review(report.definitions.tools)  # before anybody sees a tool
        said = introduction_of(report.handshake, self._settings.secrets.redactor.said_in_pieces, announced)
        introduction, tail = await by_turns(said), redact_tail(report.stderr_tail, redact)
        now = trio.current_time()
        if self._now.over_limit is None:  # else it was renewed, and that is no use of it
            self._unused_from = now
        await self._write_definitions(self._machine.connected(report, introduction, review, stderr_tail=tail, now=now))
        self._memory, self._measured_next, self._limits_due = None, next_look(now + MEASURED_EVERY), now
        self._settings.definitions.note(report.definitions, introduction.hello)
        self._subscribe()
        self._pending.connected(self._now)

    async def _hear_refreshed(self, report: Refreshed) -> None:
        definitions, review = report.definitions, self._now.review
        if definitions is not None:
            if definitions.tools is not self._now.definitions.tools:
                review = await self._settings.pins.review(definitions.tools)
            await self._write_definitions(self._machine.listed(definitions, review))
            hello = None if self._now.introduction is None else self._now.introduction.hello
            self._settings.definitions.note(definitions, hello)
            self._subscribe()
        if report.error is not None:
            why = one_line(self._settings.secrets.hide_line(report.error))
            logger.info(
                "%s: its tools could not be listed again, and stay as they were: %s",
                clean_name(self._now.spec.name),
                why,
            )
        self._registry.breakers.settle_list(self._now.spec.name, came=not report.timed_out)
        self._pending.refreshed(self._now, report.answers)

    # -- the definition cache -------------------------------------------------------------------------------------

    def _look_up_definitions(self) -> None:
        """Ask the store for cached definitions, while the server is being started."""
        if self._now.recalling:
            self._settings.definitions.declare(self._settings.offered.declared)
            self._settings.definitions.fetch()
            self.send(Recall())

    async def _recall(self, command: Recall) -> None:
        """Show the cached definitions, compared with their pins like those that a server declares."""
        if self._now.recalling:
            definitions, hello = await self._settings.definitions.recalled()
            review = await self._settings.pins.review(definitions.tools, live=False) if definitions else UNREVIEWED
            now = trio.current_time()
            await self._write_definitions(self._machine.recalled(definitions, review, now, hello=hello))
        command.settle(self._now)

    async def _save_definitions(self) -> None:
        if self._settings.definitions.save_at <= trio.current_time():
            await self._settings.definitions.save()

    # -- subscriptions --------------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        """Have the incarnation subscribe to the resources that somebody wants updates of."""
        if self._now.state is not ServerState.CONNECTED or self._actor is None:
            return
        wanted = self._subscribed
        if self._now.spec.subscribe:
            listed = (resource.uri for resource in self._now.definitions.resources)
            wanted |= frozenset(uri for uri in listed if self._now.spec.subscribes(uri))
        self._heard_of &= wanted
        self._actor.subscribe(wanted)

    def _hear_update(self, uri: str, certain: bool) -> None:  # noqa: FBT001
        """Publish that a resource changed, or may have since it was subscribed before. Called by the incarnation, in
        its task."""
        if certain or uri in self._heard_of:
            self._registry.publish_update(ResourceUpdated(self._now.spec.name, uri, certain, trio.current_time()))
        self._heard_of.add(uri)

    async def _review_tools(self) -> None:
        review = await self._settings.pins.review(self._now.definitions.tools)
        await self._write_definitions(self._machine.listed(self._now.definitions, review))

    def _review_at(self) -> float:
        """The time at which its tools are to be compared with their pins again because the pins could not be read the
        last time."""
        return self._settings.pins.again_at if self._now.state is ServerState.CONNECTED else math.inf

    async def _review_again(self) -> None:
        if self._review_at() <= trio.current_time():
            await self._review_tools()

    # -- idleness -------------------------------------------------------------------------------------------------

    def _idle_at(self) -> float:
        """The time at which it is to be stopped for idleness if nobody uses it until then. A server that is in use is
        looked at again when its limit has passed: it cannot have been idle for so long before."""
        if self._now.state is not ServerState.CONNECTED:
            return math.inf
        idle_since = max(self._unused_from, self._settings.counter.idle_since(self._now.spec.name))
        return min(idle_since, trio.current_time()) + self._now.spec.idle_limit

    def _stop_if_idle(self) -> None:
        """Stop it if it is idle: no user is cut off, and no command waits here. It stays at rest until it is wanted."""
        if self._idle_at() <= trio.current_time():
            self._write(self._machine.idle(trio.current_time()))
            self._end()

    # -- limits of memory and age ---------------------------------------------------------------------------------

    def _limits_at(self) -> float:
        """The time at which it is compared with its limits again; never if it has none."""
        concerned = self._now.spec.limits is not None or self._now.over_limit is not None
        return self._limits_due if concerned and self._now.state is ServerState.CONNECTED else math.inf

    def _compare_with_limits(self, nursery: trio.Nursery) -> None:
        """Renew the server if the server is over a limit and nobody uses it; have its memory looked at when due."""
        limits, now = self._now.spec.limits or Limits(), trio.current_time()
        if now < self._limits_at():
            return
        assert self._now.connected_at is not None  # in this state
        measured_next = math.inf if limits.memory is None else self._measured_next
        if measured_next <= now:
            measured_next = self._measured_next = math.inf
            nursery.start_soon(self._measure, self._now.incarnation, self._now.pid)
        excess = excess_of(
            limits,
            memory=self._memory,
            connected_at=self._now.connected_at,
            renewed_at=self._renewed_at,
            in_use=self._settings.counter.idle_since(self._now.spec.name) == math.inf,
            now=now,
        )
        if excess is not None and not excess.obstacle:
            self._renewed_at = now
            self._begin(self._machine.renewed(str(excess), now), drain=0.0)
            return
        shown = self._now.over_limit or ""
        if excess is None and shown:
            self._write(self._machine.exceeding(None))
        elif excess is not None and not shown.endswith(excess.obstacle):  # its words may have seconds, which differ
            self._write(self._machine.exceeding(str(excess)))
        too_old_at = math.inf if limits.age is None else self._now.connected_at + limits.age
        self._limits_due = min(measured_next, too_old_at) if excess is None else now + COMPARED_AGAIN

    async def _measure(self, incarnation: int, pid: int | None) -> None:
        self.send(Measured(incarnation, None if pid is None else await memory_of(pid)))

    async def _note_memory(self, command: Measured) -> None:
        now = trio.current_time()
        if command.incarnation == self._now.incarnation and self._now.state is ServerState.CONNECTED:
            self._memory, self._limits_due = command.memory, now
            if command.memory is None:
                name = clean_name(self._now.spec.name)
                logger.warning("%s: its memory cannot be known here: limits.memory has no effect", name)
            else:
                self._measured_next = next_look(now)
        command.settle(self._now)

    # -- commands, at rest and while an incarnation lives ---------------------------------------------------------

    async def _obey(self, command: Command) -> None:
        ways: Mapping[type[Command], Any] = {
            Start: self._start,
            Wake: self._wake,
            Authorised: self._wake,
            NotAuthorised: self._note_refusal,
            Recall: self._recall,
            Measured: self._note_memory,
            SkipRestartDelay: self._skip_restart_delay,
            PutFirst: self._put_first,
            Reconnect: self._reconnect,
            Refresh: self._refresh,
            RefreshOld: self._refresh_old,
            RefreshExpired: self._refresh_expired,
            AnnounceRoots: self._announce_roots,
            SendNotification: self._notify,
            Subscribe: self._resubscribe,
            Stop: self._stop,
            Remove: self._stop,
            Reconfigure: self._reconfigure,
            AcceptChange: self._accept,
            LearnSkills: self._learn_skills,
        }
        await ways[type(command)](command)

    async def _start(self, command: Start) -> None:
        self._asked_person = False
        if self._now.state not in _RUNNING:
            self._begin(self._machine.started(trio.current_time()))
        command.settle(self._now)

    async def _note_refusal(self, command: NotAuthorised) -> None:
        self._write(self._machine.not_authorised(command.why) or self._machine)
        command.settle(self._now)

    async def _refresh_old(self, command: RefreshOld) -> None:
        actor = self._actor if self._answers_lists() else None
        if actor is not None and actor.refresh_old(command, command.kinds, command.since):
            self._pending.for_lists.append(command)
        elif actor is not None and not command.deferred:
            command.deferred = True
            self.send(command)  # the known list may have come just now: its report is ahead of this
        else:
            command.settle(self._now)

    async def _refresh_expired(self, command: RefreshExpired) -> None:
        if self._actor is not None:
            self._actor.refresh_expired()
        command.settle(self._now)

    async def _announce_roots(self, command: AnnounceRoots) -> None:
        if self._actor is not None and self._now.spec.roots is None:
            self._actor.announce_roots()
        command.settle(self._now)

    async def _notify(self, command: SendNotification) -> None:
        if self._actor is None:
            command.settle(self._now)
        else:
            self._actor.tell(command.method, command.params, partial(command.settle, self._now))

    async def _resubscribe(self, command: Subscribe) -> None:
        self._subscribed = command.uris
        self._subscribe()
        await self._wake_for_subscribers()
        command.settle(self._now)

    async def _wake_for_subscribers(self) -> None:
        """Start it if it is idle while somebody subscribes to its resources: a reload may have left it so."""
        if self._subscribed and self._now.state is ServerState.IDLE:
            await self._wake(Wake())

    def _begin(self, machine: StateMachine, *, drain: float = math.inf) -> None:
        """Have the next incarnation take the place of the one that lives, or waits for its calls: those that were sent
        get `drain` seconds, and no more than they had."""
        if self._removed:
            return
        self._write(machine)
        self._pending.replaced()
        self._end(drain)

    def _end(self, drain: float = 0.0) -> None:
        """End the incarnation, if one lives. What is due after it was set before."""
        if self._actor is not None:
            self._overruled = True
            self._pending.overruled(self._now)
            self._actor.stop(drain)
        elif not self._looks_for_person:
            self._pending.closed(self._now)

    async def _wake(self, command: Command) -> None:
        now = trio.current_time()
        machine = self._machine.authorised(now) if isinstance(command, Authorised) else self._machine.woken(now)
        if machine is not None:
            self._begin(machine)

    async def _skip_restart_delay(self, command: SkipRestartDelay) -> None:
        """Begin the next incarnation now, or when what is left of the one before is closed."""
        machine = self._machine.delay_skipped(trio.current_time()) if command.lost == self._now.incarnation else None
        if machine is not None:
            self._write(machine)

    async def _put_first(self, command: PutFirst) -> None:
        if self._actor is not None:
            self._actor.prioritise(command.awaited)

    async def _reconnect(self, command: Reconnect) -> None:
        self._asked_person = False
        self._pending.for_outcome.append(command)
        machine = self._machine.reconnected(trio.current_time())
        if self._now.state is ServerState.CONNECTING and not self._overruled:
            self._write(machine)
        else:
            self._begin(machine, drain=0.0)

    async def _refresh(self, command: Refresh) -> None:
        if self._answers_lists():
            assert self._actor is not None  # in this state
            self._pending.for_tools.append(command)
            self._actor.refresh(command)
        elif self._now.state in CALLS_WAIT:
            self._pending.for_next_tools.append(command)
            await self._wake(command)
        else:
            command.settle(self._now)

    def _answers_lists(self) -> bool:
        """True if it is connected, and a list requested of it can be expected to come."""
        return self._now.state is ServerState.CONNECTED and self._registry.breakers.admits_list(self._now.spec.name)

    async def _stop(self, command: Stop) -> None:
        self._write(self._machine.stopped())
        self._pending.for_closing.append(command)
        self._removed = self._removed or isinstance(command, Remove)
        self._pending.stopped(self._now)
        self._end(command.drain)

    async def _reconfigure(self, command: Reconfigure) -> None:
        old, spec, settings = self._now.spec, command.spec, command.settings
        restart, recalls = command.restart, settings.definitions.lasts
        machine = self._machine.reconfigured(
            spec, settings.policy, trio.current_time(), restart=restart, recalls=recalls
        )
        if spec == old and not restart:
            self._write(machine)
            self._limits_due = trio.current_time()  # they may be others
            if self._now.state in _UNBLOCKED_BY_RELOAD:
                self._begin(self._machine.started(trio.current_time()))
            command.settle(self._now)
            return
        await self._settings.definitions.save()
        if spec.transport == old.transport:  # what was found out about it still holds
            notes = self._settings.notes if spec.protocol == old.protocol else settings.notes
            settings = evolve(settings, notes=notes, pins=self._settings.pins.of(spec))
        self._write(machine)
        self._settings = settings
        self._pending.for_closing.append(command)
        if self._now.state is ServerState.CONNECTING:
            self._pending.replaced()
        else:
            self._pending.stopped(self._now)
        self._end(command.drain)
        self._look_up_definitions()
        await self._wake_for_subscribers()

    async def _accept(self, command: AcceptChange) -> None:
        """Pin a tool or a skill as a person has seen it, and compare all of the kind again."""
        try:
            await self._settings.pins.accept(command.change)
        except StoreUnreadable as error:
            command.settle(self._now, str(error))
            return
        if command.change.kind == "tool":
            await self._review_tools()
        else:
            known = self._now.skills
            review = await self._settings.pins.review_skills(known.by_uri)
            self._write(self._machine.knowing(evolve(known, review=review)))
        command.settle(self._now)

    async def _learn_skills(self, command: LearnSkills) -> None:
        """Know skills from now on, compared with their pins, in one step: no other entry for such a skill can be shown
        by this comparison."""
        if command.transport != self._now.spec.transport:
            command.settle(self._now, "it is reached in another way since it was asked for skills")
            return
        pins = self._settings.pins
        command.review = review = await pins.review_skills(command.skills)
        before, room = self._now.skills, self._now.spec.max_kept_bytes
        known = before.with_some(command.skills, review, room, whole=command.whole)
        pinned = before.pinned
        new = [uri for uri in command.skills if uri in review.changes or uri not in review.held]
        if pinned is None or command.whole or not command.skills:  # other hosts pin some, too
            others = await pins.pinned_skills()
            pinned = pinned if others is None else pinned or {}
            new += others or ()
        if pinned is not None:
            known = evolve(known, pinned=await by_turns(with_roots(pinned, new)))
        self._write(self._machine.knowing(known))
        command.settle(self._now)
