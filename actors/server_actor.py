"""The server actor: one incarnation of one server, from opening its transport to its exit reason."""

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from .callbacks import NO_HOST, Host
from .enums import Era, ExitKind, ListKind
from .errors import StartFailed, leaves, one_line
from .list_refresh import OTHER_LISTS, ListRefresh
from .liveness import Liveness, keep_watch
from .mailbox import Mailbox
from .messages import (
    Connected,
    Ended,
    Ending,
    ExitReason,
    FollowUp,
    Handshake,
    Opened,
    Owner,
    Question,
    Report,
    Request,
)
from .outcomes import Loss
from .reply import ReplySlot
from .session.base import HandshakeFailed
from .start_limiter import UNLIMITED, StartLimiter, StartPermit, Turn

if TYPE_CHECKING:
    from .session.connection import Connection

logger: Final = logging.getLogger(__name__)

_OTHER_LISTS_TIMEOUT = 5.0
"""Seconds that all lists but that of tools may take before their server is connected without them."""
_CONTROL_AT_ONCE = 256
"""Abandoned calls and requests for input that are processed in one turn of the loop."""

_STOPPED = Loss("stopped")
_CLOSED = Loss("the connection was closed")
_NO_TRACE: Final = nullcontext()

Permit = Callable[[], Awaitable[str | None]]
"""Permits a server to start: returns None, or the reason against it, in one line."""


class Connector(Protocol):
    """The way of an incarnation to its server."""

    def connect(self, host: Host) -> "AbstractAsyncContextManager[Connection]":
        """Open one connection; leaving the block closes all of it, within a bound, whatever the server does.

        The server may use what `host` offers.

        Raises:
            StartFailed: On entering, when none can be opened.
        """
        ...


