"""The way to a server: straight, or through a proxy of the environment. It is found at the first request."""

import logging
import ssl
from collections.abc import Mapping
from typing import Any, Final

import httpx2

from mcp_nursery.actors.records import frozen

from ..overrides import override
from .environment import EnvironmentUnusable, Proxy, context_for, proxy_for

# At DEBUG it writes the user and password for a proxy.
logging.getLogger("httpcore2.socks").setLevel(logging.INFO)

_PROXY: Final = "mcp_nursery.proxy"
"""The extension of a request that holds the proxy."""
_NOT_CONNECTED: Final = "Proxy Server could not connect"
"""The words of httpcore2 for what a proxy over SOCKS refuses besides the user and password."""


class Unroutable(httpx2.RequestError):
    """The environment of this process allows no way to the server. Nothing was sent."""


class WrongCredentials(httpx2.ProxyError):
    """The proxy wants another user and password. Nothing was sent."""


@frozen
class _Way:
    """The connections to one origin."""

    transport: httpx2.AsyncHTTPTransport
    proxy: Proxy | None


class Routes(httpx2.AsyncBaseTransport):
    """The connections of one client of httpx2, to any origin. The authorities in `ca_file` are trusted, too."""

    def __init__(self, limits: httpx2.Limits | None = None, ca_file: str | None = None) -> None:
        self._limits = limits or httpx2.Limits()
        self._ca_file = ca_file
        self._ways: dict[tuple[str, str, int | None], _Way] = {}

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        origin = url.scheme, url.host, url.port
        if origin not in self._ways:  # with a way nothing waits before its pool is asked: see `HttpClient.close_idle`
            try:
                proxy = proxy_for(f"{url.scheme}://{url.netloc.decode('ascii')}")
                context = await context_for(url.scheme, proxy, self._ca_file)
            except EnvironmentUnusable as error:
                raise Unroutable(str(error)) from None
            self._ways.setdefault(origin, self._open(context, proxy))
        way = self._ways[origin]
        if way.proxy is None:
            return await way.transport.handle_async_request(request)
        request.extensions = {**request.extensions, _PROXY: way.proxy}
        if not way.proxy.is_socks:
            return await way.transport.handle_async_request(request)
        return await _send_by_socks(way.transport, request)

    def _open(self, context: ssl.SSLContext, proxy: Proxy | None) -> _Way:
        through = None
        if proxy is not None:
            through = httpx2.Proxy(proxy.url, ssl_context=context if proxy.url.scheme == "https" else None)
        transport = httpx2.AsyncHTTPTransport(verify=context, trust_env=False, limits=self._limits, proxy=through)
        return _Way(transport, proxy)

    @override
    async def aclose(self) -> None:
        for way in [*self._ways.values()]:
            await way.transport.aclose()


async def _send_by_socks(transport: httpx2.AsyncHTTPTransport, request: httpx2.Request) -> httpx2.Response:
    """Send a request. httpcore2 leaves a connection open on which a proxy did not agree, and what it says otherwise
    is no error of httpx2."""
    from socksio.exceptions import SOCKSError

    inner = request.extensions.get("trace")
    streams: list[Any] = []

    async def trace(event: str, info: Mapping[str, Any]) -> None:
        if event == "socks.setup_socks5_connection.started":
            streams.append(info["stream"])
        elif event == "socks.setup_socks5_connection.failed":
            await streams[-1].aclose()
        if inner is not None:
            await inner(event, info)

    request.extensions = {**request.extensions, "trace": trace}
    try:
        return await transport.handle_async_request(request)
    except SOCKSError as error:
        raise httpx2.ProxyError("it does not speak SOCKS5") from error
    except httpx2.ProxyError as error:
        if str(error).startswith(_NOT_CONNECTED):
            raise
        raise WrongCredentials("it wants other credentials") from error


def proxy_of(request: httpx2.Request) -> Proxy | None:
    """The proxy that a request went through; None if it went straight to the server."""
    return request.extensions.get(_PROXY)
