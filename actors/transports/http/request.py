"""Requests over HTTP: their answers come in the exchange, at once or on a stream of events.

A stream that ends before the answer is resumed where it ended. The stream for the server's own messages is an exchange
of the same kind, without a request.
"""

import contextlib
import logging
import math
import socket
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol

import httpx2
import trio
from attrs import evolve

from ...errors import folded
from ...jsonrpc.carrier import Origin, Outgoing
from ...jsonrpc.pending import outcome_of
from ...outcomes import Answered, Outcome, Rejected
from ...protocol import PARSE_ERROR
from ...reply import ReplySlot
from . import limits
from .address import evidence_of
from .events import Event, Oversized, events_of
from .exchange import SESSION, Conversation, Exchange
from .failures import Evidence, Fault, Phase
from .responses import EVENTS, TooLarge, media_type, parts_of, read_body

logger: Final = logging.getLogger(__name__)

_LAST_ID: Final = "last-event-id"
_RESUMPTIONS: Final = 2
"""Failed resumptions in a row after which a stream without an answer is given up."""
_RETRY: Final = 1.0
"""Seconds before a resumption, unless the server says."""
_SOONEST: Final = 0.1
"""Seconds before a resumption at least, whatever the server says."""
_LATEST: Final = 30.0
"""Seconds until the stream for the server's own messages is opened again, after many failures."""
_PASSING: Final = (408, 409, 425, 429)
"""Statuses of the 400s with which a stream is refused for now: by 409 if its server has not seen the last one's end."""
_LINGER: Final = 0.1
"""Seconds a stream of events may take to end after its answer: only then its connection can be used again."""


class SessionConversation(Conversation, Protocol):
    """What a request needs in addition."""

    def enter_session(self, session: str) -> None:
        """The server has opened a session."""
        ...

    def discard_session(self, session: str) -> None:
        """The server has opened a session that nobody uses."""
        ...

    def drop(self, slots: Sequence[ReplySlot], reason: str | None) -> None:
        """Close the exchanges of requests; without a reason the server is told nothing."""
        ...

    def judge_refusal(self, refusal: Rejected, *, in_session: bool) -> Outcome:
        """What an error in the server's answer means for the request."""
        ...

    def of_a_resumption(self, evidence: Evidence) -> Evidence:
        """The evidence in a failed resumption."""
        ...

    def respond_unasked(self, frame: bytes) -> None:
        """Answer a request of the server that names no call."""
        ...


