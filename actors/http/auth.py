"""Authorisation over HTTP: the headers that a request gets, which of them take precedence, and the challenge of a
server that misses some (`WWW-Authenticate`, RFC 6750 and RFC 9728)."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Final, cast

import httpx2
import trio

from ..errors import one_line
from ..fairness import Pace
from ..outcomes import Challenge
from ..overrides import override
from . import limits
from .address import Address
from .failures import Evidence, Fault

_PARAMETER = re.compile(r'\b(error|scope|resource_metadata)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))', re.IGNORECASE)
_LONGEST = 1000
"""Characters of one parameter."""
_REFUSED = (401, 403)

INSUFFICIENT_SCOPE = "insufficient_scope"
"""The error for a valid token that lacks a scope."""
USE_NONCE: Final = "use_dpop_nonce"
"""The error for a proof (DPoP) without the nonce that the answer brings."""
PROBLEMS: Final = {"invalid_dpop_proof": " (is the clock of this machine right?)"}
"""Hints for a person, by error."""


def is_refused(response: httpx2.Response) -> bool:
    """True if the server refuses the request for its authorisation: it has not acted, and a token may help."""
    challenge = challenge_of(response)
    lacks_scope = challenge is not None and challenge.error == INSUFFICIENT_SCOPE
    return response.status_code == HTTPStatus.UNAUTHORIZED or lacks_scope


def challenge_of(response: httpx2.Response) -> Challenge | None:
    """The challenge of a refusal; None if there is none."""
    if response.status_code not in _REFUSED:
        return None
    said = ", ".join(response.headers.get_list("www-authenticate"))
    found: dict[str, str] = {}
    for name, quoted, bare in _PARAMETER.findall(said):
        found.setdefault(name.lower(), one_line(re.sub(r"\\(.)", r"\1", quoted) or bare, _LONGEST))
    return Challenge(**found) if found else None


ON_REFUSED: Final = "mcp_nursery.on_refused"
"""The extension of a request that is called when the server refuses it for its authorisation."""

_OF_THE_PROTOCOL = frozenset(
    {
        "accept",
        "content-length",
        "content-type",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
        "mcp-session-id",
    }
)


class AuthFailed(Exception):
    """The authorisation itself has failed."""


class AuthUnavailable(Exception):
    """A request was refused for lack of a token, and no token can be got just now. The text is for people."""

    def __init__(self, problem: str, retry_in: float | None = None) -> None:
        self.retry_in = retry_in
        """Seconds for which the issuer wants to be asked nothing; None if it did not say."""
        super().__init__(problem)


def unavailable(error: AuthUnavailable) -> Evidence:
    """The evidence: the request was refused, which may pass."""
    return Evidence(str(error), Fault.UNREACHED, status=401, retry_in=error.retry_in)


class Layers(httpx2.Auth):
    """Authorisation by headers, of which later ones replace earlier ones: the client's own, those of authorisation, the
    user's.

    The protocol's own headers stay. Nothing is sent to another origin.
    """

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        self._address = address
        self._headers = dict(headers)
        self._inner = address.auth or httpx2.Auth()
        self.requires_request_body: bool = self._inner.requires_request_body
        self.requires_response_body: bool = self._inner.requires_response_body

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Yield the requests to send. A refused one may wait here, for minutes, to be sent again: its sender is
        notified by the extension `ON_REFUSED`, since the server has nothing of it meanwhile.

        Raises:
            AuthFailed: The authorisation failed.
        """
        if not self._address.has_same_origin(request.url):
            yield request
            return
        flow = self._inner.async_auth_flow(request)
        try:
            outgoing = await _next(flow, None)
            while outgoing is not None:
                if outgoing is request:
                    self._add_headers(request)
                response = yield outgoing
                if outgoing is request and is_refused(response) and ON_REFUSED in request.extensions:
                    request.extensions[ON_REFUSED]()
                outgoing = await _next(flow, response)
                if outgoing is not None and not response.is_stream_consumed:
                    _discard(response)  # the client reads it to its end before it sends the next request
        finally:
            await flow.aclose()

    def _add_headers(self, request: httpx2.Request) -> None:
        for name, value in self._headers.items():
            if not _is_taken(name.lower(), request):
                request.headers[name] = value


class _DiscardedBody(httpx2.AsyncByteStream):
    """A body that is read up to its limit and dropped: only if it ends within can its connection be used again."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, pace = 0, Pace()
        async with aclosing(cast("AsyncGenerator[bytes, None]", aiter(self._body))) as parts:
            async for part in parts:
                size += len(part)
                if size > limits.REFUSAL_LIMIT:
                    return
                if pace.spent(len(part)):
                    await trio.lowlevel.checkpoint()
                yield b""

    @override
    async def aclose(self) -> None:
        await self._body.aclose()


def _discard(response: httpx2.Response) -> None:
    """Have the client read and drop a body, within bounds."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # the client is asynchronous
    response.headers.pop("content-encoding", None)  # a few bytes may decode to terabytes
    response.stream = _DiscardedBody(response.stream)


async def _next(
    flow: AsyncGenerator[httpx2.Request, httpx2.Response], response: httpx2.Response | None
) -> httpx2.Request | None:
    """The next request to send; None if there is none."""
    try:
        return await (anext(flow) if response is None else flow.asend(response))
    except StopAsyncIteration:
        return None
    except (httpx2.RequestError, AuthUnavailable):
        raise  # a RequestError is about a request of the flow's own
    except Exception as error:
        raise AuthFailed from error


def _is_taken(name: str, request: httpx2.Request) -> bool:
    """True if the protocol itself uses this header."""
    return name in _OF_THE_PROTOCOL or (name.startswith("mcp-param-") and name in request.headers)
