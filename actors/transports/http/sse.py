"""The carrier over HTTP with server-sent events, as in 2024-11-05: frames leave as POSTs, answers come on a stream."""

import contextlib
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import httpx2
import trio

from ...enums import Era
from ...http import limits
from ...http.address import evidence_of
from ...http.auth import AuthFailed, AuthUnavailable, unavailable
from ...http.client import HttpClient, origin_of
from ...http.failures import Evidence, Fault, Phase, classify, loss_of
from ...http.responses import EVENTS, TooLarge, media_type, parts_of, read_refusal, refusal_evidence
from ...http.routes import proxy_of
from ...jsonrpc.carrier import Frame, Hub, SharedOrigin
from ...outcomes import Loss, Outcome, Rejected
from ...overrides import override
from ...reply import ReplySlot
from ...secrets import words_of
from .event_stream import Oversized, ServerSentEvent, events_of
from .exchange import Exchange, HttpCarrier

logger: Final = logging.getLogger(__name__)


class _Post(Exchange):
    """A request: it can be sent once the stream has named the endpoint, and is answered on the stream."""

    carrier: "SseCarrier"

    async def _request(self) -> httpx2.Response:
        await self.carrier.ready.wait()
        return await super()._request()


class SseCarrier(HttpCarrier, SharedOrigin):
    """The stream is the connection: it brings every answer, and its end is the end."""

    only_era: Era | None = Era.HANDSHAKE
    always_in_session = True

    def __init__(self, client: HttpClient, *, frame_limit: int) -> None:
        super().__init__(client, frame_limit=frame_limit)
        self.ready: Final = trio.Event()
        """Set once the server has named the endpoint."""
        self._is_open = False
        """True if the server has answered with a stream."""

    @property
    @override
    def awaited(self) -> str:
        if self.ready.is_set():
            return super().awaited
        return f"{'endpoint on the' if self._is_open else ''} stream of {self.client.address.host}".strip()

    def _exchange(self, outgoing: Frame) -> Exchange:
        return _Post(self, outgoing)

    async def _carry(self, hub: Hub) -> Loss:
        evidence = await self._listen(hub)
        if self.ready.is_set():
            return Loss(evidence.problem)
        return loss_of(classify(Phase.OPENING, evidence), evidence)

    async def _listen(self, hub: Hub) -> Evidence:
        """Read the stream; returns how it ended."""
        try:
            response = await self._open()
            try:
                return await self._refusal(response) or await self._read_answer(response, hub)
            finally:
                await response.aclose()
        except TooLarge as error:
            return error.evidence
        except AuthFailed as error:
            return Evidence(f"authorisation failed: {words_of(error.__cause__)}", status=HTTPStatus.UNAUTHORIZED)
        except AuthUnavailable as error:
            return unavailable(error)
        except httpx2.RequestError as error:
            return evidence_of(error, self.client.address)

    async def _open(self) -> httpx2.Response:
        url, headers = self.client.address.url, {"accept": EVENTS, "cache-control": "no-store"}
        for _ in range(limits.MOST_REDIRECTS):
            response = await self.client.send("GET", url, headers, lasting=True)
            moved = self.client.redirection(response)
            if moved is None or moved.target is None:
                return response
            await response.aclose()
            url = moved.target
        return await self.client.send("GET", url, headers, lasting=True)

    async def _refusal(self, response: httpx2.Response) -> Evidence | None:
        """The evidence that an answer is no stream of events; None if it is one."""
        status, kind = response.status_code, media_type(response)
        if status >= HTTPStatus.BAD_REQUEST:
            return refusal_evidence(response, await read_refusal(response), proxy=proxy_of(response.request))
        if (moved := self.client.redirection(response)) is not None:
            why = "" if moved.target is None else f", which is not followed: more than {limits.MOST_REDIRECTS} in a row"
            return Evidence(f"{moved.problem}{why}", status=status)
        if kind != EVENTS or not response.is_success:
            problem = f"HTTP {status} with {kind or 'no content type'} instead of a stream of events"
            return Evidence(problem, status=status)
        return None

    async def _read_answer(self, response: httpx2.Response, hub: Hub) -> Evidence:
        self.hear()
        self._is_open = True
        parts = parts_of(response, self.hear)
        async with contextlib.aclosing(parts), contextlib.aclosing(events_of(parts, self.frame_limit)) as events:
            async for event in events:
                if isinstance(event, Oversized):
                    self._skip(event, hub)
                elif event.name == "endpoint":
                    problem = self._adopt_endpoint(event)
                    if problem is not None:
                        return problem
                elif event.name == "message" and event.data:
                    await hub.take_in([event.data], self)
        return Evidence(f"{self.client.address.host} closed the stream", Fault.ENDED)

    def _adopt_endpoint(self, event: ServerSentEvent) -> Evidence | None:
        """Adopt the endpoint that the server names; return the evidence of a fault in it."""
        try:
            url = self.client.address.url.join(event.data.decode())
        except (httpx2.InvalidURL, UnicodeDecodeError):
            return Evidence("the endpoint on the stream is not a URL", status=HTTPStatus.OK)
        if not self.client.address.has_same_origin(url):
            return Evidence(f"the endpoint on the stream is at {origin_of(url)}, another origin", status=HTTPStatus.OK)
        self.url = url
        self.ready.set()
        return None

    def _skip(self, event: Oversized, hub: Hub) -> None:
        """Skip a large event: at its end the request that it answers is decided."""
        if event.whole:
            problem = str(TooLarge(event.size, self.frame_limit, whole=True))
            hub.refuse(event.head + b"\0" + event.tail, problem, self)

    # -- as the origin of what comes ------------------------------------------------------------------------------

    @override
    def stray(self, message: Mapping[str, Any]) -> None:
        del message
        logger.debug("dropped an answer nobody waits for")

    @override
    def judge(self, outcome: Outcome, slot: ReplySlot) -> Outcome:
        del slot
        return self.judge_refusal(outcome, in_session=True) if isinstance(outcome, Rejected) else outcome

    @override
    def respond(self, frame: bytes) -> None:
        # The server does not say for which call it asks.
        self.respond_unasked(frame)
