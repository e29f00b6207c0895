"""One frame of ours over HTTP: one task owns it from its first byte to its outcome, and its end closes it.

The sender knows here which call waits. So `sent` is true from the moment in which the frame leaves and for good, a call
that is decided is not sent any more, an answer counts for the request it answers and for no other, and an exchange that
ends without an answer decides the call that waits for one.
"""

import contextlib
import logging
import math
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import httpx2
import trio
from attrs import evolve
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import PARSE_ERROR
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ...errors import folded
from ...jsonrpc.carrier import Origin, Outgoing
from ...jsonrpc.pending import outcome_of
from ...outcomes import Answered, Outcome, Rejected
from ...reply import ReplySlot
from . import limits
from .address import evidence_of
from .auth import AuthFailed
from .events import Event, Oversized, events_of
from .failures import Evidence, Fault, Phase
from .responses import EVENTS, TooLarge, media_type, parts_of, read_body, read_refusal, refused

if TYPE_CHECKING:
    from .carrier import HttpCarrier, StreamableCarrier

logger: Final = logging.getLogger(__name__)

SESSION: Final = "mcp-session-id"
_LAST_ID: Final = "last-event-id"
_REDIRECT: Final = range(300, 400)
_REFUSAL: Final = 400
_GATEWAY: Final = 500
_UNAUTHORISED: Final = 401
_NOT_FOUND: Final = 404
_GIVEN_UP: Final = Evidence("the exchange was given up", Fault.BROKEN)
_RESUMPTIONS: Final = 2
"""Times in a row that a stream without an answer is taken up again in vain."""
_RETRY: Final = 1.0
"""Seconds until then, unless the server says."""
_SOONEST: Final = 0.1
"""Seconds until then at least, whatever the server says."""
_LATEST: Final = 30.0
"""Seconds until the stream that servers speak on unasked is opened again, after many failures."""
_LINGER: Final = 0.1
"""Seconds a stream of events may take to end after its answer: only then its connection can be used again."""


