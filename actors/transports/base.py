"""What transports of our own have in common: on a duplex that one of them opens, MCP is talked in the same way."""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from ..callbacks import NO_HOST, Host
from ..jsonrpc.stream import Duplex

if TYPE_CHECKING:
    from ..session.base import Connection


class WireConnector(ABC):
    """A `Connector` that opens a duplex, a new one each time."""

    __slots__ = ()

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[Duplex]:
        """Open a duplex; it is closed with the block, however that is left. The block's exception comes out as it is.

        Raises:
            StartFailed: On entering: it could not be opened.
        """
        ...

    def connect(self, host: Host = NO_HOST) -> "AbstractAsyncContextManager[Connection]":
        """Open a duplex and talk MCP on it; it is closed with the block. The server may ask what `host` offers.

        Raises:
            StartFailed: On entering: it could not be opened.
        """
        from ..session.connection import open_wired  # brings in the SDK, which opening does not need

        return open_wired(self.open(), host)
