"""The headers of a request, and which of them take precedence."""

from collections.abc import AsyncGenerator, Mapping

import httpx2

from .address import Address
from .failures import Evidence, Fault

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


def unavailable(error: AuthUnavailable) -> Evidence:
    """The evidence: the request was refused, and this may pass."""
    return Evidence(str(error), Fault.UNREACHED, status=401)


class Layers(httpx2.Auth):
    """Adds headers to a request; later ones replace earlier ones: the client's own, those of authorisation, the user's.

    The protocol's own headers stay. Nothing is sent to another origin.
    """

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        self._address = address
        self._headers = dict(headers)
        self._inner = address.auth or httpx2.Auth()
        self.requires_request_body: bool = self._inner.requires_request_body
        self.requires_response_body: bool = self._inner.requires_response_body

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """See `httpx2.Auth`: what it yields is sent.

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
                outgoing = await _next(flow, (yield outgoing))
        finally:
            await flow.aclose()

    def _add_headers(self, request: httpx2.Request) -> None:
        for name, value in self._headers.items():
            if not _is_taken(name.lower(), request):
                request.headers[name] = value


async def _next(
    flow: AsyncGenerator[httpx2.Request, httpx2.Response], response: httpx2.Response | None
) -> httpx2.Request | None:
    """The next request to send; None if there is none."""
    try:
        return await (anext(flow) if response is None else flow.asend(response))
    except StopAsyncIteration:
        return None
    except (httpx2.RequestError, AuthUnavailable):
        raise  # the former of what it has sent itself
    except Exception as error:
        raise AuthFailed from error


def _is_taken(name: str, request: httpx2.Request) -> bool:
    """Whether the protocol itself uses this header."""
    return name in _OF_THE_PROTOCOL or (name.startswith("mcp-param-") and name in request.headers)
