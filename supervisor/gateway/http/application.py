"""The gateway over streamable HTTP: an ASGI application for Trio, and a server for it on a port of its own.

The application identifies clients and admits them.
"""

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import orjson
import trio

from mcp_nursery.actors.errors import UnknownServer
from mcp_nursery.actors.nurseries import open_bare_nursery, run_alongside

from ...http_server.server import HttpServer, Tls
from ...preload import PATTERNS
from ..auth.jwt import WELL_KNOWN, OAuthResource
from ..auth.principal import EVERYTHING, RETRY_AFTER, Authenticate, Principal, Refused, path_of
from ..client_status import ClientsStatus
from ..gateway import Gateway
from .client_messages import HttpMessages
from .exchange import Attendance, HttpExchange, Message, Receive, Send, expiry_refusal
from .request_limits import Admission, BytesUnderWay, GatewayFigures, HttpLimits
from .served_names import LOOPBACK_NAMES, ServedNames
from .sessions import HttpSessions

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

Metrics = Callable[[], Awaitable[bytes]]
ServePage = Callable[[HttpExchange, Message], Awaitable[Callable[[HttpExchange], Awaitable[None]]]]
"""`async (exchange, scope) -> serve`: identifies the client, as `exchange.client`, and returns the function that
answers. It raises `Refused`."""


async def user_of(scope: Message) -> Principal | None:
    """The principal that the host's middleware has identified, by `scope["user"]`; None if there is no name. The
    default of `open_http`."""
    name = getattr(scope.get("user"), "username", None)
    return Principal(name) if isinstance(name, str) and name else None