class Exchange:
    """A frame that wants nothing but to be taken: a notification, or an answer of ours.

    Args:
        carrier: Whose it is.
        outgoing: What is sent.
        failed: Told if it failed, and not if the connection is lost with it.
    """

    phase: Phase | None = None
    """What it counts as; None: what the whole conversation is at."""

    def __init__(
        self, carrier: "HttpCarrier", outgoing: Outgoing, failed: Callable[[Evidence], None] | None = None
    ) -> None:
        self.carrier = carrier
        self.outgoing = outgoing
        self.failed = failed
        self.scope: Final = trio.CancelScope()
        self.done: Final = trio.Event()
        self.headers: Final = carrier.headers(outgoing)
        self.error: Mapping[str, Any] | None = None
        """The JSON-RPC error in a refusal."""
        self._left = False
        """The frame has left, or begun to."""

    @property
    def slot(self) -> ReplySlot | None:
        """Who waits for the answer, if anyone does."""
        return self.outgoing.slot

    @property
    def is_call(self) -> bool:
        """Whether a server acts on it."""
        return self.outgoing.method == "tools/call"

    @property
    def is_modern(self) -> bool:
        """Whether its end is the server's sign that nobody waits."""
        return self.headers.get(MCP_PROTOCOL_VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS

    @property
    def in_session(self) -> bool:
        """Whether it can be told that the session has expired."""
        return self.carrier.always_in_session or SESSION in self.headers

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for its answer any more."""
        return self.slot is not None and self.slot.decided

    @property
    def is_resumption(self) -> bool:
        """Whether what is said now is said to something that was taken before."""
        return False

    async def run(self) -> None:
        """Run from the first byte to the outcome: whatever happens, the call that waits is decided afterwards."""
        evidence: Evidence | None = _GIVEN_UP
        try:
            with self.scope:
                evidence = await self._converse()
        except AuthFailed as error:
            evidence = Evidence(f"authorisation failed: {folded(error.__cause__)}", status=_UNAUTHORISED)
        except Exception as error:
            logger.exception("an exchange crashed, please report it")
            evidence = Evidence(f"the exchange crashed: {type(error).__name__}", Fault.BROKEN)
        finally:
            self.carrier.ended(self)
            if evidence is not None and not self.scope.cancelled_caught:
                self.carrier.fail(self, evidence)
            self.done.set()

    async def _converse(self) -> Evidence | None:
        """All of it; what went wrong, if anything."""
        return await self._once()

    async def _once(self) -> Evidence | None:
        """One request and what is said to it."""
        if self.is_over:
            return None
        limit = trio.CancelScope()
        if not self.outgoing.limited:
            limit.deadline = trio.current_time() + limits.POST_LIMIT
        with limit:
            try:
                response = await self._send()
                try:
                    return await self._receive(response, limit)
                finally:
                    await response.aclose()
            except TooLarge as error:
                return error.evidence
            except httpx2.RequestError as error:
                return evidence_of(error, self.carrier.client.address)
        return None if self.is_over else self._mute()

    def _mute(self) -> Evidence:
        host = self.carrier.client.address.host
        if self._left:
            return Evidence(f"{host} did not answer within {limits.POST_LIMIT:g} s", Fault.MUTE)
        return Evidence(f"cannot connect to {host} within {limits.POST_LIMIT:g} s", Fault.UNREACHED)

    # -- out ------------------------------------------------------------------------------------------------------

    async def _send(self) -> httpx2.Response:
        """Send it, along redirects unless it is a call: to send that again is not for us to decide."""
        for _ in range(limits.REDIRECTS):
            response = await self._request()
            moved = self.carrier.client.redirection(response)
            if moved is None or moved.target is None:
                return response
            self._move(moved.target)
            if self.is_call:
                return response
            await response.aclose()
        return await self._request()

    @property
    def _url(self) -> httpx2.URL:
        """Where it is sent."""
        return self.carrier.moved or self.carrier.url

    def _move(self, target: httpx2.URL) -> None:
        """The server says that it is elsewhere: what follows is sent there."""
        leads_on = self.is_call and self.carrier.moved is not None  # perhaps in a circle: the next begins anew
        self.carrier.moved = None if leads_on else target

    async def _request(self) -> httpx2.Response:
        headers = {**self.headers, "content-length": str(len(self.outgoing.frame))}
        return await self.carrier.client.send("POST", self._url, headers, self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        """The frame: it is asked for when the head has been written, and leaves then, and not before."""
        if self.is_over:
            self.scope.cancel()
            await trio.lowlevel.checkpoint()
        self._left = True
        if self.slot is not None:
            self.slot.mark_sent()
        yield self.outgoing.frame

    # -- in -------------------------------------------------------------------------------------------------------

    async def _receive(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        status = response.status_code
        if status < _GATEWAY:
            self.carrier.hear()  # a gateway's word is none of the server's
        if status >= _REFUSAL:
            self.error = await read_refusal(response, limit)
            return refused(status, self.error, in_session=self.in_session)
        if status in _REDIRECT:
            return self._moved(response)
        return await self._take(response, limit)

    def _moved(self, response: httpx2.Response) -> Evidence:
        status, moved = response.status_code, self.carrier.client.redirection(response)
        if moved is None:
            return Evidence(f"HTTP {status} where an answer was wanted", status=status)
        told, followed = moved.told, moved.target is not None
        if followed:
            why = "a call is not sent along it" if self.is_call else f"the last of {limits.REDIRECTS} in a row"
            told = f"{told}: {why}"
        return Evidence(told, status=status, moved=followed)

    async def _take(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        """What came of a request that was not refused."""
        if media_type(response) != EVENTS:
            with contextlib.suppress(TooLarge):  # nobody wants to know what is said
                await read_body(response, limit, limits.REFUSAL_LIMIT)
        return None


class Request(Exchange, Origin):
    """A frame whose answer comes in its own exchange, as a document or on a stream of events."""

    carrier: "StreamableCarrier"
    error: Mapping[str, Any] | None

    def __init__(self, carrier: "StreamableCarrier", outgoing: Outgoing) -> None:
        super().__init__(carrier, outgoing)
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
        """Send, and take a stream up again that ended without the answer."""
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
        return await self.carrier.client.send("GET", self._url, headers)

    async def _receive(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        evidence = await super()._receive(response, limit)
        if not self._resuming or evidence is None or evidence.status is None:
            return evidence
        self.error = None  # none of the request's
        return self.carrier.of_a_resumption(evidence)

    async def _take(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        if self.outgoing.method == "initialize":
            self.session_id = response.headers.get(SESSION)
        kind = media_type(response)
        if kind == EVENTS:
            return await self._listen(response, limit)
        if kind != "application/json" or self._resuming:
            told = f"HTTP {response.status_code} with {kind or 'nothing'} where an answer was wanted"
            return Evidence(told, Fault.BROKEN)
        body = await read_body(response, limit, self.carrier.frame_limit)
        await self.carrier.take_in(body, self)
        if self.is_over:
            return None
        _put_out_of_use(response)  # it may be out of step: what comes next on it is nobody's
        if self._is_garbled:
            told = "an answer that is none of the protocol"
            self.error = {"code": PARSE_ERROR, "message": told}
            return Evidence(told, code=PARSE_ERROR)
        return Evidence(f"{self.carrier.client.address.host} answered something else", Fault.BROKEN)

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
        """Only the answer to its own request is any here: see `Origin`."""
        return slot is self.slot

    def stray(self, message: Mapping[str, Any]) -> None:
        """An answer without an id is this request's, if it is an error: its server could not read it."""
        logger.debug("dropped an answer to something else")
        outcome = outcome_of(message)
        if message.get("id") is None and isinstance(outcome, Rejected) and not self.is_over:
            evidence = Evidence(folded(outcome.message), code=outcome.code, in_session=self.in_session)
            self.error = {"code": outcome.code, "message": outcome.message, "data": outcome.data}
            self.carrier.fail(self, evolve(evidence, fault=Fault.BROKEN) if self.is_call else evidence)

    def garbled(self) -> None:
        """See `Origin`."""
        self._is_garbled = True

    def unread(self, problem: str) -> None:
        """See `Origin`."""
        self.carrier.fail(self, Evidence(problem, Fault.OVERSIZED))

    def judge(self, outcome: Outcome) -> Outcome:
        """See `Origin`."""
        if isinstance(outcome, Answered) and self.session_id is not None:
            self.carrier.enter_session(self.session_id)
        if isinstance(outcome, Rejected):
            return self.carrier.judge_refusal(outcome, in_session=self.in_session)
        return outcome

    def respond(self, frame: bytes) -> None:
        """Answer what the server asked here. If that failed, it would wait for ever, and so would the call here."""
        self.carrier.begin(Exchange(self.carrier, Outgoing(frame), self._response_failed))

    def _response_failed(self, evidence: Evidence) -> None:
        told = f"our answer to its question was not taken: {evidence.told}"
        self.carrier.fail(self, Evidence(told, Fault.BROKEN))
        self.scope.cancel()


class Listening(Request):
    """The stream that a server speaks on unasked, held open for as long as it offers it."""

    phase: Phase | None = Phase.STREAM
    _was_open = False
    _elsewhere: httpx2.URL | None = None
    """Where the server says that this stream is; what is posted stays where it was."""

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
            if self._was_open and evidence is not None and evidence.status == _NOT_FOUND:
                self.phase = None  # it was offered in this session: that is what is not found any more
            if evidence is None or evidence.unsent or evidence.status is not None:
                return evidence  # it is not offered, or its server is gone
            tries = 0 if evidence.fault is Fault.ENDED or self._events > events else tries + 1
            await trio.sleep(max(self._retry, min(2.0**tries - 1, _LATEST)))

    def _mute(self) -> Evidence:
        host = self.carrier.client.address.host
        return Evidence(f"{host} did not answer within {limits.POST_LIMIT:g} s", Fault.MUTE)

    async def _take(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        if media_type(response) == EVENTS:
            self._was_open = True
            return await self._listen(response, limit)
        told = f"HTTP {response.status_code} with {media_type(response) or 'nothing'} where events were wanted"
        return Evidence(told, status=response.status_code)

    def respond(self, frame: bytes) -> None:
        """Answer what the server asked unasked."""
        self.carrier.respond_unasked(frame)


def _put_out_of_use(response: httpx2.Response) -> None:
    """Have the pool drop the connection. Not by closing it: the pool asks each idle socket whether it is readable, and
    one that is closed makes every later request fail."""
    line = response.extensions["network_stream"].get_extra_info("socket")
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
