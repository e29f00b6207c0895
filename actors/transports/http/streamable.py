"""Streamable HTTP: requests whose answers come in their exchange, at once or on a stream of events, and their carrier.

A stream that ends before the answer is resumed where it ended. The stream for the server's own messages is an exchange
of the same kind, without a request.
"""

import contextlib
import logging
import math
import socket
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import httpx2
import trio

from mcp_nursery.actors.records import evolve

from ...http import limits
from ...http.address import evidence_of
from ...http.client import HttpClient
from ...http.failures import Evidence, Fault, Phase, classify
from ...http.responses import EVENTS, TooLarge, media_type, parts_of, read_body
from ...jsonrpc.carrier import Frame, Origin, Outgoing
from ...jsonrpc.pending import outcome_of
from ...outcomes import Answered, Outcome, Rejected
from ...overrides import override
from ...pauses import Pauses
from ...protocol import MCP_PROTOCOL_VERSION_HEADER, MODERN_PROTOCOL_VERSIONS
from ...reply import ReplySlot
from ...secrets import words_of
from .event_stream import Oversized, ServerSentEvent, events_of
from .exchange import SESSION, Exchange, HttpCarrier, ResponseExchange

logger: Final = logging.getLogger(__name__)

_LAST_ID: Final = "last-event-id"
_RESUMPTIONS: Final = 2
"""Failed resumptions in a row after which a stream without an answer is given up."""
_RESUME_PAUSE: Final = 1.0
"""Seconds before a resumption, unless the server gives others."""
_SOONEST: Final = 0.1
"""Seconds before a resumption at least, whatever the server gives."""
_STREAM_PAUSES: Final = (0.0, 1.0, 3.0, 7.0, 15.0, 30.0)
"""Seconds until the stream for the server's own messages is opened again, at least; the last repeats."""
_POLL_PAUSES: Final = (0.0, 1.0, 2.0, 5.0)
"""Seconds before a resumption, at least; the last repeats. A server may close a stream again and again to be polled,
and its answer waits as long as a pause."""
_STREAM_PASSING_STATUSES: Final = (408, 409, 425, 429)
"""Statuses of the 400s with which a stream is refused for now: 409 if the server has not seen the last one's end."""
_LINGER: Final = 0.1
"""Seconds a stream of events may take to end after its answer: only then can its connection be used again."""


