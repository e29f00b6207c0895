"""Requests to one server, with address, headers and authorisation. Redirects are reported; the sender follows them."""

import math
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http.cookiejar import CookieJar
from typing import Final

import httpx2
import trio

from mcp_nursery.actors.records import frozen

from ..overrides import override
from ..version import VERSION
from . import limits
from .address import Address
from .auth import ON_REFUSED, Layers
from .responses import check_head
from .routes import Routes

_USER_AGENT = f"mcp-nursery/{VERSION}"
_POOL_SIZE: Final = 16
"""Requests of one pool of httpx2. For each request it looks twice at all of its connections, and asks the system about
each idle one, so that 128 requests at once take 1.8 times as long with a single pool."""
_BECOME_GET = (302, 303)
"""Redirects that turn a POST into a GET. 301 does so by old custom alone: a POST follows it like 308."""


@frozen
class Redirection:
    """The redirect of a server to another URL."""

    problem: str
    """One line for people."""
    target: httpx2.URL | None = None
    """The URL; None if it is not to be followed."""


class _Pool:
    """Connections, and the count of requests that use them."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.under_way = 0
        self.idle_until = math.inf
        """The time at which its idle connections are to be closed; infinite while there are none."""

    def count_end(self) -> None:
        """Count a request as over: its connection may be idle."""
        self.under_way -= 1
        self.idle_until = trio.current_time() + limits.CONNECTION_IDLE_LIMIT


class _PoolStream(httpx2.AsyncByteStream):
    """The body of an answer, which counts in its pool until closed."""

    def __init__(self, body: httpx2.AsyncByteStream, pool: _Pool) -> None:
        self._body = body
        self._pool = pool

    @override
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body.__aiter__()

    @override
    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        finally:
            self._pool.count_end()  # once: an answer is closed once


class HttpClient:
    """The client for requests to one origin. Follows no redirect by itself.

    `make` makes the httpx2 client of a pool, which keeps that many idle connections. The pool closes connections that
    are idle for too long only at the next request: `close_idle` does so in time. Streams that last have connections of
    their own.
    """

    def __init__(self, make: Callable[[int], httpx2.AsyncClient], address: Address) -> None:
        self._make = make
        self._pools: list[_Pool] = []
        """The pools: several while more requests are under way than one takes."""
        self._lasting: _Pool | None = None
        """The pool of the streams that last."""
        self.address = address
        """The address of the server."""

    @property
    def idle_until(self) -> float:
        """The time at which idle connections are to be closed; infinite while there are none."""
        return min((pool.idle_until for pool in self._pools), default=math.inf)

    async def close_idle(self) -> None:
        """Close connections that have been idle for long enough."""
        now = trio.current_time()
        idle = [pool for pool in self._pools if pool.idle_until <= now]
        used, unused = [pool for pool in idle if pool.under_way], [pool for pool in idle if not pool.under_way]
        self._pools = [pool for pool in self._pools if pool not in unused]
        for pool in used:
            pool.idle_until = math.inf
        for pool in unused:  # first: a cancellation may come in what follows, and nobody else knows these any more
            await _close(pool)
        for pool in used:
            await self._close_idle_in(pool)

    async def _close_idle_in(self, pool: _Pool) -> None:
        """Close idle connections of a pool with others in use. httpx2 does so at the next request: this one is
        cancelled before it has a connection."""
        with trio.CancelScope() as scope:
            scope.cancel()
            await pool.client.send(pool.client.build_request("GET", self.address.url), auth=None)

    async def close(self) -> None:
        """Close all connections."""
        for pool in self._pools:
            await _close(pool)
        if self._lasting is not None:
            await _close(self._lasting)

    def _pool(self, *, lasting: bool) -> _Pool:
        """The pool for a request: the first pool with room, so that later pools fall idle."""
        if lasting:
            if self._lasting is None:
                self._lasting = _Pool(self._make(0))
            return self._lasting
        for pool in self._pools:
            if pool.under_way < _POOL_SIZE:
                return pool
        pool = _Pool(self._make(_POOL_SIZE))
        self._pools.append(pool)
        return pool

    async def send(
        self,
        method: str,
        url: httpx2.URL,
        headers: Mapping[str, str],
        body: AsyncIterable[bytes] | None = None,
        *,
        lasting: bool = False,
        on_refused: Callable[[], None] | None = None,
    ) -> httpx2.Response:
        """Send a request and return the head of its answer, which the caller closes. `lasting`: the answer is a stream
        that is held open. `on_refused` is called each time the server refuses the request for its authorisation, before
        the wait for another token.

        Raises:
            httpx2.RequestError: There is no answer.
            TooLarge: Its head is over the limit.
            AuthFailed: The authorisation itself has failed.
        """
        encoded = httpx2.Headers(dict(headers), encoding="utf-8")  # ids of events may be of any letters
        extensions: dict[str, object] = {"trace": check_head}
        if on_refused is not None:
            extensions[ON_REFUSED] = on_refused
        pool = self._pool(lasting=lasting)
        request = pool.client.build_request(method, url, headers=encoded, content=body, extensions=extensions)
        request.url = self.address.complete(request.url)  # not shown in logs; `build_request` would undo it
        pool.under_way += 1
        try:
            response = await pool.client.send(request, stream=True, follow_redirects=False)
        except BaseException:
            pool.count_end()
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # it was asked for as a stream
        if response.is_closed:  # the user's authorisation has read it
            pool.count_end()
        else:
            response.stream = _PoolStream(response.stream, pool)
        return response

    def redirection(self, response: httpx2.Response) -> Redirection | None:
        """The redirect in an answer, to be followed within the origin and with the same method; None if there is
        none."""
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
async def open_client(
    address: Address, headers: Mapping[str, str], ca_file: str | None = None
) -> AsyncGenerator[HttpClient, None]:
    """Open a client; leaving the block closes its connections. `ca_file`: see `Routes`."""
    make = partial(
        httpx2.AsyncClient,
        auth=Layers(address, headers),
        cookies=CookieJar(),  # the same for all pools: a balancer may find the session by a cookie
        headers={"user-agent": _USER_AGENT},
        timeout=None,
    )
    client = HttpClient(lambda kept: make(transport=Routes(_limits(kept), ca_file)), address)
    try:
        yield client
    finally:
        await client.close()


def _limits(kept: int) -> httpx2.Limits:
    return httpx2.Limits(
        max_connections=None, max_keepalive_connections=kept, keepalive_expiry=limits.CONNECTION_IDLE_LIMIT
    )


async def _close(pool: _Pool) -> None:
    with trio.CancelScope(shield=True):  # takes no time
        await pool.client.aclose()
