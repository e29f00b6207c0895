"""The HTTP client that the SDK's transports are given: no failure of one request reaches another.

The SDK ends a whole connection when one POST raises. So nothing raises here: a request that failed is answered with a
JSON-RPC error made up on the spot, and what really happened is told to the connection and kept with the exchange.
"""

import logging
import math
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import httpx2
import trio

from ..connection.exchange import Exchange, Witness, current_exchange
from ..failures import Evidence, Fault
from ..mailbox import Mailbox
from .http_address import Address, evidence_of
from .http_answers import (
    POST_LIMIT,
    Frame,
    accepted,
    error_in,
    in_full,
    media_type,
    read_body,
    read_frame,
    refused,
    rejection,
    stand_in,
)
from .http_layers import Layers

logger = logging.getLogger(__name__)

ANSWER_LIMIT = 64 * 1024 * 1024
"""Bytes of one answer, and of one event, as for one line of a process."""
_REFUSAL_LIMIT = 64 * 1024
"""Bytes read of an error page."""
_REDIRECTS = 5
_USER_AGENT = f"mcp-nursery/{version('mcp-nursery')}"
_EVENTS = "text/event-stream"
_SESSION = "mcp-session-id"


class _Heard(httpx2.AsyncByteStream):
    """An answer that comes in parts: each of them is a sign of life."""

    def __init__(
        self,
        parts: AsyncIterable[bytes],
        witness: Witness,
        *,
        ended: Callable[[Evidence], None],
        address: Address,
    ) -> None:
        self._parts = parts
        self._witness = witness
        self._ended = ended
        self.address = address

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = aiter(self._parts)
        try:
            async for part in parts:
                self._witness.hear()
                yield part
        except httpx2.RequestError as error:
            self._ended(evidence_of(error, self.address))
            raise
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()
        self._ended(Evidence(f"{self.address.host} closed the stream", Fault.ENDED))

    async def aclose(self) -> None:
        if isinstance(self._parts, httpx2.AsyncByteStream):
            await self._parts.aclose()


