"""The keeper: one task a server. It runs incarnations, one after the other, and hears their reports and its orders.

From top to bottom: the life of a server, what its incarnations report, and the orders that change its course.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, assert_never

import trio
from attrs import evolve

from mcp_nursery.actors.callbacks import Host
from mcp_nursery.actors.errors import ConfigError, one_line
from mcp_nursery.actors.mailbox import Mailbox
from mcp_nursery.actors.messages import Connected, Ended, Ending, ExitReason, Opened, Relisted, Report
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.server import Connector, ServerActor
from mcp_nursery.actors.start_limiter import NO_POOL
from mcp_nursery.actors.states import Era, ExitKind, ServerState

from ..error_line import kept_tail
from ..lifecycle import CALLS_WAIT
from ..security.marks import clean_name
from ..spec import ServerSpec
from ..status import Snapshot, introduced
from ..storage.store import StoreUnreadable
from .commands import Acceptance, Command, Order, Request, Waiters
from .settings import KeeperSettings
from .state import Course, renewed_snapshot

logger: Final = logging.getLogger(__name__)

_LEFT = "the server was removed"

_RUNNING = (ServerState.CONNECTING, ServerState.CONNECTED)
_UNBLOCKED_BY_RELOAD = (ServerState.FAILED, ServerState.NEEDS_AUTH)
"""States that a reload ends although nothing changed here: what was in the way may have gone."""


class Keeper:
    """Keeps one server as its policy says.

    At rest it waits for an order or for the time the next start is due; while an incarnation lives it hears orders and
    the incarnation's reports in one mailbox. An order that ends an incarnation sets at once what is due after it. That
    begins when everything the incarnation owned is closed, so that never two transports of a server are alive.

    Whether a server is idle for too long is decided here, in one step with the state cell: a call either began before,
    and then the server is in use, or it finds the server `idle` and has it started. None meets a connection that is
    being closed for idleness.

    Args:
        snapshot: Where the server stands before anything was done.
        settings: On what terms it is kept.
        publish: Told of each change, old and new, in one step with it.
        prepare: Told before of one that may take long to publish, old and new: it makes that short.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        settings: KeeperSettings,
        publish: Callable[[Snapshot, Snapshot], None],
        prepare: Callable[[Snapshot, Snapshot], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._prepare = prepare
        self._course = Course(snapshot, settings.policy, publish)
        self._waiters = Waiters()
        self._mailbox: Mailbox[Command | Acceptance | Report] = Mailbox(math.inf)
        self._leaving = False
        """Told to leave: after this incarnation comes no other."""
        self._actor: ServerActor | None = None
        """The living incarnation, or one that is being closed."""
        self._overruled = False
        """An order has ended that incarnation: what it still says changes nothing."""

    @property
    def _now(self) -> Snapshot:
        """Where the server stands."""
        return self._course.snapshot

    def tell(self, request: Command | Acceptance) -> None:
        """Leave an order. Never waits; one that comes after the keeper has left is answered at once."""
        try:
            self._mailbox.put_nowait(request)
        except trio.BrokenResourceError:
            request.settle(self._now, _LEFT)

    # -- the life of a server -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the server until told to leave."""
        try:
            await self._settings.notes.recall()  # at any rate: it opens the store, which looks for orphans
            while not self._leaving:
                await self._rest()
                if not self._leaving:
                    await self._incarnate()
        finally:
            self._waiters.left(self._now)
            for message in self._mailbox.close():
                if isinstance(message, Request):
                    message.settle(self._now, _LEFT)

    async def _rest(self) -> None:
        """Wait for the time of the next start; an order may set it, or unset it."""
        while not self._leaving and trio.current_time() < self._course.due:
            message = await self._next(until=self._course.due)
            if message is not None:
                assert isinstance(message, Request)  # no incarnation lives that could report
                await self._heed(message)
        if self._now.state is ServerState.FAILED:
            await self._prepare(self._now, evolve(self._now, state=ServerState.CONNECTING))
            self._course.begin_afresh()  # revived: its time has come

    async def _incarnate(self) -> None:
        """Run one incarnation to its end, closed. What is due after it is found out on the way."""
        self._overruled = False
        try:
            connector = self._now.spec.transport.connector(close_grace=self._settings.close_grace)
        except ConfigError as error:
            self._decide(ExitReason(ExitKind.UNUSABLE, Loss(str(error)), at=trio.current_time()))
            return
        await self._settings.notes.recall()  # nothing, unless it was renewed
        self._course.incarnate()
        self._actor = self._new_actor(connector)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._actor.run)
            await self._attend()
        self._actor = None
        self._waiters.closed(self._now)

    async def _attend(self) -> None:
        """Hear orders and reports while the incarnation lives, and do what is due meanwhile: end it when nobody uses it
        any more, look at its tools again."""
        while True:
            message = await self._next(until=min(self._idle_at(), self._review_at()))
            match message:
                case None:
                    await self._review_again()
                    await self._stop_if_idle()
                case Command() | Acceptance():
                    await self._heed(message)
                case Ended():
                    return
                case _:
                    await self._hear(message)

    async def _next(self, *, until: float) -> Command | Acceptance | Report | None:
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
            connect_timeout=self._settings.connect_timeout,
            era=self._settings.notes.era,
            mailbox_size=self._now.spec.mailbox_size,
            max_in_flight=self._now.spec.max_in_flight,
            permit=self._settings.permit,
            pool=self._settings.pool if self._now.attempt == 1 else NO_POOL,
            host=Host(self._now.spec.name, self._settings.callbacks, self._now.spec.limits),
            liveness=self._now.spec.liveness,
            report=self._mailbox.put_nowait,
        )

    # -- what an incarnation reports ------------------------------------------------------------------------------

    async def _hear(self, report: Opened | Connected | Relisted | Ending) -> None:
        match report:
            case Ending():
                self._settings.notes.learn(report.reason.era)
                if not self._overruled:
                    # Whatever follows, its tools will not be available.
                    await self._prepare(self._now, evolve(self._now, state=ServerState.CONNECTING))
                    self._decide(report.reason)
            case _ if self._overruled:
                return
            case Opened():
                self._course.opened(report.pid)
            case Connected():
                await self._hear_connected(report)
            case Relisted():
                await self._hear_relisted(report)
            case _:
                assert_never(report)

    async def _hear_connected(self, report: Connected) -> None:
        self._settings.notes.learn(report.handshake.era)
        review = await self._settings.pins.review(report.definitions)  # before anybody sees a tool
        new = evolve(self._now, state=ServerState.CONNECTED, definitions=report.definitions, review=review)
        await self._prepare(self._now, new)
        tail = kept_tail(report.stderr_tail, self._settings.redact)
        self._course.connected(report, introduced(report.handshake, self._settings.redact), review, tail)
        self._waiters.connected(self._now)

    async def _hear_relisted(self, report: Relisted) -> None:
        if report.definitions is not None:
            review = await self._settings.pins.review(report.definitions)
            await self._prepare(self._now, evolve(self._now, definitions=report.definitions, review=review))
            self._course.relisted(report.definitions, review)
        elif report.error is not None:
            why = one_line(self._settings.redact(report.error))
            logger.info("%s: keeps its old tools: %s", clean_name(self._now.spec.name), why)
        self._waiters.relisted(self._now)

    async def _review_tools(self) -> None:
        review = await self._settings.pins.review(self._now.definitions)
        await self._prepare(self._now, evolve(self._now, review=review))
        self._course.reviewed(review)

    def _review_at(self) -> float:
        """When its tools are to be held against their pins again because nobody could tell the last time."""
        return self._settings.pins.again_at if self._now.state is ServerState.CONNECTED else math.inf

    async def _review_again(self) -> None:
        if self._review_at() <= trio.current_time():
            await self._review_tools()

    def _decide(self, reason: ExitReason) -> None:
        """What follows an end that nobody asked for."""
        if reason.kind is ExitKind.PROBE_REFUSED:
            self._settings.notes.learn(Era.HANDSHAKE)
            self._course.go_on()
        else:
            self._course.ended(reason, self._settings.redact)
            for line in (self._now.stderr_tail or "").splitlines():
                logger.debug("%s: wrote to stderr: %s", clean_name(self._now.spec.name), line)
            self._waiters.ended(self._now)

    # -- idleness -------------------------------------------------------------------------------------------------

    def _idle_at(self) -> float:
        """When it is to be stopped for idleness if nobody uses it until then. One that is used now is looked at again
        when its limit has passed: it cannot have been idle for so long before."""
        if self._now.state is not ServerState.CONNECTED:
            return math.inf
        assert self._now.connected_at is not None  # in this state
        idle_since = max(self._now.connected_at, self._settings.idle_since())
        return min(idle_since, trio.current_time()) + self._now.spec.idle_limit

    async def _stop_if_idle(self) -> None:
        """Nobody who uses it is cut off, and nobody waits for anything here: it stays at rest until it is wanted."""
        if self._idle_at() <= trio.current_time():
            await self._prepare(self._now, evolve(self._now, state=ServerState.IDLE))
        if self._idle_at() <= trio.current_time():
            self._course.idle()
            self._end()

    # -- orders, at rest and while an incarnation lives -----------------------------------------------------------

    async def _heed(self, request: Command | Acceptance) -> None:
        match request:
            case Acceptance():
                await self._accept(request)
            case Command():
                new = self._after(request)
                if new is not None:
                    await self._prepare(self._now, new)
                self._obey(request)
            case _:
                assert_never(request)

    def _after(self, command: Command) -> Snapshot | None:
        """Where an order leads, as far as its tools are concerned; None if they are as they were."""
        match command.order:
            case Order.RECONNECT:
                return evolve(self._now, state=ServerState.CONNECTING)
            case Order.START | Order.WAKE:
                return None if self._now.state in _RUNNING else evolve(self._now, state=ServerState.CONNECTING)
            case Order.STOP | Order.LEAVE:
                return evolve(self._now, state=ServerState.STOPPED)
            case Order.RENEW if command.renewal is not None and command.renewal.spec != self._now.spec:
                return renewed_snapshot(self._now, command.renewal.spec, command.renewal.settings.policy)
            case _:
                return None

    def _obey(self, command: Command) -> None:
        match command.order:
            case Order.START:
                if self._now.state not in _RUNNING:
                    self._start()
                command.settle(self._now)
            case Order.RECONNECT:
                self._waiters.for_outcome.append(command)
                self._reconnect()
            case Order.WAKE:
                self._wake()
            case Order.RELIST:
                self._relist(command)
            case Order.RENEW:
                self._renew(command)
            case Order.STOP | Order.LEAVE:
                self._waiters.for_closing.append(command)
                self._leaving = self._leaving or command.order is Order.LEAVE
                self._stop(command.drain)
            case _:
                assert_never(command.order)

    def _reconnect(self) -> None:
        if self._now.state is ServerState.CONNECTING:
            self._course.join()
        else:
            self._start()

    def _start(self) -> None:
        """A fresh start."""
        if not self._leaving:
            self._course.begin_afresh()
            self._begin()

    def _wake(self) -> None:
        """Start for a call or a list, if those start it. After idleness it keeps its place on the ladder."""
        if self._now.revives_on_call:
            self._course.begin_afresh(woken=True)
        elif self._now.state is ServerState.IDLE:
            self._course.begin(woken=True)
        else:
            return
        self._begin()

    def _begin(self, drain: float = 0.0) -> None:
        """The next incarnation takes the place of the one that lives."""
        self._waiters.begins_anew()
        self._end(drain)

    def _stop(self, drain: float) -> None:
        self._course.stop()
        self._waiters.stopped(self._now)
        self._end(drain)

    def _end(self, drain: float = 0.0) -> None:
        """End the incarnation, if one lives. What is due after it was said before."""
        if self._actor is None:
            self._waiters.closed(self._now)
        else:
            self._overruled = True
            self._actor.stop(drain)

    def _relist(self, command: Command) -> None:
        if self._now.state is ServerState.CONNECTED:
            assert self._actor is not None  # in this state
            self._waiters.for_tools.append(command)
            self._actor.relist()
        elif self._now.state in CALLS_WAIT:
            self._waiters.for_next_tools.append(command)
            self._wake()
        else:
            command.settle(self._now)

    def _renew(self, command: Command) -> None:
        """Keep it as its configuration says now."""
        assert command.renewal is not None  # of this order
        spec, settings = command.renewal.spec, command.renewal.settings
        if spec != self._now.spec:
            self._waiters.for_closing.append(command)
            self._begin_anew(spec, settings, command.drain)
            return
        self._course.renew(spec)
        if self._now.state in _UNBLOCKED_BY_RELOAD:
            self._start()
        command.settle(self._now)

    def _begin_anew(self, spec: ServerSpec, settings: KeeperSettings, drain: float) -> None:
        """Begin as if it had just been configured."""
        if spec.transport == self._now.spec.transport:  # what was found out about it still holds
            settings = evolve(settings, notes=self._settings.notes, pins=self._settings.pins.of(spec))
        self._settings = settings
        self._course.begin_anew(spec, settings.policy)
        if self._now.state is ServerState.CONNECTING:
            self._begin(drain)
        else:
            self._waiters.stopped(self._now)
            self._end(drain)

    async def _accept(self, request: Acceptance) -> None:
        """Pin a tool as a person has seen it, and look at all of them again."""
        pins = self._settings.pins
        try:
            await pins.accept(request.change)
        except StoreUnreadable as error:
            request.settle(self._now, str(error))
            return
        await self._review_tools()
        request.settle(self._now)