class ServerActor:
    """The actor of one incarnation: owns transport, mailbox and calls in flight. Runs once: the next is another actor.

    Args:
        connector: How to reach the server.
        incarnation: Its number, from 1.
        connect_timeout: Seconds from the start to `connected`; `inf` for no limit.
        era: The era that an earlier incarnation found, if any.
        mailbox_size: Calls that may wait.
        max_in_flight: Calls that may be with the server at once.
        permit: Awaited first, in time that does not count towards `connect_timeout`. None: none is needed.
        limiter: Where the start waits for a place, in time that does not count either; the place is free again when the
            server has answered or ended.
        turn: The start's turn in the limiter's line.
        host: What the server may ask of the host.
        liveness: How a silent connection is found to be dead; None: it is not probed.
        report: Called with each step, synchronously.
        updated: Called when resources change: see `Connection.keep_subscribed`.
        trace: Entered from the handshake to `connected`: sets the trace that the server gets.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        incarnation: int,
        connect_timeout: float,
        era: Era | None,
        mailbox_size: int,
        max_in_flight: int,
        permit: Permit | None = None,
        limiter: StartLimiter = UNLIMITED,
        turn: Turn | None = None,
        host: Host = NO_HOST,
        liveness: Liveness | None = None,
        report: Callable[[Report], None],
        updated: Callable[[str, bool], None] | None = None,
        trace: AbstractContextManager[Any] = _NO_TRACE,
    ) -> None:
        self.incarnation = incarnation
        self._connector = connector
        self._connect_timeout = connect_timeout
        self._era = era
        self._era_answered = False
        self._max_in_flight = max_in_flight
        self._permit = permit
        self._limiter = limiter
        self._turn = turn or Turn()
        self._host = host
        self._liveness = liveness
        self._report = report
        self._trace = trace
        self._mailbox: Mailbox[Request] = Mailbox(mailbox_size)
        self._refresh = ListRefresh(incarnation, connect_timeout, report)
        self._owner = Owner(incarnation, self._mailbox, Mailbox(math.inf))
        self._questions: dict[ReplySlot, trio.CancelScope] = {}
        """The host's callbacks that are running, by the slots that wait for their answers."""
        self._life = trio.CancelScope()
        """The whole life; until `connected` its deadline is the connect timeout."""
        self._working = trio.CancelScope()
        """The scope of the task that starts calls."""
        self._stopping = False
        self._serving = False
        """True once the server is connected: a stop then drains before it ends the life."""
        self._wind_down: Callable[[], None] | None = None
        """Starts the task that stops serving after the drain; None while nothing is served."""
        self._draining = trio.CancelScope()
        """The scope of the drain, with the earliest deadline that a stop has set."""
        self._announce_roots: Callable[[], None] | None = None
        """Starts the task that notifies the server of changed roots; None while nothing is served."""
        self._roots_changed = False
        """True if the roots changed and the server has not been notified."""
        self._updated = updated
        self._subscribe: Callable[[frozenset[str]], None] | None = None
        """Subscribes to resources; None while nothing is served."""
        self._reason: ExitReason | None = None
        self._why = _STOPPED
        """The outcome of calls that are no longer started."""

    def stop(self, drain: float = 0.0) -> None:
        """End the incarnation: unsent calls fail at once, sent ones get `drain` seconds. Returns at once. A later stop
        may shorten the drain, and never prolongs it."""
        first, self._stopping = not self._stopping, True
        self._draining.deadline = min(self._draining.deadline, trio.current_time() + drain)
        if not self._serving:
            self._life.cancel()
        elif first and self._wind_down is not None:
            self._wind_down()

    def put_first(self, awaited: float) -> None:
        """Start before those that nobody waits for: see `StartLimiter.put_first`."""
        self._limiter.put_first(self._turn, awaited)

    def refresh(self, request: object) -> None:
        """Fetch all lists again and report them. Requests that come before a refresh begins are answered together."""
        if self._wind_down is not None or not self._serving:
            self._refresh.ask(request)

    def refresh_old(self, request: object, kinds: Collection[ListKind], since: float) -> bool:
        """Fetch again those of these lists that may be old, and report them: see `ListRefresh.ask_old`."""
        return self._wind_down is not None and self._refresh.ask_old(request, kinds, since)

    def refresh_expired(self) -> None:
        """Fetch again the lists that are too old, and report them."""
        if self._wind_down is not None:
            self._refresh.want_expired()

    def subscribe(self, uris: frozenset[str]) -> None:
        """Subscribe to these resources, and to no others, while the server is connected."""
        if self._subscribe is not None:
            self._subscribe(uris)

    def announce_roots(self) -> None:
        """Notify the server that the host's roots changed, as soon as it is connected."""
        if self._announce_roots is None:
            self._roots_changed = True
        else:
            self._announce_roots()

    async def run(self) -> None:
        """Run until the end. The exit reason is reported when the end is noticed, `Ended` when everything that the
        actor owned is closed.

        A crash counts as an end: a server may have caused it, and other servers must not be affected.
        """
        try:
            try:
                with self._life:
                    await self._live()
            except Exception as crash:
                loss = log_crash(crash, self._host.server)
                if self._reason is None:
                    self._end(ExitKind.LOST, loss)
            if self._reason is None:
                self._end_cancelled()
        finally:
            if self._reason is None:  # cancelled: nobody waits for a reason
                self._refuse_all()
            self._host.account.close()
        self._report(Ended(self.incarnation))

    async def _live(self) -> None:
        """Wait for permission and for a place, then hold a connection open until it ends.

        The connect timeout counts from when there is a place.
        """
        refusal = None if self._permit is None else await self._permit()
        if refusal is not None:
            self._end(ExitKind.REFUSED, Loss(refusal))
            return
        with await self._limiter.enter(self._turn) as place:
            self._life.deadline = trio.current_time() + self._connect_timeout
            try:
                async with self._connector.connect(self._host) as connection, trio.open_nursery() as callbacks:
                    await self._use(connection, callbacks, place)
                    callbacks.cancel_scope.cancel()
            except StartFailed as failure:
                kind = ExitKind.CONNECT_FAILED if failure.retriable else ExitKind.UNUSABLE
                self._end(kind, Loss(str(failure), needs_auth=failure.needs_auth))

    async def _use(self, connection: "Connection", callbacks: trio.Nursery, place: StartPermit) -> None:
        """Do the handshake, then serve calls. The exit reason is reported before the connection is closed."""
        self._report(Opened(self.incarnation, connection.pid))
        try:
            with self._trace:
                await self._introduce(connection, place)
            await self._serve(connection, callbacks)
        except HandshakeFailed as failure:
            self._era = self._era or failure.era
            if not self._life.cancel_called:  # else it failed because it is being ended
                kind = ExitKind.PROBE_REFUSED if failure.probe_refused else ExitKind.CONNECT_FAILED
                self._end(kind, failure.loss)
        finally:
            if self._reason is None and self._life.cancel_called:
                self._end_cancelled(connection.stderr_tail)  # the close that follows may take its time

    def _end(self, kind: ExitKind, loss: Loss, at: float | None = None) -> None:
        """Report the exit reason; `at` is when the end was noticed, on Trio's clock; None: now."""
        if loss.needs_auth or loss.unusable:
            kind = ExitKind.NEEDS_AUTH if loss.needs_auth else ExitKind.UNUSABLE
        at = trio.current_time() if at is None else at
        self._reason = ExitReason(kind, loss, at=at, era=self._era, era_answered=self._era_answered)
        self._why = loss
        self._refuse_all()
        self._report(Ending(self.incarnation, self._reason))

    def _end_cancelled(self, said: str = "") -> None:
        """Report the end of a cancelled life: it was stopped, or the connect timeout elapsed."""
        if self._stopping:
            self._end(ExitKind.STOPPED, _STOPPED)
        else:
            loss = Loss(f"not connected within {self._connect_timeout:g} s", stderr_tail=said)
            self._end(ExitKind.CONNECT_FAILED, loss, at=self._life.deadline)

    async def _introduce(self, connection: "Connection", place: StartPermit) -> None:
        """Do the handshake and fetch the lists, up to `connected`. The keeper gets the results; none is kept here.

        Raises:
            HandshakeFailed: It did not become connected.
        """
        handshake = await connection.handshake(self._era)
        self._era, self._era_answered = handshake.era, handshake.era_answered
        place.leave()
        if _has_tools(handshake):
            await connection.list_tools()
        await self._list_others(connection)
        await trio.lowlevel.checkpoint_if_cancelled()  # if the time ran out in this step, it is not connected
        self._life.deadline = math.inf
        self._serving = True
        self._report(Connected(self._owner, handshake, connection.definitions, connection.stderr_tail))

    async def _list_others(self, connection: "Connection") -> None:
        """Fetch the lists that a server can be connected without. Slow ones are fetched again while it serves.

        Raises:
            HandshakeFailed: The connection was lost.
        """
        now = trio.current_time()
        with trio.move_on_at(
            now + min(_OTHER_LISTS_TIMEOUT, (self._life.deadline - now) / 2)
        ) as scope:  # perhaps in the past
            await connection.list_others(OTHER_LISTS)
        if scope.cancelled_caught:
            self._refresh.want(OTHER_LISTS)

    async def _serve(self, connection: "Connection", callbacks: trio.Nursery) -> None:
        """Serve the connection, each job in a task of its own, until it is lost or ended."""
        async with trio.open_nursery() as nursery:
            self._refresh.open(connection, nursery)
            nursery.start_soon(self._work, connection)
            nursery.start_soon(self._follow_control, connection, callbacks)
            nursery.start_soon(connection.watch_lists, self._refresh.changed, self._refresh.look)
            if self._liveness is not None:
                nursery.start_soon(keep_watch, connection, self._liveness)
            serving = nursery.cancel_scope
            self._wind_down = lambda: nursery.start_soon(self._end_serving, connection, serving)
            self._announce_roots = lambda: nursery.start_soon(connection.announce_roots)
            if self._roots_changed:
                self._announce_roots()
            self._subscribe = partial(self._begin_subscribing, connection, nursery)
            try:
                loss = await connection.lost()
            finally:
                # Also when a task has crashed: nothing can start here any more.
                self._wind_down = self._announce_roots = self._subscribe = None
            nursery.cancel_scope.cancel()  # before what its tasks read from is closed
            self._end(ExitKind.LOST, loss)
            return
        self._end(ExitKind.STOPPED, _STOPPED)

    def _begin_subscribing(self, connection: "Connection", nursery: trio.Nursery, uris: frozenset[str]) -> None:
        """Start the task for subscriptions: most servers need none."""
        if self._updated is not None and uris:
            nursery.start_soon(connection.keep_subscribed, self._updated)
            self._subscribe = connection.want
            connection.want(uris)

    async def _work(self, connection: "Connection") -> None:
        """Start calls as soon as there is room for them."""
        room, handler = partial(self._room, connection), partial(self._start_at_rest, connection)
        with self._working:
            while True:
                await connection.room(self._max_in_flight)
                # No variable here keeps a call, which may be large, until the next.
                self._start(connection, await self._mailbox.take(room=room, handler=handler))

    def _room(self, connection: "Connection") -> int:
        return self._max_in_flight - connection.in_flight

    def _start_at_rest(self, connection: "Connection", calls: Sequence[Request]) -> bool:
        """Start calls handed over; False without room. One place is left for a call that wakes `_work`."""
        if self._stopping or connection.in_flight + len(calls) >= self._max_in_flight:
            return False
        self._start(connection, calls)
        return True

    def _start(self, connection: "Connection", calls: Sequence[Request]) -> None:
        if self._stopping:  # handed over in the moment of the stop
            self._refuse(calls)
            return
        self._refresh.note_calls(calls)
        try:
            connection.submit([call for call in calls if not call.slot.decided])
        except Exception:
            self._refuse(calls)  # those that the connection has not taken
            raise

    async def _follow_control(self, connection: "Connection", callbacks: trio.Nursery) -> None:
        """Cancel the calls of cancelled slots, and continue those that the server answered with requests for input."""
        while True:
            batch = await self._owner.control.take(_CONTROL_AT_ONCE)
            self._cancel([message for message in batch if isinstance(message, ReplySlot)], connection)
            self._go_on([message for message in batch if not isinstance(message, ReplySlot)], connection, callbacks)
            del batch  # a request for input may be large

    def _go_on(self, messages: Sequence[FollowUp], connection: "Connection", callbacks: trio.Nursery) -> None:
        """Continue calls that the server answered with requests for input."""
        if self._stopping or self._reason is not None:
            self._refuse(messages)
            return
        for message in messages:
            if message.slot.decided:
                continue
            if isinstance(message, Question):
                self._questions[message.slot] = trio.CancelScope()
                callbacks.start_soon(self._ask_host, message, connection)
            else:
                self._refresh.note_calls([message.call])
                connection.send_round(message)

    def _cancel(self, slots: Sequence[ReplySlot], connection: "Connection") -> None:
        """Cancel the calls of callers that gave up, and the callbacks that they wait for."""
        for slot in slots:
            if slot in self._questions:
                self._questions[slot].cancel()
        connection.cancel(*(slot for slot in slots if slot not in self._questions))

    async def _ask_host(self, question: Question, connection: "Connection") -> None:
        """Have the host answer one request for input, while somebody waits for the call."""
        slot = question.slot
        try:
            with self._questions[slot]:
                slot.resolve(await connection.answer(question))
        finally:
            del self._questions[slot]
            slot.resolve(_CLOSED)

    async def _end_serving(self, connection: "Connection", serving: trio.CancelScope) -> None:
        self._working.cancel()
        self._refuse(self._mailbox.close())
        self._cancel_questions()
        connection.withdraw_unsent()
        with self._draining:
            await connection.idle()
        serving.cancel()

    def _cancel_questions(self) -> None:
        """Cancel the host's callbacks."""
        for slot, scope in self._questions.items():
            slot.resolve(self._why)
            scope.cancel()

    def _refuse_all(self) -> None:
        """Refuse all that waits in the mailboxes."""
        calls, control = self._mailbox.close(), self._owner.control.close()
        self._refuse([*calls, *(message for message in control if not isinstance(message, ReplySlot))])
        self._cancel_questions()

    def _refuse(self, messages: Sequence[Request | FollowUp]) -> None:
        for message in messages:
            message.slot.resolve(self._why)


def log_crash(crash: Exception, server: str) -> Loss:
    """The loss of an incarnation that crashed, which is logged."""
    logger.error("%s: an incarnation crashed; please report it", server, exc_info=crash)
    return Loss(f"crashed: {one_line(repr(next(leaves(crash))))}")


def _has_tools(handshake: Handshake) -> bool:
    return "tools" in (handshake.capabilities or {})
