"""The carrier over HTTP: where a stream has an outbox and a reader, HTTP has exchanges, each in a task of its own."""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import httpx2
import trio
from attrs import evolve, field, frozen

from ...enums import Era
from ...errors import folded
from ...json_depth import TOO_DEEP, nested_too_deep
from ...jsonrpc import codec
from ...jsonrpc.carrier import Hub, Origin, Outgoing
from ...jsonrpc.dispatcher import Refused
from ...outcomes import Dropped, Loss, Malformed, Outcome, Rejected
from ...protocol import CONNECTION_CLOSED, INTERNAL_ERROR, MCP_PROTOCOL_VERSION_HEADER, MODERN_PROTOCOL_VERSIONS
from ...reply import ReplySlot
from . import limits
from .client import HttpClient
from .exchange import SESSION, Exchange
from .failures import Evidence, Failure, Fault, Phase, Reason, classify, loss_of
from .request import Listening, RequestExchange
from .responses import EVENTS

logger: Final = logging.getLogger(__name__)

CLOSED: Final = Loss("the connection was closed")


@frozen
class Failed(Rejected):
    """An error, and the evidence by which the session's requests are judged."""

    evidence: Evidence = field(kw_only=True)


class HttpCarrier:
    """What is the same on streamable HTTP and SSE: each frame of ours is a POST.

    Args:
        client: Reaches the server.
        frame_limit: Bytes of one answer, and of one event.
    """

    only_era: Era | None = None
    dies_of_a_probe = False
    pid = None
    always_in_session = False
    """Whether the server may tell any request that the session has expired."""

    def __init__(self, client: HttpClient, *, frame_limit: int) -> None:
        self.client = client
        self.frame_limit = frame_limit
        self.url: httpx2.URL = client.address.url
        """Where frames go: the server may say that it is elsewhere."""
        self.moved: httpx2.URL | None = None
        """Where a redirect led to: frames go there instead, until it redirects a call again."""
        self.phase: Phase = Phase.OPENING
        """Exchanges under way."""
        self.is_gone: bool = False
        """The connection was lost: the server cannot be told of the end."""
        self._hub: Hub | None = None
        self._nursery: trio.Nursery | None = None
        self._early: list[Exchange] = []
        """Exchanges that were begun before there was a nursery."""
        self._exchanges: dict[ReplySlot, Exchange] = {}
        """Exchanges that somebody waits for."""
        self._under_way: int = 0
        """Requests that have a connection, or want one, but for streams that last."""
        self._idle_from: float = 0.0
        """When the last of them ended."""
        self._closes_idle: bool = False
        """Whether a task waits to close idle connections."""
        self._heard = trio.Event()
        """The server has begun to answer something."""

    # -- out ------------------------------------------------------------------------------------------------------

    def send(self, batch: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """See `Carrier`: each frame has an exchange of its own, as many as there may be calls."""
        for outgoing in batch:
            self.begin(self._exchange(outgoing))
        return ()

    async def notify(self, outgoing: Outgoing) -> None:
        """See `Carrier`: the first request must not overtake `initialized`."""
        exchange = Exchange(self, outgoing)
        self.begin(exchange)
        if outgoing.method == "notifications/initialized" and not self._is_lost:
            await exchange.done.wait()

    async def taken(self) -> None:
        """See `Carrier`: only the head of an answer shows what a server has read, and a busy one is slow with that."""
        left = trio.current_effective_deadline() - trio.current_time()
        with trio.move_on_after(min(limits.READ_LIMIT, left / 3)):
            await self._heard.wait()

    def begin(self, exchange: Exchange) -> None:
        """Start an exchange in a task of its own."""
        if self._is_lost:
            return
        if exchange.slot is not None:
            self._exchanges[exchange.slot] = exchange
        self._under_way += not exchange.lasts
        if self._nursery is None:
            self._early.append(exchange)
        else:
            self._nursery.start_soon(exchange.run)

    def ended(self, exchange: Exchange) -> None:
        """An exchange is over."""
        if exchange.slot is not None:
            self._exchanges.pop(exchange.slot, None)
        if not exchange.lasts:
            self._count_ended()

    def _count_ended(self) -> None:
        """A request is over. One task at a time waits for when the connections have been idle for long enough."""
        self._under_way -= 1
        self._idle_from = trio.current_time()
        if not (self._under_way or self._closes_idle or self._nursery is None):
            self._closes_idle = True
            self._nursery.start_soon(self._close_idle)

    async def _close_idle(self) -> None:
        latest = 0.0
        while not self._under_way and self._idle_from > latest:  # others were made meanwhile, and are over
            latest = self._idle_from
            await trio.sleep_until(latest + limits.IDLE_LIMIT)
        self._closes_idle = False
        if not self._under_way:
            await self.client.close_idle()

    def drop(self, slots: Sequence[ReplySlot], reason: str | None) -> None:
        """Close the exchanges of requests, and notify the server where closing does not cancel them."""
        for slot in slots:
            self._drop(slot, reason)

    def _drop(self, slot: ReplySlot, reason: str | None) -> None:
        exchange = self._exchanges.pop(slot, None)
        if slot.sent and reason is not None and not (exchange is not None and exchange.is_modern):
            self._take_back(slot, slot.reason or reason)
        if exchange is not None:
            exchange.scope.cancel()

    def _take_back(self, slot: ReplySlot, reason: str) -> None:
        params = {"requestId": slot.request_id, "reason": reason}
        self.begin(Exchange(self, Outgoing(codec.notification("notifications/cancelled", params))))

    def _exchange(self, outgoing: Outgoing) -> Exchange:
        """The exchange of a request."""
        raise NotImplementedError

    def headers(self, outgoing: Outgoing) -> dict[str, str]:
        """The headers of a frame."""
        del outgoing
        return {"accept": f"application/json, {EVENTS}", "content-type": "application/json"}

    # -- in -------------------------------------------------------------------------------------------------------

    def hear(self) -> None:
        """The server sent something."""
        self._heard.set()
        if self._hub is not None:
            self._hub.hear()

    @property
    def _is_lost(self) -> bool:
        return self._hub is not None and self._hub.lost.is_set()

    async def run(self, hub: Hub, nursery: trio.Nursery) -> Loss:
        """See `Carrier`."""
        self._hub, self._nursery = hub, nursery
        for exchange in self._early:
            nursery.start_soon(exchange.run)
        return await self._carry(hub)

    async def _carry(self, hub: Hub) -> Loss:
        """Wait until the connection is lost, which exchanges find out."""
        try:
            await hub.lost.wait()
        finally:
            self.is_gone = hub.lost.is_set()
        return CLOSED  # ignored: the loss was reported before

    async def take_in(self, frame: bytes, origin: Origin) -> None:
        """Process a frame of the server."""
        if self._hub is not None:
            await self._hub.take_in([frame], origin)

    # -- what failures mean ---------------------------------------------------------------------------------------

    def opened(self) -> None:
        """See `Carrier`."""
        self.phase = Phase.CALL

    def explain(self, error: Exception, problem: str) -> Loss:
        """See `Carrier`."""
        evidence = Evidence(problem)
        if isinstance(error, Refused):
            refusal = error.refusal
            evidence = refusal.evidence if isinstance(refusal, Failed) else Evidence(problem, code=refusal.code)
        return loss_of(classify(self.phase, evidence), problem, evidence.challenge)

    def fail(self, exchange: Exchange, evidence: Evidence) -> None:
        """An exchange has failed: end the connection if that is what it means, else decide the request that waits."""
        hub, slot = self._hub, exchange.slot
        if hub is None:
            return
        failure = classify(exchange.phase or self.phase, evidence)
        if failure.ends:
            self._end(exchange, evidence, failure, hub)
        elif slot is not None:
            if evidence.fault is Fault.MUTE and exchange.is_call and not exchange.is_modern:
                self._take_back(slot, evidence.problem)
            hub.conclude(slot, _outcome(exchange, evidence, failure))
        elif exchange.failed is not None:
            exchange.failed(evidence)

    def judge_refusal(self, refusal: Rejected, *, in_session: bool) -> Outcome:
        """What an error in the answer to a request means."""
        shown = Evidence(folded(refusal.message), code=refusal.code, in_session=in_session)
        failure = classify(self.phase, shown)
        if failure.ends and self._hub is not None:
            self._hub.lose(loss_of(failure, shown.problem))
        if failure.reason is Reason.UNKNOWN_OUTCOME:
            return Dropped(shown.problem, again=failure.again)
        return Failed(refusal.code, refusal.message, refusal.data, refusal.size, evidence=shown)

    def _end(self, exchange: Exchange, evidence: Evidence, failure: Failure, hub: Hub) -> None:
        loss = loss_of(failure, evidence.problem, evidence.challenge)
        if exchange.slot is not None and evidence.status == HTTPStatus.UNAUTHORIZED and not exchange.is_resumption:
            hub.conclude(exchange.slot, evolve(loss, refused=True))  # this call was certainly not begun
        hub.lose(loss)

    def respond_unasked(self, frame: bytes) -> None:
        """Answer a request of the server that names no call. If that fails, any call may wait for ever."""
        self.begin(Exchange(self, Outgoing(frame), self._response_failed))

    def _response_failed(self, evidence: Evidence) -> None:
        if self._hub is not None and self._hub.in_flight:
            self._hub.lose(Loss(f"our answer to the server's request was not accepted: {evidence.problem}"))


def _outcome(exchange: Exchange, evidence: Evidence, failure: Failure) -> Outcome:
    """The outcome of a request whose exchange failed while the connection goes on."""
    error = exchange.error
    if failure.reason is Reason.UNKNOWN_OUTCOME:
        status = evidence.status if evidence.status is not None and evidence.status >= HTTPStatus.BAD_REQUEST else None
        return Dropped(evidence.problem, status=status, again=failure.again)
    if evidence.fault is Fault.OVERSIZED:
        return Malformed(evidence.problem)
    if error is not None:
        data = error.get("data")
        shown = TOO_DEEP if nested_too_deep(data) else data
        return Failed(error["code"], str(error["message"]), shown, evidence=evidence)
    code = evidence.status or (INTERNAL_ERROR if exchange.is_call else CONNECTION_CLOSED)
    return Failed(code, evidence.problem, status=evidence.status, evidence=evidence)


class StreamableCarrier(HttpCarrier):
    """Streamable HTTP: each request is answered in its own exchange; in the older eras there is a session."""

    def __init__(self, client: HttpClient, *, frame_limit: int) -> None:
        super().__init__(client, frame_limit=frame_limit)
        self._session: str | None = None
        self._version: str | None = None
        """The headers of frames that bring none of their own."""

    def enter_session(self, session: str) -> None:
        """The server has opened a session."""
        if _is_session(session):
            self._session = session

    def headers(self, outgoing: Outgoing) -> dict[str, str]:
        """See `HttpCarrier`: `initialize` negotiates the version, so its headers do not name one."""
        given = super().headers(outgoing)
        if outgoing.method == "initialize":
            self._version = None
            return given
        own = outgoing.headers()
        self._version = own.get(MCP_PROTOCOL_VERSION_HEADER, self._version)
        if self._version is not None:
            given[MCP_PROTOCOL_VERSION_HEADER] = self._version
        if self._session is not None and not self._is_modern:
            given[SESSION] = self._session
        return {**given, **own}

    @property
    def _is_modern(self) -> bool:
        return self._version in MODERN_PROTOCOL_VERSIONS

    async def notify(self, outgoing: Outgoing) -> None:
        """See `Carrier`."""
        if outgoing.headers().get(MCP_PROTOCOL_VERSION_HEADER, self._version) in MODERN_PROTOCOL_VERSIONS:
            return  # which knows no notifications of clients
        if outgoing.method == "notifications/initialized" and self._session is not None:
            await self._begin_listening(outgoing)
        else:
            await super().notify(outgoing)

    async def _begin_listening(self, initialized: Outgoing) -> None:
        """Open the stream for the server's own messages: what it says there while nobody listens is lost."""
        stream = Listening(self, Outgoing(b"", limited=False))
        self.begin(stream)
        latest = trio.current_time() + limits.STREAM_LIMIT
        await super().notify(initialized)
        with trio.move_on_at(latest):
            if not self._is_lost:
                await stream.settled.wait()

    def _exchange(self, outgoing: Outgoing) -> Exchange:
        return RequestExchange(self, outgoing)

    def _drop(self, slot: ReplySlot, reason: str | None) -> None:
        """A request whose exchange is over has been answered.

        An `initialize` that nobody waits for any more may still open a session, which is to be ended.
        """
        exchange = self._exchanges.get(slot)
        if isinstance(exchange, RequestExchange) and exchange.outgoing.method == "initialize" and slot.sent:
            if exchange.session_id is None:
                del self._exchanges[slot]
                return
            self.discard_session(exchange.session_id)
        if exchange is not None:
            super()._drop(slot, reason)

    def discard_session(self, session: str) -> None:
        """The server has opened a session that nobody uses."""
        if self._nursery is not None and not self._is_lost and _is_session(session):
            self._nursery.start_soon(self._delete, session)

    def of_a_resumption(self, evidence: Evidence) -> Evidence:
        """The evidence in a failed resumption: nothing about the request itself, if the conversation goes on."""
        if classify(Phase.CALL, evidence).ends:
            return evidence
        problem = f"{self.client.address.host} closed the stream, and resuming it failed: {evidence.problem}"
        return Evidence(problem, Fault.ENDED)

    async def end_session(self) -> None:
        """End the session, as a courtesy."""
        if not self.is_gone and self._session is not None:
            await self._delete(self._session)

    async def _delete(self, session: str) -> None:
        headers = {**self.headers(Outgoing(b"")), SESSION: session}
        if self._is_modern:  # it was opened by the handshake all the same
            del headers[MCP_PROTOCOL_VERSION_HEADER]
        self._under_way += 1
        try:
            response = await self.client.send("DELETE", self.moved or self.url, headers)
            await response.aclose()
        except Exception as error:
            logger.debug("the session could not be ended: %s", type(error).__name__)
        finally:
            self._under_way -= 1


def _is_session(session: str) -> bool:
    return session.isascii() and session.isprintable()
