"""The keeper: one task a server. It runs incarnations, asks the policy what follows, and writes the state cell."""

import math
from collections.abc import Callable
from enum import Enum
from typing import assert_never

import trio
from attrs import define, evolve, field, frozen

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.mailbox import Mailbox
from mcp_nursery.actors.messages import (
    Connected,
    Ended,
    Ending,
    Era,
    ExitKind,
    ExitReason,
    Loss,
    Opened,
    Relisted,
    Report,
    ServerState,
)
from mcp_nursery.actors.server import ServerActor
from mcp_nursery.actors.start_pool import NO_POOL, StartPool

from .lifecycle import check_transition
from .policy import Finished, GiveUp, Restart, RestartPolicy, RestartTracker
from .spec import ServerSpec
from .status import Snapshot
from .tools.redaction import PLAIN, Redactor

_NEVER = math.inf
_LEFT = "the server was removed"


class Order(Enum):
    """What a keeper can be told."""

    START = "start"
    """A person wants it running: a fresh start, unless it runs or is being started."""
    WAKE = "wake"
    """A call or list needs it: start it if it is idle. Shortens no ladder."""
    RECONNECT = "reconnect"
    """A fresh start now, whatever it does. Answered with the outcome of the attempt; many share one."""
    RELIST = "relist"
    """Fetch the tools again. Answered when that is done."""
    STOP = "stop"
    """End it and leave it. Answered when everything it owned is closed."""
    LEAVE = "leave"
    """As `STOP`, and the keeper ends too."""


@define(eq=False)
class Command:
    """An order to a keeper, and where its answer appears."""

    order: Order
    drain: float = 0.0
    """Seconds that calls already sent may still take."""
    done: trio.Event = field(factory=trio.Event)
    outcome: Snapshot | None = None
    """How the server stood when it was done; set before `done`."""
    error: str | None = None

    def settle(self, outcome: Snapshot, error: str | None = None) -> None:
        """Answer."""
        self.outcome = outcome
        self.error = error
        self.done.set()


@frozen
class KeeperSettings:
    """What a keeper takes from the supervisor."""

    policy: RestartPolicy
    """For a server that brings none of its own."""
    connect_timeout: float
    """Seconds; `inf` for no limit."""
    close_grace: float
    """Seconds at each step of closing a transport."""
    redactor: Redactor = PLAIN
    """Takes secrets out of what is told of the server."""
    pool: StartPool = NO_POOL
    """Where a fresh start waits for its turn; restarts never wait."""


def initial_snapshot(spec: ServerSpec, policy: RestartPolicy) -> Snapshot:
    """Where a server stands before its keeper has done anything."""
    state = ServerState.CONNECTING
    if not spec.enabled:
        state = ServerState.DISABLED
    elif spec.lazy:
        state = ServerState.IDLE
    return Snapshot(spec, state, max_attempts=(spec.policy or policy).max_attempts)


