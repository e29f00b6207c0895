"""The messages of servers that are about no request: log messages, and notifications that the protocol does not
know."""

from collections.abc import AsyncGenerator, Container, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from mcp_nursery.actors.account import own_weight
from mcp_nursery.actors.queues import BoundedQueue, QueueReader
from mcp_nursery.actors.records import define, field, frozen

__all__ = ["Notice"]

MOST_NOTICES: Final = 1_024
"""Notices that may wait for a reader; any further ones are lost."""
NOTICES_BYTES: Final = 4 << 20
"""Bytes of memory that the waiting notices may keep."""


@frozen
class Notice:
    """One notification, as it came."""

    server: str
    """The server's name."""
    method: str
    """The method: one of the protocol, or any other."""
    params: Mapping[str, Any] = field(repr=False)
    """The parameters; empty if there are none."""
    principal: Hashable = None
    """The principal of the abandoned requests that it may be about; None if it is about none."""


@define(eq=False)
class NoticeHub:
    """The open channels, each of which gets every notice of its servers."""

    _open: dict[BoundedQueue[Notice], Container[str]] = field(
        factory=dict[BoundedQueue[Notice], Container[str]], init=False
    )
    """Their queues, with the servers whose notices they get."""

    @asynccontextmanager
    async def open(self, servers: Container[str]) -> AsyncGenerator[QueueReader[Notice], None]:
        """A channel of these servers' notices from now on, while the block lasts."""
        queue = BoundedQueue[Notice](MOST_NOTICES, NOTICES_BYTES)
        self._open[queue] = servers
        try:
            yield QueueReader(queue)
        finally:
            del self._open[queue]
            queue.close()

    def publish(self, server: str, method: str, params: Mapping[str, Any], principal: Hashable = None) -> None:
        """Give a notice to every reader of this server. Never waits."""
        readers = [queue for queue, servers in self._open.items() if server in servers]
        if readers:
            notice, size = Notice(server, method, params, principal), own_weight(params)
            for queue in readers:
                queue.put(notice, size)