class RequestExchange(Exchange, Origin):
    """A frame whose answer comes in its own exchange, as a document or on a stream of events."""

    carrier: SessionConversation
    error: Mapping[str, Any] | None

    def __init__(self, carrier: SessionConversation, outgoing: Outgoing) -> None:
        super().__init__(carrier, outgoing)
        self.lasts: bool = self.lasts or outgoing.method == "subscriptions/listen"
        self.session_id: str | None = None
        """What the answer to `initialize` brought; it counts once that answer does."""
        self._resuming = False
        self._last_id = ""
        self._retry = _RETRY
        self._events = 0
        self._is_garbled = False

    @property
    def is_resumption(self) -> bool:
        """See `Exchange`."""
        return self._resuming

    async def _converse(self) -> Evidence | None:
        """Send, and resume a stream that ended without the answer."""
        evidence = await self._once()
        tries = 0
        while evidence is not None and self._can_be_resumed(evidence) and tries < _RESUMPTIONS:
            self._resuming = True
            await trio.sleep(self._retry)
            events = self._events
            evidence = await self._once()
            tries = 0 if self._events > events else tries + 1
        return evidence

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
        return self._resumption_refused(evidence)

    def _resumption_refused(self, evidence: Evidence) -> Evidence:
        self.error = None  # none of the request's
        return self.carrier.of_a_resumption(evidence)

    async def _take(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        if self.outgoing.method == "initialize":
            self.session_id = response.headers.get(SESSION)
            if self.slot is not None and self.slot.abandoned:
                if self.session_id is not None:
                    self.carrier.discard_session(self.session_id)
                return None
        evidence = await self._read(response, limit)
        if not self.is_over:
            _put_out_of_use(response)  # it may be out of step: what comes next on it is nobody's
        return evidence

    async def _read(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        """Read what should be the answer; what is wrong with it, if anything."""
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
            problem = "an answer that is not valid JSON-RPC"
            self.error = {"code": PARSE_ERROR, "message": problem}
            return Evidence(problem, code=PARSE_ERROR)
        return Evidence(f"{self.carrier.client.address.host} answered, but not this request", Fault.BROKEN)

    async def _listen(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        """Take events until the answer is among them."""
        limit.deadline = math.inf
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

    async def _take_event(self, event: Event | Oversized) -> None:
        if isinstance(event, Oversized):
            raise TooLarge(event.size, self._limit)
        self._events += 1
        self._last_id = event.id
        if event.retry is not None:
            self._retry = max(_SOONEST, min(event.retry, limits.POST_LIMIT))
        if event.data and event.name == "message":
            await self.carrier.take_in(event.data, self)

    @property
    def _limit(self) -> int:
        return self.carrier.frame_limit

    def _closed(self) -> Evidence:
        return Evidence(f"{self.carrier.client.address.host} closed the stream", Fault.ENDED)

    # -- as the origin of what comes ------------------------------------------------------------------------------

    def may_answer(self, slot: ReplySlot) -> bool:
        """Only the answer to its own request counts here: see `Origin`."""
        return slot is self.slot

    def stray(self, message: Mapping[str, Any]) -> None:
        """An error without an id belongs to this request: its server could not read the id."""
        logger.debug("dropped an answer to something else")
        outcome = outcome_of(message)
        if message.get("id") is None and isinstance(outcome, Rejected) and not self.is_over:
            evidence = Evidence(folded(outcome.message), code=outcome.code, in_session=self.in_session)
            self.error = {"code": outcome.code, "message": outcome.message, "data": outcome.data}
            self.carrier.fail(self, evolve(evidence, fault=Fault.BROKEN) if self.is_call else evidence)

    def garbled(self, frame: bytes) -> None:
        """See `Origin`."""
        del frame
        self._is_garbled = True

    def unread(self, problem: str) -> None:
        """See `Origin`."""
        self.carrier.fail(self, Evidence(problem, Fault.OVERSIZED))

    def judge(self, outcome: Outcome, slot: ReplySlot) -> Outcome:
        """See `Origin`."""
        del slot
        if isinstance(outcome, Answered) and self.session_id is not None:
            self.carrier.enter_session(self.session_id)
        if isinstance(outcome, Rejected):
            return self.carrier.judge_refusal(outcome, in_session=self.in_session)
        return outcome

    def respond(self, frame: bytes) -> None:
        """Answer a request that came here. If that failed, the server would wait for ever, and so would this call."""
        self.carrier.begin(Exchange(self.carrier, Outgoing(frame), self._response_failed))

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
    """Where a redirect moved this stream to; POSTs stay where they were."""

    def __init__(self, carrier: SessionConversation, outgoing: Outgoing) -> None:
        super().__init__(carrier, outgoing)
        self.settled: Final = trio.Event()
        """Set once the stream is open, or will not be."""

    async def run(self) -> None:
        """See `Exchange`."""
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
        tries = 0
        while True:
            events = self._events
            evidence = await self._once()
            if self._was_open and evidence is not None and evidence.status == HTTPStatus.NOT_FOUND:
                self.phase = None  # it was offered in this session: the session is what is not found
            if evidence is None or evidence.unsent or _is_refused(evidence.status):
                return evidence  # it is not offered, or its server is gone
            tries = 0 if evidence.fault is Fault.ENDED or self._events > events else tries + 1
            await trio.sleep(max(self._retry, min(2.0**tries - 1, _LATEST)))

    def _mute(self) -> Evidence:
        host = self.carrier.client.address.host
        return Evidence(f"{host} did not answer within {limits.POST_LIMIT:g} s", Fault.MUTE)

    def _resumption_refused(self, evidence: Evidence) -> Evidence:
        self.settled.set()
        return evidence  # it is part of no request

    async def _take(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        if media_type(response) == EVENTS:
            self._was_open = True
            self.settled.set()
            return await self._listen(response, limit)
        problem = f"HTTP {response.status_code} with {media_type(response) or 'no content type'} instead of events"
        return Evidence(problem, status=response.status_code)

    def may_answer(self, slot: ReplySlot) -> bool:
        """See `Origin`: a server is not to answer here, and some do; nothing of another connection can get here."""
        return slot.sent

    def judge(self, outcome: Outcome, slot: ReplySlot) -> Outcome:
        """See `Origin`: the exchange that should have brought the answer is closed."""
        self.carrier.drop((slot,), None)
        return super().judge(outcome, slot)

    def respond(self, frame: bytes) -> None:
        """Answer what the server asked unasked."""
        self.carrier.respond_unasked(frame)


def _is_refused(status: int | None) -> bool:
    """Whether this answer to a request for a stream is its server's last word on it."""
    if status is None or status in _PASSING:
        return False
    return status < HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.NOT_IMPLEMENTED


def _put_out_of_use(response: httpx2.Response) -> None:
    """Have the pool drop the connection. Not by closing it: the pool asks each idle socket whether it is readable, and
    one that is closed makes every later request fail."""
    line = response.extensions["network_stream"].get_extra_info("socket")
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
