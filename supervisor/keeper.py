"""The keeper: one task a server. It runs incarnations, asks the policy what follows, and writes the state cell."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, assert_never

import trio
from attrs import evolve, frozen

from mcp_nursery.actors.errors import ConfigError, one_line
from mcp_nursery.actors.host import NO_CALLBACKS, Callbacks, Host
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
from mcp_nursery.actors.server import Connector, Permit, ServerActor
from mcp_nursery.actors.start_pool import NO_POOL, StartPool

from .aftermath import snapshot_after
from .lifecycle import CALLS_WAIT, check_beginning, check_transition
from .orders import Acceptance, Command, Order, Request
from .pinning import PinBook
from .policy import RestartPolicy, RestartTracker
from .registrar import EraNotes
from .standing import renewed_snapshot
from .status import Snapshot, discreet
from .store import StoreUnreadable
from .tools.pins import UNREVIEWED, Review
from .tools.redaction import PLAIN

if TYPE_CHECKING:
    from mcp_types import Tool as Definition

_NEVER = math.inf
_LEFT = "the server was removed"
_NOT_CONNECTED = "the server is not connected"


@frozen
class KeeperSettings:
    """What a keeper takes from the supervisor."""

    policy: RestartPolicy
    """For a server that brings none of its own."""
    connect_timeout: float
    """Seconds; `inf` for no limit."""
    close_grace: float
    """Seconds at each step of closing a transport."""
    redact: Callable[[str], str] = PLAIN.text
    """Takes secrets out of what is told of the server."""
    pool: StartPool = NO_POOL
    """Where a fresh start waits for its turn; restarts never wait."""
    callbacks: Callbacks = NO_CALLBACKS
    """What the server may ask of the host."""
    permit: Permit | None = None
    """Asked before every start."""
    notes: EraNotes | None = None
    """Where the era found is written down for later runs."""
    pins: PinBook | None = None
    """What holds its tools against what they were when they were first used."""
    idle_since: Callable[[], float] = lambda: -math.inf
    """When it was last used, on Trio's clock; `inf` while it is being used."""


