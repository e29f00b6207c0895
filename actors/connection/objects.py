"""A server object of this process, as the SDK reaches it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from attrs import field, frozen
from mcp.client import Client, ClientSession

from ..messages import Era
from .callbacks import SessionCallbacks
from .changes import ToolChanges
from .exchange import Witness
from .negotiation import CLIENT_INFO


@frozen
class ObjectDriver:
    """Drives an `MCPServer` or a low-level `Server`."""

    server: Any = field(repr=False)

    @property
    def transport(self) -> str:
        """`in-process`."""
        return "in-process"

    @property
    def undoes_its_start(self) -> bool:
        """True: a lifespan has begun."""
        return True

    @property
    def era(self) -> Era | None:
        """None: the SDK asks the object itself."""
        return None

    @asynccontextmanager
    async def session(
        self, witness: Witness, changes: ToolChanges, callbacks: SessionCallbacks
    ) -> AsyncGenerator[ClientSession, None]:
        """Enter its lifespan and be its client."""
        del witness  # nothing between us can fail
        async with Client(self.server, client_info=CLIENT_INFO, message_handler=changes, **callbacks) as client:
            yield client.session
