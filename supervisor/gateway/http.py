"""The gateway over streamable HTTP: an ASGI application for Trio. Who comes, and whether he is let in."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, MutableMapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
import trio

from mcp_nursery.actors.errors import UnknownServer
from mcp_nursery.actors.nurseries import open_bare_nursery

from .access import EVERYTHING, Authenticate, Principal, Refused, path_of
from .attendance import Attendance
from .bytes_under_way import BytesUnderWay
from .figures import Figures
from .gateway import Gateway
from .http_limits import Admission, HttpLimits
from .http_messages import HttpMessages
from .http_request import HttpRequest, Receive, UnderWay, expired
from .http_sessions import HttpSessions
from .oauth import WELL_KNOWN, OAuthResource
from .responses import Response
from .served_names import LOOPBACK, ServedNames

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

Metrics = Callable[[], Awaitable[bytes]]


async def user_of(scope: Scope) -> Principal | None:
    """Who a middleware of the host's says that it is, by `scope["user"]`; None if there is no name. The default of
    `open_http`."""
    name = getattr(scope.get("user"), "username", None)
    return Principal(name) if isinstance(name, str) and name else None


class HttpApplication:
    """An ASGI application. Made by `open_http`."""

    def __init__(
        self,
        gateway: Gateway,
        nursery: trio.Nursery,
        *,
        server: str | None,
        names: ServedNames,
        authenticate: Authenticate,
        oauth: OAuthResource | None,
        limits: HttpLimits,
        meter_provider: "MeterProvider | None",
        metrics: Metrics | None,
    ) -> None:
        self._gateway = gateway
        self._server = server
        self._names = names
        self._authenticate = authenticate
        self._oauth = oauth
        self._metrics = metrics
        self._figures = Figures(meter_provider)
        self._kept = BytesUnderWay(limits.kept, limits.kept_of_client)
        self._sessions = HttpSessions(gateway, nursery, limits, self._figures, self._kept.account)
        self._admission = Admission(limits, self._figures)
        self._messages = HttpMessages(gateway, self._sessions, limits, Attendance(nursery), self._kept)

    @property
    def kept(self) -> Mapping[str, int]:
        """Bytes that wait for its clients, or of what they have asked for, by kind: `answers`, `news`, `questions`,
        `requests`."""
        return self._kept.account.kept

    def end_clients(self, of: Callable[[Principal | None], bool]) -> None:
        """End the sessions of these clients, and all that is done or kept for them. They may come again.

        Args:
            of: Whether this client is one; None is all whom nobody has authenticated.
        """
        self._sessions.end_clients(of)
        self._gateway.end_clients(of)
        self._admission.refuse(of, _ending if self._gateway.draining else expired)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            lines = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
            http = HttpRequest(scope["method"], path_of(scope), dict(lines), lines, receive, Response(send))
            try:
                await self._route(http, scope)
            except Refused as refused:
                self._figures.refused(refused.status)
                http.response.headers.update(refused.headers)
                await http.response.end(refused.status, refused.reason)

    async def _route(self, http: HttpRequest, scope: Scope) -> None:
        first, _, rest = http.path.strip("/").partition("/")
        if first in ("healthz", "readyz") and not rest:
            ready = first == "healthz" or (not self._gateway.draining and self._gateway.is_settled)
            await http.response.end(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, "ok" if ready else "no")
            return
        if first == ".well-known" and self._oauth is not None:
            self._names.check(http.headers, http.lines)
            await self._describe(http, self._oauth, *rest.split("/", 1))
            return
        if first == "metrics" and not rest and self._metrics is not None:
            self._names.check(http.headers, http.lines)
            await self._show(http, self._metrics, await self._authenticate(scope))
            return
        if first != "mcp" or (rest and self._server is not None):
            raise Refused(HTTPStatus.NOT_FOUND, "not found")
        self._names.check(http.headers, http.lines)
        await self._serve(http, rest or self._server, await self._authenticate(scope))

    async def _describe(self, http: HttpRequest, oauth: OAuthResource, kind: str, about: str = "mcp") -> None:
        if f".well-known/{kind}" != WELL_KNOWN or about.partition("/")[0] != "mcp":
            raise Refused(HTTPStatus.NOT_FOUND, "not found")
        await http.response.document(orjson.dumps(oauth.metadata(f"/{about}")), b"application/json")

    async def _show(self, http: HttpRequest, metrics: Metrics, client: Principal | None) -> None:
        if client is not None and not client.access.has_metrics:
            raise Refused(HTTPStatus.FORBIDDEN, "these are figures of all servers")
        if http.method != "GET":
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "method not allowed", {"allow": "GET"})

        async def show(_: UnderWay) -> None:
            await http.response.document(await metrics(), b"text/plain; version=0.0.4; charset=utf-8")

        await self._admitted(UnderWay(http, self._gateway.view(None), client), show)

    async def _serve(self, http: HttpRequest, server: str | None, client: Principal | None) -> None:
        try:
            view = self._gateway.view(server, EVERYTHING if client is None else client.access)
        except UnknownServer as error:
            raise Refused(HTTPStatus.NOT_FOUND, str(error)) from None
        await self._admitted(UnderWay(http, view, client), self._messages.serve)

    async def _admitted(self, request: UnderWay, serve: Callable[[UnderWay], Awaitable[None]]) -> None:
        """Serve a request if there is room for it; if it is cancelled, its client is told why."""
        await self._admission.run(request, serve)
        if request.scope.cancelled_caught and not request.http.response.ended:
            await self._messages.say_why(request)


@asynccontextmanager
async def open_http(
    gateway: Gateway,
    *,
    server: str | None = None,
    hosts: Collection[str] | None = LOOPBACK,
    origins: Collection[str] = (),
    authenticate: Authenticate | None = None,
    oauth: OAuthResource | None = None,
    limits: HttpLimits | None = None,
    meter_provider: "MeterProvider | None" = None,
    metrics: Metrics | None = None,
) -> AsyncGenerator[HttpApplication, None]:
    """The gateway as an ASGI application, for as long as the block lasts. To be run on Trio.

    `/mcp` is all servers as one, and `/mcp/{server}` one of them; with `server`, `/mcp` is that one. `/healthz` answers
    while it runs, `/readyz` while it takes requests and all first attempts are settled. It may be mounted under a path.

    Args:
        gateway: What is served.
        server: The one server that is served, with its own names.
        hosts: What `Host` and `Origin` may name, without a port: a page of another site must not reach it through a
            browser of somebody who can. None: any host, which is safe where nobody is let in whom his browser alone
            authenticates; of origins then only those of this machine.
        origins: Other origins, such as `https://app.example.com`, whose pages may use it.
        authenticate: Says whose a request is. The default asks `oauth`, or without that believes a middleware of yours
            (`scope["user"].username`), and lets in whom there is no word of.
        oauth: Whose access tokens let clients in; tells them where to get one.
        limits: Default `HttpLimits()`.
        meter_provider: OpenTelemetry's, for figures of clients.
        metrics: `async () -> bytes`, all figures in the text format of Prometheus, for `/metrics`. Who may use only a
            part of the servers reads them only if `/metrics` is among his globs.

    Raises:
        ValueError: One of `hosts` has a port, or one of `origins` a path, or the like.
        UnknownServer: No server of that name.
    """
    gateway.view(server)
    names = ServedNames(hosts, origins)
    async with open_bare_nursery() as nursery:
        if oauth is not None:
            nursery.start_soon(oauth.keep_fresh)
        try:
            yield HttpApplication(
                gateway,
                nursery,
                server=server,
                names=names,
                authenticate=authenticate or (user_of if oauth is None else oauth.authenticate),
                oauth=oauth,
                limits=limits or HttpLimits(),
                meter_provider=meter_provider,
                metrics=metrics,
            )
        finally:
            nursery.cancel_scope.cancel()


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _ending() -> Refused:
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the gateway is ending")