class Keeper:
    """Keeps one server as its policy says.

    At rest it waits for an order or for the time the next start is due; while an incarnation lives it hears orders and
    the incarnation's reports in one mailbox. An order that ends an incarnation leaves a *wish*: what to do once
    everything the incarnation owned is closed, so that never two transports of a server are alive.
    """

    def __init__(
        self, snapshot: Snapshot, settings: KeeperSettings, publish: Callable[[Snapshot, Snapshot], None]
    ) -> None:
        self._snapshot = snapshot
        self._spec = snapshot.spec
        self._settings = settings
        self._redact = settings.redactor.text
        self._publish = publish
        self._mailbox: Mailbox[Command | Report] = Mailbox(_NEVER)
        self._tracker = RestartTracker(self._spec.policy or settings.policy, self._spec.restart)
        self._era: Era | None = None
        self._due = trio.current_time() if snapshot.state is ServerState.CONNECTING else _NEVER
        self._wish: Order | None = None
        self._askers: list[Command] = []
        self._stoppers: list[Command] = []
        self._relisters: list[Command] = []
        self._left = False

    def tell(self, command: Command) -> None:
        """Leave an order. Never waits; one that comes after the keeper has left is answered at once."""
        try:
            self._mailbox.put_nowait(command)
        except trio.BrokenResourceError:
            command.settle(self._snapshot, _LEFT)

    async def run(self) -> None:
        """Keep the server until told to leave."""
        try:
            while not self._left:
                await self._rest()
                if not self._left:
                    await self._incarnate()
        finally:
            unheard = [message for message in self._mailbox.close() if isinstance(message, Command)]
            for commands in (self._askers, self._stoppers, self._relisters, unheard):
                self._settle(commands, _LEFT)

    # -- at rest --------------------------------------------------------------------------------------------------

    async def _rest(self) -> None:
        """Wait for the time of the next start; an order may set it, or unset it."""
        while not self._left and trio.current_time() < self._due:
            with trio.move_on_at(self._due):
                for message in await self._mailbox.take(1):
                    assert isinstance(message, Command)  # no incarnation lives that could report
                    self._heed_at_rest(message)

    def _heed_at_rest(self, command: Command) -> None:
        match command.order:
            case Order.START:
                self._start_fresh()
                command.settle(self._snapshot)
            case Order.RECONNECT:
                self._start_fresh()
                self._askers.append(command)
            case Order.WAKE:
                if self._snapshot.state is ServerState.IDLE:
                    self._start_fresh()
            case Order.RELIST:
                command.settle(self._snapshot, "the server is not connected")
            case Order.STOP | Order.LEAVE:
                self._due = _NEVER
                self._show_stopped()
                self._left = command.order is Order.LEAVE
                command.settle(self._snapshot)
            case _:
                assert_never(command.order)

    def _start_fresh(self) -> None:
        self._tracker = self._tracker.reset()
        self._due = trio.current_time()
        self._show_connecting()

    # -- while an incarnation lives -------------------------------------------------------------------------------

    async def _incarnate(self) -> None:
        """Run one incarnation to its end, closed, and decide when the next one starts."""
        self._due = _NEVER
        self._wish = None
        try:
            connector = self._spec.transport.connector(close_grace=self._settings.close_grace)
        except ConfigError as error:
            self._decide(ExitReason(ExitKind.UNUSABLE, Loss(str(error)), at=trio.current_time()))
            return
        self._show(evolve(self._connecting(), incarnation=self._snapshot.incarnation + 1))
        actor = ServerActor(
            connector,
            incarnation=self._snapshot.incarnation,
            connect_timeout=self._settings.connect_timeout,
            era=self._era,
            mailbox_size=self._spec.mailbox_size,
            max_in_flight=self._spec.max_in_flight,
            pool=self._settings.pool if self._tracker.attempt == 1 else NO_POOL,
            report=self._mailbox.put_nowait,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(actor.run)
            await self._attend(actor)
        self._fulfil_wish()

    async def _attend(self, actor: ServerActor) -> None:
        while True:
            for message in await self._mailbox.take(1):
                match message:
                    case Ended():
                        return
                    case Command():
                        self._heed(message, actor)
                    case _:
                        self._hear(message)

    def _hear(self, report: Opened | Connected | Relisted | Ending) -> None:
        """A report of the living incarnation. Once an order has settled its fate, what it says changes nothing."""
        match report:
            case Ending():
                self._era = report.reason.era or self._era
                self._settle(self._relisters, self._redact(report.reason.loss.message))
                if self._wish is None:
                    self._decide(report.reason)
            case _ if self._wish is not None:
                return
            case Opened():
                self._show(evolve(self._snapshot, pid=report.pid))
            case Connected():
                self._show_connected(report)
            case Relisted():
                if report.definitions is not None:
                    self._show(evolve(self._snapshot, definitions=report.definitions))
                self._settle(self._relisters, None if report.error is None else self._redact(report.error))
            case _:
                assert_never(report)

    def _heed(self, command: Command, actor: ServerActor) -> None:
        match command.order:
            case Order.START:
                if self._snapshot.state not in _RUNNING:
                    self._replace(actor)
                command.settle(self._snapshot)
            case Order.RECONNECT:
                self._askers.append(command)
                if self._snapshot.state is ServerState.CONNECTING:
                    self._tracker = self._tracker.reset()  # joins the attempt under way
                    self._show(self._connecting())
                else:
                    self._replace(actor)
            case Order.WAKE:
                return
            case Order.RELIST:
                self._relisters.append(command)
                actor.relist()
            case Order.STOP | Order.LEAVE:
                if self._wish is not Order.LEAVE:
                    self._wish = command.order
                self._stoppers.append(command)
                self._show_stopped()
                actor.stop(command.drain)
            case _:
                assert_never(command.order)

    def _replace(self, actor: ServerActor) -> None:
        """A fresh start as soon as the living incarnation is closed."""
        if self._wish is Order.LEAVE:
            return
        self._wish = Order.START
        self._tracker = self._tracker.reset()
        self._show_connecting()
        actor.stop()

    def _fulfil_wish(self) -> None:
        self._settle(self._relisters, "the connection ended")
        if self._wish in (Order.START, Order.WAKE):
            self._due = trio.current_time()
        elif self._wish in (Order.STOP, Order.LEAVE):
            self._due = _NEVER
            self._left = self._wish is Order.LEAVE
        self._settle(self._stoppers)

    def _decide(self, reason: ExitReason) -> None:
        """What follows an end that nobody asked for."""
        if reason.kind is ExitKind.PROBE_REFUSED:
            self._era = Era.HANDSHAKE
            self._wish = Order.WAKE  # once more, as part of the same attempt
            return
        self._tracker, decision = self._tracker.on_exit(reason.at, clean=reason.clean, retriable=reason.retriable)
        ended = evolve(self._snapshot, owner=None, connected_at=None, pid=None, error=self._told(reason.loss))
        match decision:
            case Restart():
                self._due = decision.at
                self._show(evolve(ended, state=ServerState.WAITING, due_at=decision.at, attempt=decision.attempt))
            case GiveUp():
                self._show(evolve(ended, state=ServerState.FAILED))
            case Finished():
                self._show(evolve(ended, state=ServerState.STOPPED))
            case _:
                assert_never(decision)
        self._settle(self._askers)

    # -- the state cell -------------------------------------------------------------------------------------------

    def _show(self, snapshot: Snapshot) -> None:
        old = self._snapshot
        check_transition(old.state, snapshot.state)
        self._snapshot = snapshot
        self._publish(old, snapshot)

    def _connecting(self) -> Snapshot:
        return evolve(
            self._snapshot,
            state=ServerState.CONNECTING,
            attempt=self._tracker.attempt,
            due_at=None,
            connected_at=None,
            owner=None,
        )

    def _show_connecting(self) -> None:
        self._show(evolve(self._connecting(), pid=None))

    def _show_connected(self, report: Connected) -> None:
        now = trio.current_time()
        self._tracker = self._tracker.on_connected(now)
        self._show(
            evolve(
                self._snapshot,
                state=ServerState.CONNECTED,
                connected_at=now,
                error=None,
                handshake=report.handshake,
                owner=report.owner,
                definitions=report.definitions,
            )
        )
        self._settle(self._askers)

    def _show_stopped(self) -> None:
        if self._snapshot.state is not ServerState.STOPPED:
            self._show(evolve(self._connecting(), state=ServerState.STOPPED, pid=None, error=None, attempt=1))
        self._settle(self._askers)

    def _settle(self, commands: list[Command], error: str | None = None) -> None:
        for command in commands:
            command.settle(self._snapshot, error)
        commands.clear()

    def _told(self, loss: Loss) -> str:
        """The failure in one line, with what the process said last. Nothing is cut before the secrets are out."""
        last = self._redact(loss.stderr_tail).strip().splitlines()[-1:]
        return ": ".join([self._redact(loss.message), *(line.strip()[:200] for line in last)])


_RUNNING = (ServerState.CONNECTING, ServerState.CONNECTED)
