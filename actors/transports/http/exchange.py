"""One frame of ours over HTTP: an exchange, from its first byte to its outcome.

Theory of operation
===================

Over a stream all frames share one fate. Over HTTP each frame is a request of its own: it can be refused, redirected,
delayed for a token, cut off in the middle of its answer, or answered by somebody else's error page, while other
frames on the same connection to the server go on. So the carrier owns no reader. It starts an exchange for each frame,
in a task of its own, and an exchange owns three things until it ends: the HTTP request, the response, and the caller's
`ReplySlot`.

What was sent. The promise to callers is that "not sent" is never said of a call that a server may have acted on. The
slot is marked as sent at the moment in which the HTTP client asks for the body, which is after the head was written
and before the first byte of the frame leaves. If nobody waits for the call by then, the body is not handed over. A
response that refuses the request for its authorisation takes the mark back, since the server has not acted on it; it
is set again when the frame leaves with another token. This holds for any `httpx2.Auth`.

What an answer is. A response of 2xx brings it, as a document or as an event in a stream. It counts only for the
request whose exchange brought it (`Origin.may_answer`): a server that mixes up its answers loses calls, and does not
swap them. A stream that breaks before the answer is resumed from its last event, if its events have ids.

How an exchange ends.

- The answer came: the slot has it, and what is left of the response is read for a moment, so that the connection can be
  used again. If it cannot be read to its end, the connection is put out of use.
- Nobody waits any more: the carrier cancels the scope. In the modern era that notifies the server; in the older one the
  endpoint sends `notifications/cancelled`, which has an exchange of its own.
- It failed: it collects `Evidence` and decides nothing. The pure function `failures.classify` maps phase and evidence
  to a `Failure`, and the carrier acts on that: it ends the connection, or decides this one call. No other place in the
  transport knows what a 404 means.
- It raised what nobody foresaw: that is evidence like any other, and is logged.

In each of these cases `done` is set, and no slot is left undecided: a call whose exchange is over has its outcome, or
its connection is lost, which decides all slots at once.
"""

import contextlib
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import httpx2
import trio

from mcp_nursery.actors.records import evolve, field, frozen

from ...enums import Era
from ...http import limits
from ...http.address import evidence_of
from ...http.auth import AuthFailed, AuthUnavailable, unavailable
from ...http.client import HttpClient
from ...http.failures import REDIRECT_STATUSES, Evidence, Failure, Fault, Phase, Reason, classify, loss_of
from ...http.responses import EVENTS, TooLarge, error_in, media_type, read_body, read_refusal, refusal_evidence
from ...http.routes import proxy_of
from ...json_depth import TOO_DEEP, nested_too_deep
from ...jsonrpc.carrier import Carrier, Frame, Hub, Origin, Outgoing, cancellation
from ...jsonrpc.endpoint import PeerError
from ...limits import CALL_SETTINGS
from ...messages import CANCELLED
from ...outcomes import Dropped, Loss, Malformed, Outcome, Rejected
from ...overrides import override
from ...protocol import CONNECTION_CLOSED, INTERNAL_ERROR, MCP_PROTOCOL_VERSION_HEADER, MODERN_PROTOCOL_VERSIONS
from ...reply import ReplySlot
from ...secrets import words_of

logger: Final = logging.getLogger(__name__)

SESSION: Final = "mcp-session-id"
MOST_RESPONSES: Final = 16
"""Responses of ours that are sent at once. A server may ask any number of times, each response has a POST of its own,
and each turn of the loop would go on with all of them."""
MOST_CANCELLATIONS: Final = 16
"""Notifications of cancelled calls that are sent at once: each has a connection of its own, and a server that hangs
answers none of them, while its callers give up one call after another."""
MOST_CANCELLATIONS_KEPT: Final = 256
"""Such notifications that are sent or wait for a place: as many as a server's calls in flight by default. Any more are
not sent."""
CANCELLATION_LIMIT: Final = 5.0
"""Seconds for one such request, from the moment at which the request has a place."""
CARRIER_CLOSED: Final = Loss("the connection was closed")
_GIVEN_UP: Final = Evidence("the HTTP request was abandoned", Fault.BROKEN)