class HttpApplication:
    """The gateway as an ASGI application. See `open_http`."""

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
        page: ServePage | None,
    ) -> None:
        self._gateway = gateway
        self._server = server
        self._names = names
        self._authenticate = authenticate
        self._oauth = oauth
        self._metrics = metrics
        self._page = page
        self._limits = limits
        self._leaving = False
        self._figures = GatewayFigures(meter_provider)
        self._kept = BytesUnderWay(limits.kept, limits.kept_of_client)
        self._sessions = HttpSessions(gateway, nursery, limits, self._figures, self._kept.account)
        self._admission = Admission(limits, self._figures, self._kept)
        self._messages = HttpMessages(gateway, self._sessions, limits, Attendance(nursery), self._kept)

    @property
    def kept(self) -> Mapping[str, int]:
        """Bytes of its clients' requests and of messages that wait for these clients, by kind: `answers`, `news`,
        `questions`, `requests`."""
        return self._kept.account.kept

    def clients(self) -> ClientsStatus:
        """Return the clients as they are now: their sessions, requests, and calls that wait for them."""
        limits = self._limits
        return ClientsStatus(
            sessions=self._sessions.status,
            held=self._gateway.held,
            clients=self._admission.status,
            kept=self.kept,
            most_kept=limits.kept,
            most_kept_of_client=limits.kept_of_client,
            most_sessions=limits.sessions,
            most_requests=limits.requests,
        )

    async def end_session(self, key: str) -> bool:
        """End a session, with all that is done for it, here and at gateways that share its notes. Its client may open
        another.

        Args:
            key: The name of the session: see `SessionStatus.key`.

        Returns:
            False if there is no such session, or no longer.
        """
        return await self._sessions.end_of_key(key)

    def close(self) -> None:
        """End all sessions here; they may go on at other gateways."""
        self._sessions.close()

    def leave(self) -> None:
        """Answer `/readyz` with 503 from now on, so that a balancer sends no more requests; everything else goes on."""
        self._leaving = True

    def end_clients(self, of: Callable[[Principal | None], bool]) -> None:
        """End the sessions of these clients, and all that is done or kept for them. They may connect again.

        Args:
            of: A test of whether a client is one of them; None stands for all that are not authenticated.
        """
        self._sessions.end_clients(of)
        self._gateway.end_clients(of)
        self._admission.refuse(of, _end_refusal if self._gateway.draining else expiry_refusal)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection of ASGI."""
        if scope["type"] == "lifespan":
            await _run_lifespan(receive, send)
        elif scope["type"] == "http":
            lines = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
            exchange = HttpExchange(scope["method"], path_of(scope), dict(lines), lines, receive, send)
            try:
                await self._route(exchange, scope)
            except Refused as refused:
                self._figures.refused(refused.status)
                exchange.answer_headers.update(refused.headers)
                await exchange.end(refused.status, refused.reason)

    async def _route(self, exchange: HttpExchange, scope: Message) -> None:
        first, _, rest = exchange.path.strip("/").partition("/")
        if first in ("healthz", "readyz") and not rest:
            ready = first == "healthz" or await self._is_ready()
            status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
            await exchange.end(status, "ok" if ready else "no")
            return
        self._names.check(exchange.headers, exchange.lines)
        if first == ".well-known" and self._oauth is not None:
            await self._describe(exchange, self._oauth, *rest.split("/", 1))
            return
        if first == "mcp" and (not rest or self._server is None):
            client = exchange.client = await self._authenticate(scope)
            try:
                exchange.view = self._gateway.view(
                    rest or self._server, EVERYTHING if client is None else client.access
                )
            except UnknownServer as error:
                raise Refused(HTTPStatus.NOT_FOUND, str(error)) from None
            serve: Callable[[HttpExchange], Awaitable[None]] = self._messages.serve
        elif first == "ui" and self._page is not None:
            serve = await self._page(exchange, scope)
        elif first == "metrics" and not rest and self._metrics is not None:
            exchange.client = await self._authenticate(scope)
            serve = partial(self._show, self._metrics)
        else:
            raise Refused(HTTPStatus.NOT_FOUND, "not found")
        with self._admission.admit(exchange):
            await serve(exchange)
        if exchange.scope.cancelled_caught and not exchange.ended:
            await self._messages.explain_end(exchange)

    async def _is_ready(self) -> bool:
        if self._gateway.is_settled:
            # A balancer asks: the first request may be a call, whose answer is searched for these.
            await PATTERNS.ensure_loaded()
        return self._gateway.is_settled and not (self._leaving or self._gateway.draining)

    async def _describe(self, exchange: HttpExchange, oauth: OAuthResource, kind: str, about: str = "mcp") -> None:
        if f".well-known/{kind}" != WELL_KNOWN or about.partition("/")[0] != "mcp":
            raise Refused(HTTPStatus.NOT_FOUND, "not found")
        await exchange.answer(orjson.dumps(oauth.metadata(f"/{about}")))

    async def _show(self, metrics: Metrics, exchange: HttpExchange) -> None:
        if exchange.client is not None and not exchange.client.access.has_metrics:
            raise Refused(HTTPStatus.FORBIDDEN, "these are figures of all servers")
        if exchange.method != "GET":
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "method not allowed", {"allow": "GET"})
        await exchange.answer(await metrics(), kind=b"text/plain; version=0.0.4; charset=utf-8")


@asynccontextmanager
async def open_http(
    gateway: Gateway,
    *,
    server: str | None = None,
    hosts: Collection[str] | None = LOOPBACK_NAMES,
    origins: Collection[str] = (),
    authenticate: Authenticate | None = None,
    oauth: OAuthResource | None = None,
    limits: HttpLimits | None = None,
    meter_provider: "MeterProvider | None" = None,
    metrics: Metrics | None = None,
    page: ServePage | None = None,
) -> AsyncGenerator[HttpApplication, None]:
    """The gateway as an ASGI application, for as long as the block lasts. It runs on Trio.

    `/mcp` is all servers as one, and `/mcp/{server}` a single server; with `server`, `/mcp` is that server. `/healthz`
    answers while it runs, and `/readyz` while it takes requests, and all first attempts are settled. It may be mounted
    under a path.

    Args:
        gateway: The gateway.
        server: The one server that is served, with its own names.
        hosts: The hosts that `Host` and `Origin` may name, without a port: a page of another site must not reach it
            through the browser of a user who can. None: any host, and origins of this machine alone; this is safe if no
            client is admitted that a browser alone authenticates.
        origins: Other origins, such as `https://app.example.com`, whose pages may use it.
        authenticate: Returns the principal of a request. The default uses `oauth`, or without that trusts a middleware
            of yours (`scope["user"].username`), and admits clients without a name.
        oauth: The protected resource: access tokens for it admit clients, and its metadata shows where to get one.
        limits: Default `HttpLimits()`.
        meter_provider: OpenTelemetry's, for figures of clients.
        metrics: `async () -> bytes`, all figures in the text format of Prometheus, for `/metrics`. A client that may
            use only a part of the servers can read them only if `/metrics` is among its globs.
        page: The function that serves `/ui`: see `ServePage`.

    Raises:
        ValueError: One of `hosts` has a port, or one of `origins` a path, or the like.
        UnknownServer: No server has that name.
    """
    gateway.view(server)
    names = ServedNames(hosts, origins)
    async with open_bare_nursery() as nursery:
        if oauth is not None:
            nursery.start_soon(oauth.keep_fresh)
        application = HttpApplication(
            gateway,
            nursery,
            server=server,
            names=names,
            authenticate=authenticate or (user_of if oauth is None else oauth.authenticate),
            oauth=oauth,
            limits=limits or HttpLimits(),
            meter_provider=meter_provider,
            metrics=metrics,
            page=page,
        )
        try:
            yield application
        finally:
            application.close()
            nursery.cancel_scope.cancel()


async def _run_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _end_refusal() -> Refused:
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the gateway is ending", RETRY_AFTER)


# -- on a port of its own ----------------------------------------------------------------------------------------------

FAREWELL: Final = 0.5
"""Seconds at the end, whatever `drain` is, for clients to take their answers, and as many for requests that are ended
without one."""


async def serve_http(
    gateway: Gateway,
    application: HttpApplication,
    listening: socket.socket,
    *,
    tls: Tls | None = None,
    connections: int = HttpLimits().connections,
    connections_of_address: int | None = HttpLimits().connections_of_address,
    lame_duck: float = 0.0,
    shared: bool = False,
    passed_on: bool = False,
    drain: float = 5.0,
    stop: Callable[[], Awaitable[object]],
) -> None:
    """Serve clients on a socket, which listens and is closed afterwards, until `stop` returns. For `lame_duck` more
    seconds, in which a balancer can notice that this gateway ends, requests are answered as before, but `/readyz` is
    503 and each answer is the last of its connection. Then new requests are refused, requests under way have `drain`
    seconds, until their clients have taken their answers, and streams end.

    At most `connections` are open at once, `connections_of_address` of one address; None: as many as of all, for a
    gateway behind a proxy. If the socket is `shared`, another process has it, or one of the same port, or will have it:
    connections are left to that process from the beginning of the `lame_duck` seconds, which are over when the last
    connection has closed. `passed_on` tells whether others have this socket itself.
    """
    server = HttpServer(application, tls, connections, connections_of_address)
    async with trio.open_nursery() as clients:
        clients.start_soon(server.end_idle)
        try:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
            async with run_alongside(partial(server.accept, listener, clients)):
                await stop()
                application.leave()
                server.leave()
                with trio.move_on_after(lame_duck):
                    if shared:
                        await server.leave_socket(passed_on=passed_on)
                        await server.wait_closed(lame_duck)
                    else:
                        await trio.sleep(lame_duck)
                until = trio.current_time() + drain
                server.end()
                await gateway.drain(drain)
            server.end()
            await server.wait_closed(FAREWELL)  # answers are on their way
            application.end_clients(lambda _: True)
            await server.wait_closed(max(FAREWELL, until - trio.current_time()))  # for those that take long
        finally:
            server.reset()
            clients.cancel_scope.cancel()