class RequestExchange(Exchange, Origin):
    """A frame whose answer comes in its own exchange, as a document or on a stream of events."""

    carrier: "StreamableCarrier"
    error: Mapping[str, Any] | None

    def __init__(self, carrier: "StreamableCarrier", outgoing: Frame) -> None:
        super().__init__(carrier, outgoing)
        self.lasts: bool = self.lasts or outgoing.method == "subscriptions/listen"
        self.session_id: str | None = None
        """The session id in the answer to `initialize`; it counts once that answer does."""
        self._resuming = False
        self._last_id = ""
        self._retry = _RESUME_PAUSE
        self._events = 0
        self._messages = 0
        self._opened_at = math.inf
        self._is_garbled = False

    async def _converse(self) -> Evidence | None:
        """Send the frame, and resume a stream that ended without the answer."""
        evidence = await self._send_and_receive()
        tries, pauses = 0, Pauses(_POLL_PAUSES)
        while evidence is not None and self._can_be_resumed(evidence) and tries < _RESUMPTIONS:
            self._resuming = True
            await self._pause(pauses, evidence)
            events = self._events
            evidence = await self._send_and_receive()
            tries = 0 if self._events > events else tries + 1
        return evidence

    async def _pause(self, pauses: Pauses, evidence: Evidence) -> None:
        """Wait before the stream is asked for again."""
        lasted, least = trio.current_time() - self._opened_at, max(self._retry, evidence.retry_in or 0.0)
        pause = pauses.after(lasted, heard=self._messages > 0, least=least)
        self._messages, self._opened_at = 0, math.inf
        logger.debug("a stream is asked for again in %g s: %s", pause, evidence.problem)
        await trio.sleep(pause)

    def _can_be_resumed(self, evidence: Evidence) -> bool:
        return bool(self._last_id) and evidence.fault in (Fault.BROKEN, Fault.ENDED)

    async def _request(self) -> httpx2.Response:
        if not self._resuming:
            return await super()._request()
        headers = {**self.headers, "accept": EVENTS}
        if self._last_id:
            headers[_LAST_ID] = self._last_id.strip()  # no header ends with a space
        return await self.carrier.client.send("GET", self._url, headers, lasting=self.lasts)

    async def _receive(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        evidence = await super()._receive(response, limit)
        if not self._resuming or evidence is None or evidence.status is None:
            return evidence
        return self._judge_resumption(evidence)

    def _judge_resumption(self, evidence: Evidence) -> Evidence:
        self.error = None  # it is not the request's
        return self.carrier.resumption_evidence(evidence)

    async def _read_answer(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        if self.outgoing.method == "initialize":
            self.session_id = response.headers.get(SESSION)
            if self.slot is not None and self.slot.cancelled:
                if self.session_id is not None:
                    self.carrier.discard_session(self.session_id)
                return None
        evidence = await self._read(response, limit)
        if not self.is_over:
            _put_out_of_use(response)  # it may be out of step: what comes next on it belongs to no request
        return evidence

    async def _read(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        """Read what should be the answer; return the evidence of a fault in it."""
        kind = media_type(response)
        if kind == EVENTS:
            return await self._listen(response, limit)
        if kind != "application/json" or self._resuming:
            problem = f"HTTP {response.status_code} with {kind or 'no content type'} instead of an answer"
            return Evidence(problem, Fault.BROKEN)
        body = await read_body(response, limit, self.carrier.frame_limit)
        await self.carrier.take_in(body, self)
        if self.is_over:
            return None
        if self._is_garbled:
            return Evidence("an answer that is not valid JSON-RPC", Fault.BROKEN)
        return Evidence(f"{self.carrier.client.address.host} answered, but not this request", Fault.BROKEN)

    async def _listen(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        """Take events until the answer is among them."""
        limit.deadline = math.inf
        self._opened_at = trio.current_time()
        parts = parts_of(response, self.carrier.hear)
        try:
            async with contextlib.aclosing(parts), contextlib.aclosing(events_of(parts, self._limit)) as events:
                async for event in events:
                    await self._take_event(event)
                    if self.is_over and limit.deadline == math.inf:
                        limit.deadline = trio.current_time() + _LINGER
        except httpx2.RequestError as error:
            return None if self.is_over else evidence_of(error, self.carrier.client.address)
        return None if self.is_over else self._closed()

    async def _take_event(self, event: ServerSentEvent | Oversized) -> None:
        if isinstance(event, Oversized):
            raise TooLarge(event.size, self._limit)
        self._events += 1
        self._last_id = event.id
        if event.retry is not None:
            self._retry = max(_SOONEST, min(event.retry, limits.POST_LIMIT))
        if event.data and event.name == "message":
            self._messages += 1
            await self.carrier.take_in(event.data, self)

    @property
    def _limit(self) -> int:
        return self.carrier.frame_limit

    def _closed(self) -> Evidence:
        return Evidence(f"{self.carrier.client.address.host} closed the stream", Fault.ENDED)

    # -- as the origin of what comes ------------------------------------------------------------------------------

    def may_answer(self, slot: ReplySlot) -> bool:
        """True for the request of this exchange alone: see `Origin`."""
        return slot is self.slot

    def stray(self, message: Mapping[str, Any]) -> None:
        """Drop the answer; fail on an error without an id: the server could not read this request's."""
        logger.debug("dropped an answer to something else")
        outcome = outcome_of(message)
        if message.get("id") is None and isinstance(outcome, Rejected) and not self.is_over:
            evidence = Evidence(words_of(outcome.message), code=outcome.code, in_session=self.in_session)
            self.error = {"code": outcome.code, "message": outcome.message, "data": outcome.data}
            self.carrier.fail(self, evolve(evidence, fault=Fault.BROKEN) if self.is_call else evidence)

    @override
    def garbled(self, frame: bytes) -> None:
        del frame
        self._is_garbled = True

    @override
    def unread(self, problem: str) -> None:
        self.carrier.fail(self, Evidence(problem, Fault.OVERSIZED))

    @override
    def judge(self, outcome: Outcome, slot: ReplySlot) -> Outcome:
        del slot
        if isinstance(outcome, Answered) and self.session_id is not None:
            self.carrier.enter_session(self.session_id)
        if isinstance(outcome, Rejected):
            return self.carrier.judge_refusal(outcome, in_session=self.in_session)
        return outcome

    def respond(self, frame: bytes) -> None:
        """Answer a request that came here. If that fails, so does this call: both would wait for ever."""
        self.carrier.begin(ResponseExchange(self.carrier, Outgoing(frame), self._response_failed))

    @override
    async def heeded(self) -> None:
        await self.carrier.heeded()

    def _response_failed(self, evidence: Evidence) -> None:
        problem = f"our answer to the server's request was not accepted: {evidence.problem}"
        self.carrier.fail(self, Evidence(problem, Fault.BROKEN))
        self.scope.cancel()


class Listening(RequestExchange):
    """The stream for the server's own messages, held open for as long as the server offers it."""

    phase: Phase | None = Phase.STREAM
    lasts = True
    _was_open = False
    _elsewhere: httpx2.URL | None = None
    """The URL of a redirect of this stream; POSTs stay where they were."""

    def __init__(self, carrier: "StreamableCarrier", outgoing: Frame) -> None:
        super().__init__(carrier, outgoing)
        self.settled: Final = trio.Event()
        """Set once the stream is open, or will not be."""

    @override
    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self.settled.set()

    @property
    def _url(self) -> httpx2.URL:
        return self._elsewhere or super()._url

    def _move(self, target: httpx2.URL) -> None:
        self._elsewhere = target

    async def _converse(self) -> Evidence | None:
        self._resuming = True
        pauses = Pauses(_STREAM_PAUSES)
        while True:
            evidence = await self._send_and_receive()
            if self._was_open and evidence is not None and evidence.status == HTTPStatus.NOT_FOUND:
                self.phase = None  # it was offered in this session: the session is what is not found
            if evidence is None or evidence.unsent or _is_refused(evidence.status):
                return evidence  # it is not offered, or its server is gone
            await self._pause(pauses, evidence)

    def _silence_evidence(self) -> Evidence:
        host = self.carrier.client.address.host
        return Evidence(f"{host} did not answer within {limits.POST_LIMIT:g} s", Fault.MUTE)

    def _judge_resumption(self, evidence: Evidence) -> Evidence:
        self.settled.set()
        return evidence  # it is part of no request

    async def _read_answer(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        if media_type(response) == EVENTS:
            self._was_open = True
            self.settled.set()
            return await self._listen(response, limit)
        problem = f"HTTP {response.status_code} with {media_type(response) or 'no content type'} instead of events"
        return Evidence(problem, status=response.status_code)

    @override
    def may_answer(self, slot: ReplySlot) -> bool:
        # A server should not answer here, and some do; nothing of another connection can get here.
        return slot.sent

    @override
    def judge(self, outcome: Outcome, slot: ReplySlot) -> Outcome:
        # The exchange that should have brought the answer is closed.
        self.carrier.withdraw([slot])
        return super().judge(outcome, slot)

    def respond(self, frame: bytes) -> None:
        """Answer a request of the server that names no call."""
        self.carrier.respond_unasked(frame)


def _is_refused(status: int | None) -> bool:
    """True if a request for a stream that got this answer is refused for good."""
    if status is None or status in _STREAM_PASSING_STATUSES:
        return False
    return status < HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.NOT_IMPLEMENTED


def _put_out_of_use(response: httpx2.Response) -> None:
    """Have the pool drop the connection. It is not closed: the pool asks each idle socket whether it is readable, and a
    closed one makes every later request fail."""
    line = response.extensions["network_stream"].get_extra_info("socket")
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


class StreamableCarrier(HttpCarrier):
    """Streamable HTTP: each request is answered in its own exchange; in the older eras there is a session."""

    def __init__(self, client: HttpClient, *, frame_limit: int) -> None:
        super().__init__(client, frame_limit=frame_limit)
        self._session: str | None = None
        self._version: str | None = None
        """The version for frames that bring none."""

    def enter_session(self, session: str) -> None:
        """Use the session that the server has opened."""
        if _is_session(session):
            self._session = session

    @override
    def headers(self, outgoing: Frame) -> dict[str, str]:
        # `initialize` negotiates the version, so its headers do not name one.
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

    @override
    async def notify(self, outgoing: Outgoing) -> None:
        if outgoing.headers().get(MCP_PROTOCOL_VERSION_HEADER, self._version) in MODERN_PROTOCOL_VERSIONS:
            return  # the modern era has no notifications of clients
        if outgoing.method == "notifications/initialized" and self._session is not None:
            await self._begin_listening(outgoing)
        else:
            await super().notify(outgoing)

    async def _begin_listening(self, initialized: Outgoing) -> None:
        """Open the stream for the server's own messages: those sent while nobody listens are lost."""
        stream = Listening(self, Outgoing(b"", limited=False))
        self.begin(stream)
        latest = trio.current_time() + limits.STREAM_LIMIT
        await super().notify(initialized)
        with trio.move_on_at(latest):
            if not self._is_lost:
                await stream.settled.wait()

    def _exchange(self, outgoing: Frame) -> Exchange:
        return RequestExchange(self, outgoing)

    @override
    def _close_exchange(self, slot: ReplySlot) -> bool:
        exchange = self._exchanges.get(slot)
        if exchange is None:
            return True  # the request is answered
        if isinstance(exchange, RequestExchange) and exchange.outgoing.method == "initialize" and slot.sent:
            if exchange.session_id is None:  # it may still open a session, which is to be ended
                del self._exchanges[slot]
                return True
            self.discard_session(exchange.session_id)
        return super()._close_exchange(slot)

    def discard_session(self, session: str) -> None:
        """End a session that the server has opened and nobody uses."""
        if self._nursery is not None and not self._is_lost and _is_session(session):
            self._nursery.start_soon(self._discard, session)

    async def _discard(self, session: str) -> None:
        with trio.move_on_after(limits.POST_LIMIT):
            await self._delete(session)
        self.close_idle_in_time()

    def resumption_evidence(self, evidence: Evidence) -> Evidence:
        """The evidence of a failed resumption: nothing about the request itself, if the conversation goes on."""
        if classify(Phase.CALL, evidence).ends:
            return evidence
        problem = f"{self.client.address.host} closed the stream, and resuming it failed: {evidence.problem}"
        return Evidence(problem, Fault.ENDED, retry_in=evidence.retry_in)

    async def end_session(self) -> None:
        """End the session, as a courtesy."""
        if not self.is_gone and self._session is not None:
            await self._delete(self._session)

    async def _delete(self, session: str) -> None:
        headers = {**self.headers(Outgoing(b"")), SESSION: session}
        if self._is_modern:  # it was opened by the handshake all the same
            del headers[MCP_PROTOCOL_VERSION_HEADER]
        try:
            response = await self.client.send("DELETE", self.moved or self.url, headers)
            await response.aclose()
        except Exception as error:
            logger.debug("the session could not be ended: %s", type(error).__name__)


def _is_session(session: str) -> bool:
    return session.isascii() and session.isprintable()
