"""A server object of this process."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from attrs import field, frozen

from ..connection import Connection
from ..errors import StartFailed
from ..host import NO_HOST, Host


@frozen
class InProcessConnector:
    """Reaches an `MCPServer` or low-level `Server` of the SDK. Each incarnation enters its lifespan anew."""

    server: Any = field(repr=False)
    close_grace: float
    """Seconds its lifespan may take to end before it is cancelled."""

    def connect(self, host: Host = NO_HOST) -> AbstractAsyncContextManager[Connection]:
        """Open one connection. The server may ask what `host` offers.

        Raises:
            StartFailed: `server` is no server object.
        """
        from mcp.server import Server
        from mcp.server.mcpserver import MCPServer

        server: object = self.server
        if not isinstance(server, (Server, MCPServer)):
            problem = f"an MCPServer or a low-level Server of the MCP SDK is wanted, not {type(server).__name__}"
            raise StartFailed(problem, retriable=False)
        return self._connected(host)

    @asynccontextmanager
    async def _connected(self, host: Host) -> AsyncGenerator[Connection, None]:
        from ..connection.wired import open_carried
        from .object_carrier import open_object, served

        async with (
            open_object(served(self.server), close_grace=self.close_grace) as carrier,
            open_carried(carrier, host) as connection,
        ):
            yield connection
