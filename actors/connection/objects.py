"""A server object of this process, as the SDK reaches it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from attrs import field, frozen
from mcp.client import Client, ClientSession

from .callbacks import SessionCallbacks
from .changes import ToolChanges
from .driver import Driver
from .exchange import Witness
from .negotiation import CLIENT_INFO


@frozen
class ObjectDriver(Driver):
    """Drives an `MCPServer` or a low-level `Server`."""

    server: Any = field(repr=False)

    transport = "in-process"
    undoes_its_start = True
    """A lifespan has begun."""

    @asynccontextmanager
    async def session(
        self, witness: Witness, changes: ToolChanges, callbacks: SessionCallbacks
    ) -> AsyncGenerator[ClientSession, None]:
        """Enter its lifespan and be its client."""
        del witness  # nothing between us can fail
        async with Client(self.server, client_info=CLIENT_INFO, message_handler=changes, **callbacks) as client:
            yield client.session
