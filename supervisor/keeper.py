"""The keeper: one task a server. It runs incarnations, asks the policy what follows, and writes the state cell."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, assert_never

import trio
from attrs import evolve, frozen

from mcp_nursery.actors.errors import ConfigError
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
from mcp_nursery.actors.server import Permit, ServerActor
from mcp_nursery.actors.start_pool import NO_POOL, StartPool

from .aftermath import snapshot_after
from .lifecycle import check_transition
from .orders import Acceptance, Command, Order, Request
from .pinning import PinBook
from .policy import RestartPolicy, RestartTracker
from .registrar import EraNotes
from .spec import ServerSpec
from .status import Snapshot
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
        self._redact = settings.redact
        self._publish = publish
        self._mailbox: Mailbox[Command | Acceptance | Report] = Mailbox(_NEVER)
        self._tracker = RestartTracker(self._spec.policy or settings.policy, self._spec.restart)
        self._era: Era | None = None
        self._due = trio.current_time() if snapshot.state is ServerState.CONNECTING else _NEVER
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
            if self._settings.notes is not None:
                self._era = await self._settings.notes.recall()
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
                        self._heed_at_rest(message)
                    case Acceptance():
                        await self._accept(message)
                    case _:
                        raise AssertionError(message)  # no incarnation lives that could report
        if self._snapshot.state is ServerState.FAILED:
            self._start_fresh()  # revived: its time has come

    def _heed_at_rest(self, command: Command) -> None:
        match command.order:
            case Order.START:
                self._start_fresh()
                command.settle(self._snapshot)
            case Order.RECONNECT:
                self._start_fresh()
                self._askers.append(command)
            case Order.WAKE:
                if self._wakes:
                    self._start_fresh()
            case Order.RELIST:
                command.settle(self._snapshot, _NOT_CONNECTED)
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
            permit=self._settings.permit,
            pool=self._settings.pool if self._tracker.attempt == 1 else NO_POOL,
            host=Host(self._spec.name, self._settings.callbacks),
            liveness=self._spec.liveness,
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
                    case Acceptance():
                        await self._accept(message)
                    case _:
                        await self._hear(message)

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
                if self._wakes:
                    self._replace(actor)
            case Order.RELIST:
                self._relist(command, actor)
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
        self._leave_to_the_next()
        actor.stop()

    def _leave_to_the_next(self) -> None:
        """The next connection fetches the tools anyway."""
        self._first_listers += self._relisters
        self._relisters.clear()

    def _relist(self, command: Command, actor: ServerActor) -> None:
        if self._snapshot.state is ServerState.CONNECTED:
            self._relisters.append(command)
            actor.relist()
        elif self._snapshot.state is ServerState.CONNECTING:
            self._first_listers.append(command)
        else:
            command.settle(self._snapshot, _NOT_CONNECTED)

    def _fulfil_wish(self) -> None:
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
        why = self._redact(reason.loss.message)
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

    def _learn(self, era: Era | None) -> None:
        if era is not None and era is not self._era:
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
            revives_on_call=False,
            connected_at=None,
            owner=None,
        )

    def _show_connecting(self) -> None:
        self._show(evolve(self._connecting(), pid=None))

    def _show_connected(self, report: Connected, review: Review) -> None:
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
                review=review,
            )
        )
        self._settle(self._first_listers)
        self._settle(self._askers)

    def _show_stopped(self) -> None:
        if self._snapshot.state is not ServerState.STOPPED:
            self._show(evolve(self._connecting(), state=ServerState.STOPPED, pid=None, error=None, attempt=1))
        self._settle(self._relisters, _NOT_CONNECTED)
        self._settle(self._first_listers, _NOT_CONNECTED)
        self._settle(self._askers)

    def _settle(self, commands: list[Command], error: str | None = None) -> None:
        for command in commands:
            command.settle(self._snapshot, error)
        commands.clear()


_RUNNING = (ServerState.CONNECTING, ServerState.CONNECTED)
