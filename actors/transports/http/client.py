"""Requests to one server, with address, headers and authorisation. Redirects are reported; the sender follows them."""

from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version

import httpx2
import trio
from attrs import frozen

from ..tls import context_for
from .address import Address
from .auth import Layers
from .responses import check_head

_USER_AGENT = f"mcp-nursery/{version('mcp-nursery')}"
_BECOME_GET = (302, 303)
"""Redirects that make a GET of a POST. 301 does so by old custom alone: a POST goes along it as along 308."""


@frozen
class Redirection:
    """A redirect to where the server says that the resource is."""

    problem: str
    """In one line for people."""
    target: httpx2.URL | None = None
    """None if it is not to be followed."""


class HttpClient:
    """Sends requests to one origin, and never along a redirect by itself."""

    def __init__(self, client: httpx2.AsyncClient, address: Address) -> None:
        self._client = client
        self.address = address
        """Where the server is."""

    async def send(
        self, method: str, url: httpx2.URL, headers: Mapping[str, str], body: AsyncIterable[bytes] | None = None
    ) -> httpx2.Response:
        """Send a request and return the head of its answer, which the caller closes.

        Raises:
            httpx2.RequestError: There is no answer.
            TooLarge: Its head is over the limit.
            AuthFailed: The authorisation itself has failed.
        """
        encoded = httpx2.Headers(dict(headers), encoding="utf-8")  # ids of events may be of any letters
        extensions = {"trace": check_head}
        request = self._client.build_request(method, url, headers=encoded, content=body, extensions=extensions)
        request.url = self.address.complete(request.url)  # not shown in logs; `build_request` would undo it
        return await self._client.send(request, stream=True, follow_redirects=False)

    def redirection(self, response: httpx2.Response) -> Redirection | None:
        """The redirect in an answer, to be followed within the origin and with the same method; None if it is none."""
        follow = response.next_request
        if follow is None:
            return None
        url, method = follow.url, response.request.method
        where = f"HTTP {response.status_code} redirect to {origin_of(url)}"
        reason = None
        if not self.address.has_same_origin(url):
            reason = "another origin"
        elif url.userinfo:
            reason = "its URL holds a user name"
        elif method == "POST" and response.status_code in _BECOME_GET:
            reason = "the method would change to GET"
        if reason is not None:
            return Redirection(f"{where}, which is not followed: {reason}")
        return Redirection(where, url)


def origin_of(url: httpx2.URL) -> str:
    """Scheme, host and port, always with the port."""
    host = f"[{url.host}]" if ":" in url.host else url.host
    port = url.port or {"http": 80, "https": 443}.get(url.scheme, 0)
    return f"{url.scheme}://{host}:{port}"


@asynccontextmanager
async def open_client(address: Address, headers: Mapping[str, str]) -> AsyncGenerator[HttpClient, None]:
    """A client for the block; leaving it closes the connections."""
    client = httpx2.AsyncClient(
        auth=Layers(address, headers),
        headers={"user-agent": _USER_AGENT},
        timeout=None,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        verify=await context_for(address.url),
    )
    try:
        yield HttpClient(client, address)
    finally:
        with trio.CancelScope(shield=True):  # takes no time
            await client.aclose()
