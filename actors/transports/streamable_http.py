"""Streamable HTTP, driven by the SDK's transport over an HTTP client of ours."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from attrs import field, frozen
from mcp.client import ClientSession
from mcp.client.streamable_http import streamable_http_client

from ..alongside import run_alongside
from ..connection import Connection
from ..connection.callbacks import SessionCallbacks
from ..connection.changes import ToolChanges
from ..connection.driven import open_driven
from ..connection.driver import Driver
from ..connection.exchange import Witness
from ..connection.negotiation import CLIENT_INFO
from ..host import NO_HOST, Host
from .headers import Headers, resolve
from .http_address import Address
from .http_client import ANSWER_LIMIT, HttpClient


@frozen
class StreamableHttpConnector:
    """Reaches a server by POST, each answered for itself."""

    url: str = field(repr=False)
    headers: Headers = field(repr=False)
    close_grace: float
    """Seconds the end of the session may take."""

    def connect(self, host: Host = NO_HOST) -> AbstractAsyncContextManager[Connection]:
        """Open one connection. The server may ask what `host` offers."""
        return open_driven(_Http(self.url, self.headers), close_grace=self.close_grace, host=host)


@frozen
class _Http(Driver):
    """Drives a server on streamable HTTP."""

    url: str = field(repr=False)
    headers: Headers = field(repr=False)

    transport = "http"

    @asynccontextmanager
    async def session(
        self, witness: Witness, changes: ToolChanges, callbacks: SessionCallbacks
    ) -> AsyncGenerator[ClientSession, None]:
        """Open a session; nothing is sent before its first request."""
        client = HttpClient(Address.of(self.url), await resolve(self.headers), witness)
        opening = streamable_http_client(client.address.bare, http_client=client, max_sse_event_size=ANSWER_LIMIT)
        async with (
            client,
            run_alongside(client.run_errands),  # also while the session is ended
            opening as (read, write),
            ClientSession(read, write, client_info=CLIENT_INFO, message_handler=changes, **callbacks) as session,
        ):
            yield session
