"""HTTP with server-sent events, the transport of 2024-11-05, driven by the SDK over an HTTP client of ours."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from attrs import field, frozen
from mcp.client import ClientSession
from mcp.client.sse import sse_client

from ..alongside import run_alongside
from ..connection import Connection
from ..connection.callbacks import SessionCallbacks
from ..connection.changes import ToolChanges
from ..connection.driven import open_driven
from ..connection.driver import Driver
from ..connection.exchange import Witness
from ..connection.negotiation import CLIENT_INFO
from ..host import NO_HOST, Host
from ..messages import Era
from .headers import Headers, resolve
from .http_address import Address
from .http_client import HttpClient


@frozen
class SseConnector:
    """Reaches a server by a stream that brings every answer."""

    url: str = field(repr=False)
    headers: Headers = field(repr=False)
    close_grace: float
    """Seconds its end may take."""

    def connect(self, host: Host = NO_HOST) -> AbstractAsyncContextManager[Connection]:
        """Open one connection. The server may ask what `host` offers."""
        return open_driven(_Sse(self.url, self.headers), close_grace=self.close_grace, host=host)


@frozen
class _Sse(Driver):
    """Drives a server on SSE."""

    url: str = field(repr=False)
    headers: Headers = field(repr=False)

    transport = "sse"
    era = Era.HANDSHAKE

    @asynccontextmanager
    async def session(
        self, witness: Witness, changes: ToolChanges, callbacks: SessionCallbacks
    ) -> AsyncGenerator[ClientSession, None]:
        """Open the stream. Only the handshake's era knows this transport."""
        client = HttpClient(Address.of(self.url), await resolve(self.headers), witness, answers_apart=True)

        def ours(*_settings: object, **_more: object) -> HttpClient:
            """The SDK enters and leaves it; what it would have set is not what we want."""
            return client

        async with (
            sse_client(client.address.bare, httpx_client_factory=ours) as (read, write),
            run_alongside(client.run_errands),
            ClientSession(read, write, client_info=CLIENT_INFO, message_handler=changes, **callbacks) as session,
        ):
            yield session