class Keeper:
    """Keeps one server as its policy says.

    At rest it waits for an order or for the time the next start is due; while an incarnation lives it hears orders and
    the incarnation's reports in one mailbox. An order that ends an incarnation leaves a *wish*: what to do once
    everything the incarnation owned is closed, so that never two transports of a server are alive.

    Whether a server is idle for too long is decided here, in one step with the state cell: a call either began before,
    and then the server is in use, or it finds the server `idle` and has it started. None meets a connection that is
    being closed for idleness.
    """

    def __init__(
        self, snapshot: Snapshot, settings: KeeperSettings, publish: Callable[[Snapshot, Snapshot], None]
    ) -> None:
        self._snapshot = snapshot
        self._spec = snapshot.spec
        self._settings = settings
        self._redact = settings.redact
        self._publish = publish
        self._mailbox: Mailbox[Command | Acceptance | Report] = Mailbox(_NEVER)
        self._tracker = RestartTracker(self._spec.policy or settings.policy, self._spec.restart)
        self._era: Era | None = None
        self._recalled = False
        """Whether the notes of earlier runs were read, so that what is known is of this spec."""
        self._due = trio.current_time() if snapshot.state is ServerState.CONNECTING else _NEVER
        self._actor: ServerActor | None = None
        """The living incarnation, or one that is being closed."""
        self._wish: Order | None = None
        self._askers: list[Command] = []
        self._stoppers: list[Command] = []
        self._relisters: list[Command] = []
        """For whom the tools are being fetched again."""
        self._first_listers: list[Command] = []
        """For whom the next connection's list is fresh enough."""
        self._left = False

    def tell(self, command: Command | Acceptance) -> None:
        """Leave an order. Never waits; one that comes after the keeper has left is answered at once."""
        try:
            self._mailbox.put_nowait(command)
        except trio.BrokenResourceError:
            command.settle(self._snapshot, _LEFT)

    async def run(self) -> None:
        """Keep the server until told to leave."""
        try:
            await self._recall()  # also of what is not to be started yet: it opens the store, which looks for orphans
            while not self._left:
                await self._rest()
                if not self._left:
                    await self._incarnate()
        finally:
            for commands in (self._askers, self._stoppers, self._relisters, self._first_listers):
                self._settle(commands, _LEFT)
            for message in self._mailbox.close():
                if isinstance(message, Request):
                    message.settle(self._snapshot, _LEFT)

    # -- at rest --------------------------------------------------------------------------------------------------

    async def _rest(self) -> None:
        """Wait for the time of the next start; an order may set it, or unset it."""
        while not self._left and trio.current_time() < self._due:
            messages: list[Command | Acceptance | Report] = []
            with trio.move_on_at(self._due):
                messages = await self._mailbox.take(1)
            for message in messages:
                match message:
                    case Command():
                        self._heed(message)
                    case Acceptance():
                        await self._accept(message)
                    case _:
                        raise AssertionError(message)  # no incarnation lives that could report
        if self._snapshot.state is ServerState.FAILED:
            self._start_fresh()  # revived: its time has come

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
        await self._recall()  # nothing, unless it was renewed
        self._show(evolve(self._connecting(), incarnation=self._snapshot.incarnation + 1))
        self._actor = self._new_actor(connector)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._actor.run)
            await self._attend()
        self._actor = None
        self._fulfil_wish()

    def _new_actor(self, connector: Connector) -> ServerActor:
        return ServerActor(
            connector,
            incarnation=self._snapshot.incarnation,
            connect_timeout=self._settings.connect_timeout,
            era=self._era,
            mailbox_size=self._spec.mailbox_size,
            max_in_flight=self._spec.max_in_flight,
            permit=self._settings.permit,
            pool=self._settings.pool if self._tracker.attempt == 1 else NO_POOL,
            host=Host(self._spec.name, self._settings.callbacks),
            liveness=self._spec.liveness,
            report=self._mailbox.put_nowait,
        )

    async def _attend(self) -> None:
        while True:
            messages: list[Command | Acceptance | Report] = []
            with trio.move_on_at(self._idle_at()):
                messages = await self._mailbox.take(1)
            for message in messages:
                match message:
                    case Ended():
                        return
                    case Command():
                        self._heed(message)
                    case Acceptance():
                        await self._accept(message)
                    case _:
                        await self._hear(message)
            if not messages and self._idle_at() <= trio.current_time():
                self._stop_idle()

    def _idle_at(self) -> float:
        """When it is to be stopped for idleness if nobody uses it until then. One that is used now is looked at again
        when its limit has passed: it cannot have been idle for so long before."""
        if self._snapshot.state is not ServerState.CONNECTED:
            return _NEVER
        assert self._snapshot.connected_at is not None  # in this state
        idle_since = max(self._snapshot.connected_at, self._settings.idle_since())
        return min(idle_since, trio.current_time()) + self._spec.idle_limit

    async def _hear(self, report: Opened | Connected | Relisted | Ending) -> None:
        """A report of the living incarnation. Once an order has settled its fate, what it says changes nothing."""
        match report:
            case Ending():
                self._learn(report.reason.era)
                if self._wish is None:
                    self._decide(report.reason)
            case _ if self._wish is not None:
                return
            case Opened():
                self._show(evolve(self._snapshot, pid=report.pid))
            case Connected():
                self._learn(report.handshake.era)
                self._show_connected(report, await self._review(report.definitions))
            case Relisted():
                if (found := report.definitions) is not None:
                    self._show(evolve(self._snapshot, definitions=found, review=await self._review(found)))
                self._settle(self._relisters, None if report.error is None else one_line(self._redact(report.error)))
            case _:
                assert_never(report)

    # -- orders, at rest and while an incarnation lives -----------------------------------------------------------

    def _heed(self, command: Command) -> None:
        match command.order:
            case Order.START:
                if self._snapshot.state not in _RUNNING:
                    self._start_fresh()
                command.settle(self._snapshot)
            case Order.RECONNECT:
                self._askers.append(command)
                self._reconnect()
            case Order.WAKE:
                if self._wakes:
                    self._wake()
            case Order.RELIST:
                self._relist(command)
            case Order.RENEW:
                self._renew(command)
            case Order.STOP | Order.LEAVE:
                self._stoppers.append(command)
                self._show_stopped()
                self._end_with(command.order, command.drain)
            case _:
                assert_never(command.order)

    def _start_fresh(self) -> None:
        """Start with a whole ladder."""
        self._tracker = self._tracker.reset()
        self._begin()

    def _reconnect(self) -> None:
        if self._snapshot.state is ServerState.CONNECTING:
            self._tracker = self._tracker.reset()  # joins the attempt under way
            self._show(self._connecting())
        else:
            self._start_fresh()

    def _wake(self) -> None:
        """Start for a call or a list. What was stopped for idleness keeps its place on the ladder."""
        if self._snapshot.state is not ServerState.IDLE:
            self._tracker = self._tracker.reset()
        self._begin(woken=True)

    def _begin(self, *, woken: bool = False) -> None:
        if self._wish is Order.LEAVE:
            return
        self._show(evolve(self._connecting(), pid=None, woken=woken))
        self._leave_to_the_next()
        self._end_with(Order.START)

    def _end_with(self, wish: Order, drain: float = 0.0) -> None:
        """End the incarnation, if one lives, and when it is closed do as wished."""
        if self._wish is not Order.LEAVE:
            self._wish = wish
        if self._actor is None:
            self._fulfil_wish()
        else:
            self._actor.stop(drain)

    def _relist(self, command: Command) -> None:
        if self._snapshot.state is ServerState.CONNECTED:
            assert self._actor is not None  # in this state
            self._relisters.append(command)
            self._actor.relist()
        elif self._snapshot.state in CALLS_WAIT:
            self._first_listers.append(command)
            if self._wakes:
                self._wake()
        else:
            command.settle(self._snapshot, _NOT_CONNECTED)

    def _leave_to_the_next(self) -> None:
        """The next connection fetches the tools anyway."""
        self._first_listers += self._relisters
        self._relisters.clear()

    def _stop_idle(self) -> None:
        """Nobody uses it, so nobody waits for anything here: end it, and stay at rest."""
        self._tracker = self._tracker.on_idle(trio.current_time())
        self._show(evolve(self._connecting(), state=ServerState.IDLE, pid=None))
        self._end_with(Order.STOP)

    def _renew(self, command: Command) -> None:
        """Keep it as its configuration says now."""
        renewal, old = command.renewal, self._spec
        assert renewal is not None  # of this order
        self._spec = renewal.spec
        if renewal.spec != old:
            self._stoppers.append(command)
            self._begin_anew(renewal.settings, command.drain, known=renewal.spec.transport == old.transport)
            return
        self._show(evolve(self._snapshot, spec=renewal.spec))  # what does not count in comparing may differ
        if self._snapshot.state in _UNBLOCKED_BY_RELOAD:
            self._start_fresh()
        command.settle(self._snapshot)

    def _begin_anew(self, settings: KeeperSettings, drain: float, *, known: bool) -> None:
        """Begin as if it had just been configured; `known` if what was found out still holds."""
        pins = self._settings.pins
        if known and pins is not None:
            settings = evolve(settings, pins=pins.of(self._spec))
        self._settings = settings
        self._tracker = RestartTracker(self._spec.policy or settings.policy, self._spec.restart)
        self._recalled = self._recalled and known
        new = renewed_snapshot(self._snapshot, self._spec, self._settings.policy)
        check_beginning(new.state)
        self._write(new)
        if new.state is ServerState.CONNECTING:
            self._leave_to_the_next()
            self._end_with(Order.START, drain)
        else:
            self._dismiss_askers()
            self._end_with(Order.STOP, drain)

    def _fulfil_wish(self) -> None:
        """Nothing of an earlier connection is left."""
        if self._wish in (Order.START, Order.WAKE):
            self._due = trio.current_time()
        elif self._wish in (Order.STOP, Order.LEAVE):
            self._due = _NEVER
            self._left = self._wish is Order.LEAVE
        self._settle(self._stoppers)

    def _decide(self, reason: ExitReason) -> None:
        """What follows an end that nobody asked for."""
        if reason.kind is ExitKind.PROBE_REFUSED:
            self._learn(Era.HANDSHAKE)
            self._wish = Order.WAKE  # once more, as part of the same attempt
            return
        self._tracker, decision = self._tracker.on_exit(reason.at, clean=reason.clean, retriable=reason.retriable)
        after = snapshot_after(self._snapshot, reason, decision, redact=self._redact)
        self._due = _NEVER if after.due_at is None else after.due_at
        why = one_line(self._redact(reason.loss.message))
        self._settle(self._first_listers, why)
        if after.state is ServerState.WAITING:
            self._leave_to_the_next()
        self._show(after)
        self._settle(self._relisters, why)
        self._settle(self._askers)

    @property
    def _wakes(self) -> bool:
        """Whether a call or a list starts it."""
        return self._snapshot.state is ServerState.IDLE or self._snapshot.revives_on_call

    async def _recall(self) -> None:
        """Read what earlier runs found of this spec, once a spec."""
        if not self._recalled:
            notes = self._settings.notes
            self._era = None if notes is None else await notes.recall()
            self._recalled = True

    def _learn(self, era: Era | None) -> None:
        """An incarnation has found this, unless it was one of an earlier spec, whose last words this may be."""
        if self._recalled and era is not None and era is not self._era:
            self._era = era
            if self._settings.notes is not None:
                self._settings.notes.remember(era)

    # -- pins -----------------------------------------------------------------------------------------------------

    async def _review(self, definitions: "Sequence[Definition]") -> Review:
        """Before anybody sees tools, they are held against what they were when they were first used."""
        pins = self._settings.pins
        return UNREVIEWED if pins is None else await pins.review(definitions)

    async def _accept(self, request: Acceptance) -> None:
        pins = self._settings.pins
        assert pins is not None  # or nothing would have been found to differ
        try:
            await pins.accept(request.change)
        except StoreUnreadable as error:
            request.settle(self._snapshot, str(error))
            return
        review = await pins.review(self._snapshot.definitions)
        if review != self._snapshot.review:
            self._show(evolve(self._snapshot, review=review))
        request.settle(self._snapshot)

    # -- the state cell -------------------------------------------------------------------------------------------

    def _show(self, snapshot: Snapshot) -> None:
        check_transition(self._snapshot.state, snapshot.state)
        self._write(snapshot)

    def _write(self, snapshot: Snapshot) -> None:
        old, self._snapshot = self._snapshot, snapshot
        self._publish(old, snapshot)

    def _connecting(self) -> Snapshot:
        return evolve(
            self._snapshot,
            state=ServerState.CONNECTING,
            attempt=self._tracker.attempt,
            due_at=None,
            revives_on_call=False,
            connected_at=None,
            owner=None,
        )

    def _show_connected(self, report: Connected, review: Review) -> None:
        now = trio.current_time()
        self._tracker = self._tracker.on_connected(now)
        self._show(
            evolve(
                self._snapshot,
                state=ServerState.CONNECTED,
                connected_at=now,
                error=None,
                handshake=discreet(report.handshake, self._settings.redact),
                owner=report.owner,
                definitions=report.definitions,
                review=review,
            )
        )
        self._settle(self._first_listers)
        self._settle(self._askers)

    def _show_stopped(self) -> None:
        if self._snapshot.state is not ServerState.STOPPED:
            self._show(evolve(self._connecting(), state=ServerState.STOPPED, pid=None, error=None, attempt=1))
        self._dismiss_askers()

    def _dismiss_askers(self) -> None:
        """No attempt will bring what these waited for."""
        self._settle(self._relisters, _NOT_CONNECTED)
        self._settle(self._first_listers, _NOT_CONNECTED)
        self._settle(self._askers)

    def _settle(self, commands: list[Command], error: str | None = None) -> None:
        for command in commands:
            command.settle(self._snapshot, error)
        commands.clear()


_RUNNING = (ServerState.CONNECTING, ServerState.CONNECTED)
_UNBLOCKED_BY_RELOAD = (ServerState.FAILED, ServerState.NEEDS_AUTH)
"""States that a reload ends although nothing changed here: what was in the way may have gone."""
