"""What servers say that is about no request: log messages, and notifications of which the protocol knows nothing."""

from collections.abc import AsyncGenerator, Container, Hashable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import trio
from attrs import define, field, frozen

__all__ = ["Notice"]

NOTICES: Final = 1_024
"""Those that a reader may fall behind; of more it loses the latest."""


@frozen
class Notice:
    """One notification, as it came."""

    server: str
    """The server's name."""
    method: str
    """Of the protocol, or any other."""
    params: Mapping[str, Any] = field(repr=False)
    """Its parameters; empty if it has none."""
    principal: Hashable = None
    """It may be about requests, all made for this one, that nobody waits for any more; None: it is about none."""


@define(eq=False)
class NoticeHub:
    """Gives every open channel each notice."""

    _open: dict[trio.MemorySendChannel[Notice], Container[str]] = field(
        factory=dict[trio.MemorySendChannel[Notice], Container[str]], init=False
    )
    """With the servers whose notices they get."""

    @asynccontextmanager
    async def open(self, servers: Container[str]) -> AsyncGenerator[trio.MemoryReceiveChannel[Notice], None]:
        """A channel of these servers' notices from now on, for as long as the block lasts."""
        send, receive = trio.open_memory_channel[Notice](NOTICES)
        self._open[send] = servers
        try:
            with send, receive:
                yield receive
        finally:
            del self._open[send]

    def publish(self, server: str, method: str, params: Mapping[str, Any], principal: Hashable = None) -> None:
        """Give a notice to everyone. Never waits."""
        for send, servers in self._open.items():
            if server in servers:
                with suppress(trio.WouldBlock):
                    send.send_nowait(Notice(server, method, params, principal))
