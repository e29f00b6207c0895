"""The page on a port of its own, without a gateway: `run --web`."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Final

import trio

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.actors.oauth.settings import LOOPBACK
from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.gateway import Refused
from mcp_nursery.supervisor.gateway.auth.principal import path_of
from mcp_nursery.supervisor.gateway.http.exchange import HttpExchange, Message, Receive, Send
from mcp_nursery.supervisor.gateway.http.served_names import LOOPBACK_NAMES, ServedNames
from mcp_nursery.supervisor.http_server.listening import bind_socket
from mcp_nursery.supervisor.http_server.server import HttpServer

from ..addresses import host_and_port
from ..output import note
from .acts import PageHost
from .page import WebPage, open_page
from .visitors import Visitors

MOST_CONNECTIONS: Final = 100
"""Connections of browsers at once."""


class PageApplication:
    """The page as an ASGI application, for browsers of this machine."""

    def __init__(self, page: WebPage) -> None:
        self._page = page
        self._names = ServedNames(LOOPBACK_NAMES, ())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection of ASGI."""
        lines = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        exchange = HttpExchange(scope["method"], path_of(scope), dict(lines), lines, receive, send)
        try:
            self._names.check(exchange.headers, exchange.lines)
            if exchange.path == "/":
                exchange.answer_headers["location"] = "/ui"
                raise Refused(HTTPStatus.SEE_OTHER, "the page is at /ui")
            if exchange.path.strip("/").partition("/")[0] != "ui":
                raise Refused(HTTPStatus.NOT_FOUND, "not found")
            serve = await self._page(exchange, scope)
            with exchange.scope:
                await serve(exchange)
        except Refused as refused:
            exchange.answer_headers.update(refused.headers)
            await exchange.end(refused.status, refused.reason)


@asynccontextmanager
async def serve_page(supervisor: Supervisor, address: str) -> AsyncGenerator[None, None]:
    """Serve the page of a supervisor to browsers of this machine, for as long as the block lasts. The address is
    `HOST:PORT` on the loopback interface.

    Raises:
        ConfigError: The address can be reached from elsewhere, or cannot be listened on.
    """
    host, port = host_and_port(address, "--web")
    if host not in LOOPBACK:
        raise ConfigError(f"{host} can be reached from the network: see serve --http --ui --token-file", field="--web")
    listening = bind_socket(host, port, option="--web")
    visitors = Visitors(None, None, has_clients=False)
    async with open_page(PageHost(supervisor), visitors) as page, trio.open_nursery() as clients:
        server = HttpServer(PageApplication(page), None, MOST_CONNECTIONS)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        clients.start_soon(server.end_idle)
        try:
            async with run_alongside(partial(server.accept, listener, clients)):
                host, port = listening.getsockname()[:2]
                note(f"the page is at http://{f'[{host}]' if ':' in host else host}:{port}/ui")
                yield
        finally:
            server.reset()
            clients.cancel_scope.cancel()
