"""Connectors to servers over HTTP: streamable HTTP, in which each POST is answered for itself, and the transport of
2024-11-05, in which a stream of server-sent events brings all answers."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import trio

from mcp_nursery.actors.records import field, frozen

from ...callbacks import NO_HOST, Host
from ...http.address import Address
from ...http.client import HttpClient, open_client
from ...jsonrpc.carrier import FRAME_LIMIT
from ...oauth.settings import OAuth
from ...preload import SDK_MODULES
from ...session.connection import Connection, open_connection
from .headers import Headers, resolve
from .sse import SseCarrier
from .streamable import StreamableCarrier


@frozen
class HttpConnector:
    """The address of a server, and how requests to it are made."""

    url: str = field(repr=False)
    headers: Headers = field(repr=False)
    close_grace: float
    """Seconds that a close may take: to end a session, and to renew a token."""
    auth: httpx2.Auth | OAuth | None = field(default=None, repr=False)
    """The authorisation, instead of the user and password in the URL; the headers override it."""
    ca_file: str | None = None
    """The file of authorities that are trusted besides the usual ones."""
    frame_limit: int = FRAME_LIMIT
    """Bytes of one answer, and of one event, before its call fails."""

    @asynccontextmanager
    async def open_client(self) -> AsyncGenerator[HttpClient, None]:
        """Open the client of one connection.

        Raises:
            StartFailed: On entering: the URL or the headers are not valid, or the tokens cannot be read.
        """
        async with (
            self._open_authorisation() as auth,
            open_client(Address.of(self.url, auth), await resolve(self.headers), self.ca_file) as client,
        ):
            yield client

    @asynccontextmanager
    async def _open_authorisation(self) -> AsyncGenerator[httpx2.Auth | None, None]:
        if not isinstance(self.auth, OAuth):
            yield self.auth
            return
        await SDK_MODULES.ensure_loaded()
        from ...oauth.renewal import open_authorisation

        async with open_authorisation(self.auth, Address.of(self.url).bare, self.close_grace) as auth:
            yield auth


@frozen
class SseConnector(HttpConnector):
    """A connector whose answers all come on one stream."""

    @asynccontextmanager
    async def connect(self, host: Host = NO_HOST) -> AsyncGenerator[Connection, None]:
        """Open one connection. The server may use what `host` offers.

        Raises:
            StartFailed: On entering; see `open_client`.
        """
        async with (
            self.open_client() as client,
            open_connection(SseCarrier(client, frame_limit=self.frame_limit), host) as connection,
        ):
            yield connection


@frozen
class StreamableHttpConnector(HttpConnector):
    """A connector that gets each answer by its POST."""

    @asynccontextmanager
    async def connect(self, host: Host = NO_HOST) -> AsyncGenerator[Connection, None]:
        """Open one connection. The server may use what `host` offers.

        Raises:
            StartFailed: On entering; see `open_client`.
        """
        async with self.open_client() as client:
            carrier = StreamableCarrier(client, frame_limit=self.frame_limit)
            try:
                async with open_connection(carrier, host) as connection:
                    yield connection
            finally:
                with trio.move_on_after(self.close_grace, shield=True):
                    await carrier.end_session()
