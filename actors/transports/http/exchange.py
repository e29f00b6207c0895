"""One frame of ours over HTTP: one task owns it from its first byte to its outcome, and its end closes it.

The sender knows which call waits. So `sent` is true from the moment in which the frame leaves, a decided call is no
longer sent, an answer counts only for the request it answers, and an exchange that ends without an answer decides the
call that waits for one.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

import httpx2
import trio

from ...errors import folded
from ...jsonrpc.carrier import Origin, Outgoing
from ...protocol import MCP_PROTOCOL_VERSION_HEADER, MODERN_PROTOCOL_VERSIONS
from ...reply import ReplySlot
from . import limits
from .address import evidence_of
from .auth import AuthFailed, AuthUnavailable, unavailable
from .challenge import challenge_of
from .client import HttpClient
from .failures import REDIRECTS, Evidence, Fault, Phase
from .responses import EVENTS, TooLarge, media_type, read_body, read_refusal, refused

logger: Final = logging.getLogger(__name__)

SESSION: Final = "mcp-session-id"
_GIVEN_UP: Final = Evidence("the HTTP request was abandoned", Fault.BROKEN)


class Conversation(Protocol):
    """What an exchange needs of the carrier that it is part of."""

    client: HttpClient
    frame_limit: int
    """Bytes of one answer, and of one event."""
    url: httpx2.URL
    """Where frames go."""
    moved: httpx2.URL | None
    """Where a redirect led to: frames go there instead, until it redirects a call again."""
    always_in_session: bool
    """Whether the server may tell any request that the session has expired."""

    def headers(self, outgoing: Outgoing) -> dict[str, str]:
        """The headers that this frame is sent with."""
        ...

    def begin(self, exchange: "Exchange") -> None:
        """Start an exchange in a task of its own."""
        ...

    def ended(self, exchange: "Exchange") -> None:
        """An exchange is over."""
        ...

    def fail(self, exchange: "Exchange", evidence: Evidence) -> None:
        """An exchange has failed: end the connection if that is what it means, else decide the request that waits."""
        ...

    def hear(self) -> None:
        """The server sent something."""
        ...

    async def take_in(self, frame: bytes, origin: Origin) -> None:
        """Read what the server sent."""
        ...


class _Anew:
    """A body that can be sent again: authorisation does so when a token has expired."""

    def __init__(self, body: Callable[[], AsyncIterator[bytes]]) -> None:
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body()


class Exchange:
    """A frame that needs no answer: a notification, or a response of ours.

    Args:
        carrier: The carrier that it is part of.
        outgoing: What is sent.
        failed: Called if it fails and the connection is not lost with it.
    """

    phase: Phase | None = None
    """The phase that it counts as; None: the phase of the conversation."""
    lasts: bool = False
    """Whether it is a stream that is held open."""

    def __init__(
        self, carrier: Conversation, outgoing: Outgoing, failed: Callable[[Evidence], None] | None = None
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
        """The slot that waits for the answer, if there is one."""
        return self.outgoing.slot

    @property
    def is_call(self) -> bool:
        """Whether a server acts on it."""
        return self.outgoing.bounded

    @property
    def is_modern(self) -> bool:
        """Whether closing it tells the server that nobody waits."""
        return self.headers.get(MCP_PROTOCOL_VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS

    @property
    def in_session(self) -> bool:
        """Whether the server may tell it that the session has expired."""
        return self.carrier.always_in_session or SESSION in self.headers

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for its answer any more."""
        return self.slot is not None and self.slot.decided

    @property
    def _is_abandoned(self) -> bool:
        """Whether nobody waits for its answer or its failure."""
        return self.slot is not None and self.slot.abandoned

    @property
    def is_resumption(self) -> bool:
        """Whether the server has already accepted what it sends."""
        return False

    async def run(self) -> None:
        """Run from the first byte to the outcome: whatever happens, the call that waits is decided afterwards."""
        evidence: Evidence | None = _GIVEN_UP
        try:
            with self.scope:
                evidence = await self._converse()
        except AuthFailed as error:
            evidence = Evidence(f"authorisation failed: {folded(error.__cause__)}", status=HTTPStatus.UNAUTHORIZED)
        except AuthUnavailable as error:
            evidence = unavailable(error)
        except Exception as error:
            logger.exception("an HTTP exchange crashed; please report it")
            evidence = Evidence(f"the exchange crashed: {type(error).__name__}", Fault.BROKEN)
        finally:
            self.carrier.ended(self)
            if evidence is not None and not self.scope.cancelled_caught and not self._is_abandoned:
                self.carrier.fail(self, evidence)
            self.done.set()

    async def _converse(self) -> Evidence | None:
        """The whole exchange; what went wrong, if anything."""
        return await self._once()

    async def _once(self) -> Evidence | None:
        """One request and its answer."""
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
        """Send it, along redirects unless it is a call: whether to send that again is decided elsewhere."""
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
        """The server redirects: send what follows to the target."""
        leads_on = self.is_call and self.carrier.moved is not None  # perhaps in a circle: the next begins anew
        self.carrier.moved = None if leads_on else target

    async def _request(self) -> httpx2.Response:
        headers = {**self.headers, "content-length": str(len(self.outgoing.frame))}
        return await self.carrier.client.send("POST", self._url, headers, _Anew(self._body), lasting=self.lasts)

    async def _body(self) -> AsyncIterator[bytes]:
        """The frame: the client asks for it when the head has been written, and it leaves then, and not before."""
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
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            self.carrier.hear()  # a gateway's answer is no sign of the server
        if status >= HTTPStatus.BAD_REQUEST:
            self.error = await read_refusal(response, limit)
            return refused(status, self.error, in_session=self.in_session, challenge=challenge_of(response))
        if status in REDIRECTS:
            return self._moved(response)
        return await self._take(response, limit)

    def _moved(self, response: httpx2.Response) -> Evidence:
        status, moved = response.status_code, self.carrier.client.redirection(response)
        if moved is None:
            return Evidence(f"HTTP {status} instead of an answer", status=status)
        problem, followed = moved.problem, moved.target is not None
        if followed:
            why = "calls are not sent along redirects" if self.is_call else f"more than {limits.REDIRECTS} in a row"
            problem = f"{problem}: {why}"
        return Evidence(problem, status=status, moved=followed)

    async def _take(self, response: httpx2.Response, limit: trio.CancelScope) -> Evidence | None:
        """Read the answer to a request that was not refused."""
        if media_type(response) != EVENTS:
            with contextlib.suppress(TooLarge):  # the body does not matter
                await read_body(response, limit, limits.REFUSAL_LIMIT)
        return None
