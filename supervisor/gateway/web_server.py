"""The gateway on a port of its own, served by Hypercorn."""

import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

from hypercorn.config import Config
from hypercorn.trio import serve  # pyright: ignore[reportUnknownVariableType]

from mcp_nursery.actors.errors import ConfigError

from .gateway import Gateway
from .http import HttpLimits, open_http

UNREAD = 30.0
"""Seconds that a client may take no byte of what it is sent before its connection is reset: Hypercorn's writes cannot
be cancelled, and one of them would keep the process."""
BACKLOG = 128


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        ConfigError: It cannot.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}", field="http") from None
    timeout = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux alone has it
    if timeout is not None:
        listening.setsockopt(socket.IPPROTO_TCP, timeout, int(UNREAD * 1000))
    listening.settimeout(0)
    return listening


async def serve_http(
    gateway: Gateway,
    listening: socket.socket,
    *,
    server: str | None = None,
    limits: HttpLimits | None = None,
    drain: float = 5.0,
    stop: Callable[[], Awaitable[object]],
) -> None:
    """Serve clients on a socket until `stop` returns; then requests under way have `drain` seconds.

    Args:
        gateway: What is served.
        listening: Where: see `bound`. It is closed afterwards.
        server: As for `open_http`.
        limits: As for `open_http`.
        drain: Seconds for requests under way.
        stop: `async () -> None`, returns when it is to end.
    """
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.loglevel = "WARNING"
    config.graceful_timeout = drain

    async def stopped() -> None:
        await stop()
        await gateway.drain(drain)

    async with open_http(gateway, server=server, limits=limits) as application:
        await serve(cast("Any", application), config, shutdown_trigger=stopped)
