"""The base of transports with a stream of frames each way."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from ..callbacks import NO_HOST, Host
from ..jsonrpc.carrier import FrameStream
from ..preload import CONNECTION_MODULES

if TYPE_CHECKING:
    from ..session.connection import Connection


class StreamConnector(ABC):
    """A `Connector` that opens a stream, a new one each time."""

    __slots__ = ()

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[FrameStream]:
        """Open a stream; leaving the block closes it. The block's exception is not wrapped.

        Raises:
            StartFailed: On entering: it could not be opened.
        """
        ...

    @asynccontextmanager
    async def connect(self, host: Host = NO_HOST) -> "AsyncGenerator[Connection, None]":
        """Open a stream and speak MCP on it; leaving the block closes it. The server may use what `host` offers.

        Raises:
            StartFailed: On entering: it could not be opened.
        """
        async with self.open() as stream:
            await CONNECTION_MODULES.ensure_loaded()
            from ..jsonrpc.stream_carrier import StreamCarrier
            from ..session.connection import open_connection

            def stderr_tail() -> str:
                return getattr(stream, "stderr_tail", "")  # only a stream of a process has one

            async with open_connection(StreamCarrier(stream), host, stderr_tail) as connection:
                yield connection