class _RepeatableBody:
    """A body that authorisation can send again, with another token."""

    def __init__(self, body: Callable[[], AsyncIterator[bytes]]) -> None:
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body()


class Exchange:
    """A frame that needs no answer: a notification, or a response of ours. `failed` is called if it fails and the
    connection is not lost with it."""

    phase: Phase | None = None
    """The phase that it counts as; None: the phase of the conversation."""
    lasts: bool = False
    """True if it is a stream that is held open."""

    def __init__(
        self, carrier: "HttpCarrier", outgoing: Frame, failed: Callable[[Evidence], None] | None = None
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
        """True if the frame has left, or begun to, and the server has not refused it since."""
        self._was_refused = False
        """True if the server has refused its authorisation."""
        self.has_ended: bool = False
        """True if it went its whole way, and was not given up."""

    @property
    def slot(self) -> ReplySlot | None:
        """The slot that waits for the answer, if any."""
        return self.outgoing.slot

    @property
    def is_call(self) -> bool:
        """True if a server acts on it."""
        return self.outgoing.bounded

    @property
    def is_modern(self) -> bool:
        """True if closing it notifies the server that nobody waits."""
        return self.headers.get(MCP_PROTOCOL_VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS

    @property
    def in_session(self) -> bool:
        """True if the server may answer that the session has expired."""
        return self.carrier.always_in_session or SESSION in self.headers

    @property
    def missing(self) -> str:
        """The thing that it lacks to be sent; empty if it was sent."""
        if self._left:
            return ""
        host = self.carrier.client.address.host
        return f"token that {host} accepts" if self._was_refused else f"connection to {host}"

    @property
    def is_over(self) -> bool:
        """True if nobody waits for its answer any more."""
        return self.slot is not None and self.slot.decided

    @property
    def _is_cancelled(self) -> bool:
        """True if nobody waits for its answer or its failure."""
        return self.slot is not None and self.slot.cancelled

    async def run(self) -> None:
        """Run from the first byte to the outcome: whatever happens, the call that waits is decided afterwards."""
        evidence: Evidence | None = _GIVEN_UP
        try:
            with self.scope:
                evidence = await self._converse()
                self.has_ended = True
        except AuthFailed as error:
            evidence = Evidence(f"authorisation failed: {words_of(error.__cause__)}", status=HTTPStatus.UNAUTHORIZED)
        except AuthUnavailable as error:
            evidence = unavailable(error)
        except Exception:  # whose text may hold a secret
            logger.exception("an HTTP exchange ended with an unforeseen error; please report it")
            evidence = Evidence("the exchange ended with an unforeseen error, which the log has", Fault.BROKEN)
        finally:
            self.carrier.ended(self)
            if evidence is not None and not self.scope.cancelled_caught and not self._is_cancelled:
                self.carrier.fail(self, evidence)
            self.done.set()

    async def _converse(self) -> Evidence | None:
        """Do the exchange; return the evidence of a failure, if any."""
        return await self._send_and_receive()

    async def _send_and_receive(self) -> Evidence | None:
        """Send a request; return the evidence of a failure."""
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
        return None if self.is_over else self._silence_evidence()

    def _silence_evidence(self) -> Evidence:
        host = self.carrier.client.address.host
        if self._left:
            problem = f"{host} did not answer within {limits.POST_LIMIT:g} s ({CALL_SETTINGS} gives calls more)"
            return Evidence(problem, Fault.MUTE)
        if self._was_refused:
            problem = f"{host} wants another token, and the request was not sent again within {limits.POST_LIMIT:g} s"
            return Evidence(problem, Fault.UNREACHED, status=HTTPStatus.UNAUTHORIZED)
        return Evidence(f"cannot connect to {host} within {limits.POST_LIMIT:g} s", Fault.UNREACHED)

    # -- out ------------------------------------------------------------------------------------------------------

    async def _send(self) -> httpx2.Response:
        """Send it, along redirects unless it is a call: whether those are sent again is decided elsewhere."""
        for _ in range(limits.MOST_REDIRECTS):
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
        """The URL that the frame is sent to."""
        return self.carrier.moved or self.carrier.url

    def _move(self, target: httpx2.URL) -> None:
        """Follow a redirect: send the frames that follow to its target."""
        leads_on = self.is_call and self.carrier.moved is not None  # perhaps in a circle: the next begins anew
        self.carrier.moved = None if leads_on else target

    async def _request(self) -> httpx2.Response:
        headers = {**self.headers, "content-length": str(len(self.outgoing.frame))}
        body, refuse = _RepeatableBody(self._body), self._mark_refused
        return await self.carrier.client.send("POST", self._url, headers, body, lasting=self.lasts, on_refused=refuse)

    async def _body(self) -> AsyncIterator[bytes]:
        """The frame. It leaves when the client asks for it: after the head was written."""
        if self.is_over:
            self.scope.cancel()
            await trio.lowlevel.checkpoint()
        self._left = True
        if self.slot is not None:
            self.slot.mark_sent()
        yield self.outgoing.frame

    def _mark_refused(self) -> None:
        """Record a refusal: the server has not acted, and will not before the frame is sent again with another
        token."""
        self._left, self._was_refused = False, True
        if self.slot is not None:
            self.slot.mark_refused()

    # -- in -------------------------------------------------------------------------------------------------------

    async def _receive(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        status = response.status_code
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            self.carrier.hear()  # a gateway's answer is no sign of the server
        if status >= HTTPStatus.BAD_REQUEST:
            body = await read_refusal(response)
            self.error = error_in(body)
            proxy = proxy_of(response.request)
            return refusal_evidence(response, body, in_session=self.in_session, proxy=proxy)
        if status in REDIRECT_STATUSES:
            return self._redirect_evidence(response)
        return await self._read_answer(response, limit)

    def _redirect_evidence(self, response: httpx2.Response) -> Evidence:
        status, moved = response.status_code, self.carrier.client.redirection(response)
        if moved is None:
            return Evidence(f"HTTP {status} instead of an answer", status=status)
        problem, followed = moved.problem, moved.target is not None
        if followed:
            why = (
                "calls are not sent along redirects" if self.is_call else f"more than {limits.MOST_REDIRECTS} in a row"
            )
            problem = f"{problem}: {why}"
        return Evidence(problem, status=status, moved=followed)

    async def _read_answer(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        """Read the answer to a request that was not refused."""
        if media_type(response) != EVENTS:
            with contextlib.suppress(TooLarge):  # the body does not matter
                await read_body(response, limit, limits.REFUSAL_LIMIT)
        return None


class _CancellationExchange(Exchange):
    """A notification that a call is cancelled, which a server can do without: it waits for a place, and then has a time
    limit."""

    async def _converse(self) -> Evidence | None:
        async with self.carrier.cancellations:
            self.scope.deadline = trio.current_time() + CANCELLATION_LIMIT
            return await super()._converse()


class ResponseExchange(Exchange):
    """A response of ours to a request of the server: it waits for a place."""

    async def _converse(self) -> Evidence | None:
        async with self.carrier.responses:
            return await super()._converse()


@frozen
class Failed(Rejected):
    """An error, and the evidence by which the session's requests are judged."""

    evidence: Evidence = field(kw_only=True)


class HttpCarrier(Carrier):
    """The common part of streamable HTTP and SSE: each frame of ours is a POST. `frame_limit` is the most bytes of one
    answer, and of one event."""

    only_era: Era | None = None
    dies_of_a_probe = False
    always_in_session = False
    """True if the server may answer any request that the session has expired."""

    def __init__(self, client: HttpClient, *, frame_limit: int) -> None:
        self.client = client
        self.frame_limit = frame_limit
        self.url: httpx2.URL = client.address.url
        """The URL that frames go to: the server may name another."""
        self.moved: httpx2.URL | None = None
        """The URL of a redirect: frames go there instead, until it redirects a call again."""
        self.phase: Phase = Phase.OPENING
        """The phase of the conversation."""
        self.is_gone: bool = False
        """True if the connection was lost: no session can be ended."""
        self._hub: Hub | None = None
        self._nursery: trio.Nursery | None = None
        self._early: list[Exchange] = []
        """Exchanges that were begun before there was a nursery."""
        self._exchanges: dict[ReplySlot, Exchange] = {}
        """Exchanges that somebody waits for."""
        self._latest: deque[Exchange] = deque(maxlen=2)
        """The latest of these while the conversation was opened, also once they are given up."""
        self.responses: Final = trio.Semaphore(MOST_RESPONSES)
        """The places of responses that are being sent."""
        self.cancellations: Final = trio.Semaphore(MOST_CANCELLATIONS)
        """The places of notifications of cancelled calls that are being sent."""
        self._cancelled: int = 0
        """Such notifications that are being sent or wait."""
        self._closes_idle: bool = False
        """True if a task waits to close idle connections."""
        self._heard = trio.Event()
        """Set once the server has begun to answer a request."""

    # -- out ------------------------------------------------------------------------------------------------------

    @property
    @override
    def awaited(self) -> str:
        missing = {each.missing for each in self._latest if not each.has_ended}
        return "" if "" in missing or not missing else " or ".join(sorted(missing))

    @override
    def send(self, batch: Sequence[Frame]) -> Sequence[Frame]:
        # Each frame has an exchange of its own, as many as there may be calls.
        for outgoing in batch:
            if outgoing.method == CANCELLED:
                self._begin_cancellation(outgoing)
            else:
                self.begin(self._exchange(outgoing))
        return ()

    def _begin_cancellation(self, outgoing: Frame) -> None:
        if self._cancelled < MOST_CANCELLATIONS_KEPT and not self._is_lost:
            self._cancelled += 1
            self.begin(_CancellationExchange(self, outgoing))

    @override
    async def notify(self, outgoing: Outgoing) -> None:
        # The first request must not overtake `initialized`.
        exchange = Exchange(self, outgoing)
        self.begin(exchange)
        waits = outgoing.patient or outgoing.method == "notifications/initialized"
        if waits and not self._is_lost:
            await exchange.done.wait()

    @override
    async def taken(self) -> None:
        # Only the head of an answer shows what a server has read, and a busy one is slow with that.
        left = trio.current_effective_deadline() - trio.current_time()
        with trio.move_on_after(min(limits.READ_LIMIT, left / 3)):
            await self._heard.wait()

    def begin(self, exchange: Exchange) -> None:
        """Start an exchange in a task of its own."""
        if self._is_lost:
            return
        if exchange.slot is not None:
            self._exchanges[exchange.slot] = exchange
            if self.phase is Phase.OPENING:
                self._latest.append(exchange)
        if self._nursery is None:
            self._early.append(exchange)
        else:
            self._nursery.start_soon(exchange.run)

    def ended(self, exchange: Exchange) -> None:
        """Remove an exchange that is over."""
        if exchange.slot is not None:
            self._exchanges.pop(exchange.slot, None)
        self._cancelled -= isinstance(exchange, _CancellationExchange)
        self.close_idle_in_time()

    def close_idle_in_time(self) -> None:
        """Have connections closed when they have been idle for long enough: one task at a time waits for that."""
        if not (self._closes_idle or self._nursery is None):
            self._closes_idle = True
            self._nursery.start_soon(self._close_idle)

    async def _close_idle(self) -> None:
        while (idle_until := self.client.idle_until) < math.inf:
            await trio.sleep_until(idle_until)
            await self.client.close_idle()
        self._closes_idle = False

    @override
    def withdraw(self, slots: Sequence[ReplySlot]) -> Sequence[ReplySlot]:
        return [slot for slot in slots if not self._close_exchange(slot) and slot.sent]

    def _close_exchange(self, slot: ReplySlot) -> bool:
        """Close the exchange of a request; True if the server need not be notified."""
        exchange = self._exchanges.pop(slot, None)
        if exchange is None:
            return False
        exchange.scope.cancel()
        return exchange.is_modern

    def _exchange(self, outgoing: Frame) -> Exchange:
        """The exchange of a request."""
        raise NotImplementedError

    def headers(self, outgoing: Frame) -> dict[str, str]:
        """The headers of a frame."""
        del outgoing
        return {"accept": f"application/json, {EVENTS}", "content-type": "application/json"}

    # -- in -------------------------------------------------------------------------------------------------------

    def hear(self) -> None:
        """Record that the server sent something."""
        self._heard.set()
        if self._hub is not None:
            self._hub.hear()

    @property
    def _is_lost(self) -> bool:
        return self._hub is not None and self._hub.lost.is_set()

    @override
    async def run(self, hub: Hub, nursery: trio.Nursery) -> Loss:
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
        return CARRIER_CLOSED  # ignored: the loss was reported before

    async def take_in(self, frame: bytes, origin: Origin) -> None:
        """Process a frame of the server."""
        if self._hub is not None:
            await self._hub.take_in([frame], origin)

    # -- what failures mean ---------------------------------------------------------------------------------------

    @override
    def opened(self) -> None:
        self.phase = Phase.CALL
        self._latest.clear()

    @override
    def explain(self, error: Exception, problem: str) -> Loss:
        evidence = Evidence(problem)
        if isinstance(error, PeerError):
            refusal = error.refusal
            evidence = refusal.evidence if isinstance(refusal, Failed) else Evidence(problem, code=refusal.code)
            evidence = evolve(evidence, retry_in=refusal.retry_in)
        return loss_of(classify(self.phase, evidence), evidence, problem)

    def fail(self, exchange: Exchange, evidence: Evidence) -> None:
        """Handle a failed exchange: end the connection if the evidence means that, else decide the request."""
        hub, slot = self._hub, exchange.slot
        if hub is None:
            return
        failure = classify(exchange.phase or self.phase, evidence)
        if failure.ends:
            hub.lose(loss_of(failure, evidence))
        elif slot is not None:
            if evidence.fault is Fault.MUTE and exchange.is_call and not exchange.is_modern:
                self._begin_cancellation(cancellation(slot, evidence.problem))
            hub.conclude(slot, _outcome(exchange, evidence, failure))
        elif exchange.failed is not None:
            exchange.failed(evidence)

    def judge_refusal(self, refusal: Rejected, *, in_session: bool) -> Outcome:
        """The outcome of a request that was answered with an error."""
        shown = Evidence(words_of(refusal.message), code=refusal.code, in_session=in_session)
        failure = classify(self.phase, shown)
        if failure.ends and self._hub is not None:
            self._hub.lose(loss_of(failure, shown))
        if failure.reason is Reason.UNKNOWN_OUTCOME:
            return Dropped(shown.problem, again=failure.again)
        return Failed(refusal.code, refusal.message, refusal.data, refusal.size, evidence=shown)

    def respond_unasked(self, frame: bytes) -> None:
        """Answer a request of the server that names no call. If that fails with calls in flight, the connection is
        lost: any may wait for ever."""
        self.begin(ResponseExchange(self, Outgoing(frame), self._response_failed))

    async def heeded(self) -> None:
        """Wait until responses are sent: a server that asks and does not take the answers is not read until it does."""
        if not self.responses.value:
            async with self.responses:
                pass  # those that waited before are being sent

    def _response_failed(self, evidence: Evidence) -> None:
        if self._hub is not None and self._hub.in_flight:
            self._hub.lose(Loss(f"our answer to the server's request was not accepted: {evidence.problem}"))


def _outcome(exchange: Exchange, evidence: Evidence, failure: Failure) -> Outcome:
    """The outcome of a request whose exchange failed while the connection goes on."""
    error = exchange.error
    if failure.reason is Reason.UNKNOWN_OUTCOME:
        status = evidence.status if evidence.status is not None and evidence.status >= HTTPStatus.BAD_REQUEST else None
        again = failure.again and evidence.retry_in is None
        return Dropped(evidence.problem, status=status, again=again, retry_in=evidence.retry_in)
    if evidence.fault is Fault.OVERSIZED:
        return Malformed(evidence.problem)
    if error is not None:
        data = error.get("data")
        shown = TOO_DEEP if nested_too_deep(data) else data
        return Failed(error["code"], str(error["message"]), shown, retry_in=evidence.retry_in, evidence=evidence)
    code = evidence.status or (INTERNAL_ERROR if exchange.is_call else CONNECTION_CLOSED)
    return Failed(code, evidence.problem, status=evidence.status, retry_in=evidence.retry_in, evidence=evidence)