class HttpClient(httpx2.AsyncClient):
    """Sends what the SDK gives it, each POST under a time limit of its own, and never raises for one."""

    def __init__(
        self, address: Address, headers: Mapping[str, str], witness: Witness, *, answers_apart: bool = False
    ) -> None:
        super().__init__(
            auth=Layers(address, headers),
            headers={"user-agent": _USER_AGENT},
            timeout=None,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        )
        self.address = address
        """Where everything is sent."""
        self._witness = witness
        self._answers_apart = answers_apart
        self._errands: Mailbox[tuple[httpx2.Request, Frame, Exchange | None]] = Mailbox(math.inf)

    async def run_errands(self) -> None:
        """Send what nobody waits for, until cancelled. Runs as long as the SDK has the client."""
        async with trio.open_nursery() as nursery:
            while True:
                for errand in await self._errands.take():
                    nursery.start_soon(self._deliver, *errand)

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send. A POST is always answered; only a GET raises, which the SDK's transports expect.

        Raises:
            httpx2.RequestError: A GET failed.
        """
        if request.method == "GET":
            return await self._open_stream(request, options)
        if request.method != "POST":
            return await self._take_leave(request, options)
        frame = read_frame(await request.aread())
        exchange = current_exchange() if frame.is_request else None
        if self._witness.is_lost:
            return accepted(request)
        if _SESSION in request.headers:
            self._witness.in_session()
        if self._nobody_waits(frame):
            self._errands.put_nowait((request, frame, exchange))
            return accepted(request)
        answer = await self._exchange(request, frame, exchange, options)
        if isinstance(answer, httpx2.Response):
            return answer
        self._tell(answer, exchange)
        return rejection(request, frame, stand_in(answer)) if frame.is_request else accepted(request)

    def _nobody_waits(self, frame: Frame) -> bool:
        """The SDK sends these one after another: a server that holds one back would hold up all that follow."""
        if frame.is_request:
            return self._answers_apart
        return frame.method != "notifications/initialized"  # what follows must not overtake it

    async def _deliver(self, request: httpx2.Request, frame: Frame, exchange: Exchange | None) -> None:
        """Send what is answered elsewhere, or not at all."""
        for _ in range(_REDIRECTS):
            answer = await self._exchange(request, frame, exchange, {"stream": True})
            if isinstance(answer, Evidence):
                self._tell(answer, exchange)
                if exchange is not None:
                    exchange.give_up(answer)
                return
            await answer.aclose()
            if answer.next_request is None or not self.address.has_same_origin(answer.next_request.url):
                return
            request = answer.next_request

    def _tell(self, evidence: Evidence, exchange: Exchange | None) -> None:
        if exchange is not None:
            exchange.fail(evidence)
            if evidence.fault is Fault.MUTE:
                exchange.give_up(evidence)  # the server is told that nobody waits any more
        self._witness.see(evidence)

    # -- one exchange ---------------------------------------------------------------------------------------------

    async def _exchange(
        self, request: httpx2.Request, frame: Frame, exchange: Exchange | None, options: Mapping[str, Any]
    ) -> httpx2.Response | Evidence:
        """Send, and read the answer unless it is a stream of events."""
        if exchange is not None:
            exchange.evidence = None
        limit = trio.CancelScope()
        if exchange is None or not exchange.limited:
            limit.deadline = trio.current_time() + POST_LIMIT
        with limit:
            try:
                response = await super().send(self._addressed(request), **options)
                return await self._receive(frame, response, exchange, limit)
            except httpx2.RequestError as error:
                return evidence_of(error, self.address)
        return Evidence(f"{self.address.host} did not answer within {POST_LIMIT:g} s", Fault.MUTE)

    async def _receive(
        self, frame: Frame, response: httpx2.Response, exchange: Exchange | None, limit: trio.CancelScope
    ) -> httpx2.Response | Evidence:
        status = response.status_code
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            self._witness.hear()  # a gateway's word is none of the server's
        if status < HTTPStatus.BAD_REQUEST and media_type(response) == _EVENTS:
            limit.deadline = math.inf
            response.stream = self._heard(response, ended=_nothing)
            return response
        body = await read_body(response, limit, ANSWER_LIMIT if response.is_success else _REFUSAL_LIMIT)
        if body is None and response.is_success:
            return Evidence(f"an answer of more than {ANSWER_LIMIT // 2**20} MiB", Fault.BROKEN)
        whole = in_full(response, body or b"")
        if response.next_request is not None and exchange is not None:
            exchange.fail(self._redirected(response))  # forgotten if the SDK follows it
        if status < HTTPStatus.BAD_REQUEST:
            return whole
        error = error_in(body or b"")
        in_session = self._answers_apart or _SESSION in response.request.headers
        evidence = refused(status, error, in_session=in_session)
        if error is None or self._answers_apart or not frame.is_request:
            return evidence
        self._tell(evidence, exchange)
        return rejection(response.request, frame, error)  # with the server's own code, words and data

    def _redirected(self, response: httpx2.Response) -> Evidence:
        assert response.next_request is not None
        target = response.next_request.url
        told = f"HTTP {response.status_code} redirect to {target.scheme}://{target.host}, which is not followed"
        return Evidence(told, status=response.status_code)

    def _addressed(self, request: httpx2.Request) -> httpx2.Request:
        request.url = self.address.complete(request.url)
        return request

    # -- the rest -------------------------------------------------------------------------------------------------

    async def _open_stream(self, request: httpx2.Request, options: Mapping[str, Any]) -> httpx2.Response:
        try:
            response = await super().send(self._addressed(request), **options)
        except httpx2.RequestError as error:
            self._see_stream(evidence_of(error, self.address))
            raise
        if response.is_success and media_type(response) == _EVENTS:
            self._witness.hear()
            response.stream = self._heard(response, ended=self._see_stream)
        else:
            self._see_stream(self._no_stream(response))
        return response

    def _no_stream(self, response: httpx2.Response) -> Evidence:
        status = response.status_code
        if response.next_request is not None:
            return self._redirected(response)
        if response.is_success:
            told = f"HTTP {status} with {media_type(response) or 'nothing'} where a stream of events was wanted"
            return Evidence(told, status=status)
        return refused(status)

    def _heard(self, response: httpx2.Response, ended: Callable[[Evidence], None]) -> _Heard:
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # of an AsyncClient
        return _Heard(response.stream, self._witness, ended=ended, address=self.address)

    def _see_stream(self, evidence: Evidence) -> None:
        self._witness.see(evidence, stream=self._witness.is_open or not self._answers_apart)

    async def _take_leave(self, request: httpx2.Request, options: Mapping[str, Any]) -> httpx2.Response:
        """End the session, unless there is none left to end."""
        if not self._witness.is_lost:
            try:
                return await super().send(self._addressed(request), **options)
            except httpx2.RequestError as error:
                logger.debug("the session could not be ended: %s", evidence_of(error, self.address).told)
        return httpx2.Response(HTTPStatus.NO_CONTENT, request=request)


def _nothing(_evidence: Evidence) -> None:
    """The SDK itself tells who asked that an answer was cut off."""
