"""HTTP with server-sent events, the transport of 2024-11-05: frames leave as POSTs, and a stream brings all answers."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
from attrs import field, frozen

from ..callbacks import NO_HOST, Host
from ..jsonrpc.stream import FRAME_LIMIT
from ..session.base import Connection
from ..session.connection import open_connection
from .http.address import Address
from .http.authorisation import open_authorisation
from .http.client import open_client
from .http.grants import OAuth
from .http.headers import Headers, resolve
from .http.stream import SseCarrier


@frozen
class SseConnector:
    """Reaches a server by a stream that brings every answer."""

    url: str = field(repr=False)
    headers: Headers = field(repr=False)
    close_grace: float
    """Seconds the close may take: only a token that is being renewed takes any."""
    auth: httpx2.Auth | OAuth | None = field(default=None, repr=False)
    """Authorises requests, instead of the user and password in the URL; the headers override it."""
    frame_limit: int = FRAME_LIMIT
    """Bytes of one event before its call fails."""

    @asynccontextmanager
    async def connect(self, host: Host = NO_HOST) -> AsyncGenerator[Connection, None]:
        """Open one connection. The server may ask what `host` offers.

        Raises:
            StartFailed: On entering: the URL or the headers are not valid, or the tokens cannot be read.
        """
        bare = Address.of(self.url).bare
        async with (
            open_authorisation(self.auth, bare, self.close_grace) as auth,
            open_client(Address.of(self.url, auth), await resolve(self.headers)) as client,
            open_connection(SseCarrier(client, frame_limit=self.frame_limit), host) as connection,
        ):
            yield connection
