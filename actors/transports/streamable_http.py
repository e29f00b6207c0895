"""Streamable HTTP: each frame a POST, answered for itself."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import trio
from attrs import field, frozen

from ..callbacks import NO_HOST, Host
from ..jsonrpc.stream import FRAME_LIMIT
from ..session.base import Connection
from ..session.connection import open_connection
from .http.address import Address
from .http.authorisation import open_authorisation
from .http.carrier import StreamableCarrier
from .http.client import open_client
from .http.grants import OAuth
from .http.headers import Headers, resolve


@frozen
class StreamableHttpConnector:
    """Reaches a server by POST."""

    url: str = field(repr=False)
    headers: Headers = field(repr=False)
    close_grace: float
    """Seconds the end of the session may take."""
    auth: httpx2.Auth | OAuth | None = field(default=None, repr=False)
    """Authorises requests, instead of the user and password in the URL; the headers override it."""
    frame_limit: int = FRAME_LIMIT
    """Bytes of one answer, and of one event, before its call fails."""

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
        ):
            carrier = StreamableCarrier(client, frame_limit=self.frame_limit)
            try:
                async with open_connection(carrier, host) as connection:
                    yield connection
            finally:
                with trio.move_on_after(self.close_grace, shield=True):
                    await carrier.end_session()
