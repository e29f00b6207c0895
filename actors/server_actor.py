"""The server actor: one incarnation of one server, from opening its transport to its exit reason."""

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from .callbacks import NO_HOST, Host
from .enums import ExitKind, ListKind, Remembered
from .errors import StartFailed, leaves, unforeseen
from .limits import CONNECT_SETTINGS
from .list_refresh import OTHER_LISTS, ListRefresh
from .liveness import Liveness
from .messages import Connected, Ended, Ending, ExitReason, Handshake, Opened, Report
from .outcomes import Loss
from .service import STOPPED, Service
from .session.base import HandshakeFailed
from .start_limiter import UNLIMITED, StartLimiter, StartPermit, Turn

if TYPE_CHECKING:
    from .session.connection import Connection

logger: Final = logging.getLogger(__name__)

_OTHER_LISTS_TIMEOUT = 5.0
"""Seconds that all lists but that of tools may take before their server is connected without them."""
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

    The permit is awaited first, and then a place of the limiter, in line at `turn`: neither counts towards
    `connect_timeout`, the seconds from the start to `connected` (`inf`: no limit). The place is free again when the
    server has answered or ended. `raised_by` names, for people, the settings that give the server more time.

    `era` is what an earlier incarnation found of the server's era. `mailbox_size` calls may wait, and `max_in_flight`
    may be with the server at once. Without `liveness`, a silent connection is not probed. `report` is called with each
    step, synchronously, and `updated` when resources change: see `Connection.keep_subscribed`. `trace` is entered from
    the handshake to `connected`: it sets the trace that the server gets.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        incarnation: int,
        connect_timeout: float,
        raised_by: str = CONNECT_SETTINGS,
        era: Remembered | None,
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
        self._raised_by = raised_by
        self._era = era
        self._era_answered = False
        self._mailbox_size = mailbox_size
        self._max_in_flight = max_in_flight
        self._permit = permit
        self._limiter = limiter
        self._turn = turn or Turn()
        self._host = host
        self._liveness = liveness
        self._report = report
        self._trace = trace
        self._refresh = ListRefresh(incarnation, connect_timeout, report)
        self._life = trio.CancelScope()
        """The whole life; until `connected` its deadline is the connect timeout."""
        self._stopping = False
        self._connection: Connection | None = None
        """The connection, once its transport is open."""
        self._service: Service | None = None
        """The service of callers; None until the server is connected."""
        self._roots_changed = False
        """True if the roots changed before there was a service."""
        self._updated = updated
        self._reason: ExitReason | None = None

    def stop(self, drain: float = 0.0) -> None:
        """End the incarnation: unsent calls fail at once, sent ones get `drain` seconds. Returns at once. A later stop
        may shorten the drain, and never prolongs it."""
        self._stopping = True
        if self._service is None:
            self._life.cancel()
        else:
            self._service.stop(drain)

    @property
    def last_line(self) -> str:
        """The last line that its process has written to standard error; empty if there is none."""
        said = "" if self._connection is None else self._connection.stderr_tail
        return said.rstrip().rpartition("\n")[2]

    def prioritise(self, awaited: float) -> None:
        """Start before those that nobody waits for: see `StartLimiter.prioritise`."""
        self._limiter.prioritise(self._turn, awaited)

    def refresh(self, request: object) -> None:
        """Fetch all lists again and report them. Requests that come before a refresh begins are answered together."""
        if self._service is None or self._service.is_open:
            self._refresh.ask(request)

    def refresh_old(self, request: object, kinds: Collection[ListKind], since: float) -> bool:
        """Fetch again the lists among these that may be old, and report the definitions: see `ListRefresh.ask_old`."""
        return self._is_serving() and self._refresh.ask_old(request, kinds, since)

    def refresh_expired(self) -> None:
        """Fetch again the lists that are too old, and report them."""
        if self._is_serving():
            self._refresh.want_expired()

    def subscribe(self, uris: frozenset[str]) -> None:
        """Subscribe to these resources, and to no others, while the server is connected."""
        if self._service is not None:
            self._service.subscribe(uris)

    def announce_roots(self) -> None:
        """Notify the server that the host's roots changed, as soon as it is connected."""
        if self._service is None:
            self._roots_changed = True
        else:
            self._service.announce_roots()

    def tell(self, method: str, params: Mapping[str, Any] | None, done: Callable[[], object]) -> None:
        """Send the server a notification if it is connected, and call `done` when it is sent or dropped."""
        if self._service is None:
            done()
        else:
            self._service.tell(method, params, done)

    def _is_serving(self) -> bool:
        return self._service is not None and self._service.is_open

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
            if self._reason is None and self._service is not None:  # cancelled: nobody waits for a reason
                self._service.close(STOPPED)
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
                async with self._connector.connect(self._host) as connection:
                    await self._use(connection, place)
            except StartFailed as failure:
                kind = ExitKind.CONNECT_FAILED if failure.retriable else ExitKind.UNUSABLE
                self._end(kind, Loss(str(failure), needs_auth=failure.needs_auth, retry_in=failure.retry_in))

    async def _use(self, connection: "Connection", place: StartPermit) -> None:
        """Do the handshake, then serve calls. The exit reason is reported before the connection is closed."""
        self._connection = connection
        self._report(Opened(self.incarnation, connection.pid))
        try:
            with self._trace:
                service = await self._introduce(connection, place)
            await service.run(self._end_lost, self._liveness, announces_roots=self._roots_changed)
            if self._reason is None:
                self._end(ExitKind.STOPPED, STOPPED)
        except HandshakeFailed as failure:
            self._era = failure.era or self._era
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
        if self._service is not None:
            self._service.close(loss)
        self._report(Ending(self.incarnation, self._reason))

    def _end_lost(self, loss: Loss) -> None:
        """Report the loss of the connection."""
        self._end(ExitKind.LOST, loss)

    def _end_cancelled(self, said: str = "") -> None:
        """Report the end of a cancelled life: it was stopped, or the connect timeout elapsed."""
        if self._stopping:
            self._end(ExitKind.STOPPED, STOPPED)
        else:
            loss = Loss(self._overdue(), stderr_tail=said)
            self._end(ExitKind.CONNECT_FAILED, loss, at=self._life.deadline)

    def _overdue(self) -> str:
        """The error of a connect that took too long: names the missing answer, and the setting that gives more time."""
        missing = "connection" if self._connection is None else self._connection.awaited
        problem = f"not connected within {self._connect_timeout:g} s{f': no {missing}' if missing else ''}"
        return f"{problem} ({self._raised_by} in a file, gives it more)"

    async def _introduce(self, connection: "Connection", place: StartPermit) -> Service:
        """Do the handshake and fetch the lists, up to `connected`; return the service of callers. The keeper gets the
        results; none is kept here.

        Raises:
            HandshakeFailed: It did not become connected.
        """
        handshake = await connection.handshake(self._era)
        self._era, self._era_answered = handshake.remembered, handshake.era_answered
        place.leave()
        if _has_tools(handshake):
            await connection.list_tools()
        await self._list_others(connection)
        await trio.lowlevel.checkpoint_if_cancelled()  # if the time ran out in this step, it is not connected
        self._life.deadline = math.inf
        service = self._service = Service(
            connection,
            incarnation=self.incarnation,
            mailbox_size=self._mailbox_size,
            max_in_flight=self._max_in_flight,
            refresh=self._refresh,
            updated=self._updated,
        )
        self._report(Connected(service.owner, handshake, connection.definitions, connection.stderr_tail))
        return service

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
            self._refresh.request_lists(OTHER_LISTS)


def log_crash(crash: Exception, server: str) -> Loss:
    """The loss of an incarnation that ended with an unforeseen error, which is logged."""
    logger.error("%s: an incarnation ended with an unforeseen error; please report it", server, exc_info=crash)
    return Loss(f"an unforeseen error: {unforeseen(next(leaves(crash)))}")


def _has_tools(handshake: Handshake) -> bool:
    return "tools" in (handshake.capabilities or {})
