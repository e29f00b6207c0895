"""The gateway on a port of its own, served by Hypercorn. Needs what the extra `gateway` installs."""

import logging
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from mcp_nursery.actors.errors import ConfigError

from .gateway import Gateway
from .http import HttpApplication
from .http_limits import HttpLimits

logger: Final = logging.getLogger(__name__)

UNREAD: Final = 30.0
"""Seconds that a client may take no byte of what it is sent before its connection is reset."""
SLOWEST: Final = 64 << 10
"""Bytes of one message that a client has to take in each second after that."""
HEAD: Final = 16 << 10
"""Bytes of a request's line and headers."""
HEAD_SECONDS: Final = 5.0
"""Seconds in which they have to be there, and that a connection may be without a request."""
HANDSHAKE: Final = 10.0
"""Seconds of a TLS handshake."""
FAREWELL: Final = 1.0
"""Seconds at the end in which clients are to take what is on its way to them."""
BACKLOG: Final = 128


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        ConfigError: It cannot.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}", field="--http") from None
    timeout = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux alone has it: a machine that is gone says nothing
    if timeout is not None:
        listening.setsockopt(socket.IPPROTO_TCP, timeout, int(UNREAD * 1000))
    return listening


class Tls:
    """A certificate, and the key that it is for.

    Args:
        certificate: A PEM file: the certificate, and those that vouch for it.
        key: A PEM file; None: it is in the other.
        password: Of the key.

    Raises:
        ConfigError: They cannot be used.
    """

    def __init__(self, certificate: Path, key: Path | None, password: str | None) -> None:
        self._files = certificate, key, password or ""  # with None, OpenSSL would ask for one on the terminal
        self.context: Final = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        """What connections are made with."""
        self.reload()

    def reload(self) -> None:
        """Read the files again, for connections that come from then on.

        Raises:
            ConfigError: They cannot be used; what was read before holds on.
        """
        certificate, key, password = self._files
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, password)
            self.context.load_cert_chain(certificate, key, password)
        except ssl.SSLError as error:
            why = "no certificate with a key that fits and this password opens" if error.errno else "no PEM"
            raise ConfigError(why, file=str(certificate), field="--tls-cert") from None
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror or error}", field="--tls-cert") from None


class _Stream(trio.abc.HalfCloseableStream):
    """A connection that nobody keeps by not reading: Hypercorn's writes cannot be cancelled from outside."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.socket: Final = stream.socket
        """Hypercorn asks it for addresses."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with trio.move_on_after(UNREAD + len(data) / SLOWEST):
            await self._stream.send_all(data)
            return
        self.reset()
        raise trio.BrokenResourceError("its client does not read")

    def reset(self) -> None:
        """End it at once."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class _Connections(trio.abc.Listener[trio.abc.Stream]):
    """Takes connections, so many at once; others wait for the system to hand them out."""

    def __init__(self, listening: socket.socket, tls: Tls | None, most: int) -> None:
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        self._tls = tls
        self._free = trio.Semaphore(most)
        self._open: set[_Stream] = set()
        self._left = trio.Event()

    async def accept(self) -> trio.abc.Stream:
        await self._free.acquire()
        try:
            stream = _Stream(await self._listener.accept())
        except BaseException:
            self._free.release()
            raise
        self._open.add(stream)
        if self._tls is None:
            return stream
        return trio.SSLStream(stream, self._tls.context, server_side=True, https_compatible=True)

    def leave(self, stream: trio.abc.Stream) -> None:
        """This connection is over."""
        under: Any = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        self._open.remove(cast("_Stream", under))
        self._free.release()
        self._left.set()

    async def wait_left(self) -> None:
        """Wait until none is left."""
        while self._open:
            self._left = trio.Event()
            await self._left.wait()

    def reset(self) -> None:
        """End those that are left."""
        for stream in self._open:
            stream.reset()

    async def aclose(self) -> None:
        await self._listener.aclose()


async def serve_http(
    gateway: Gateway,
    application: HttpApplication,
    listening: socket.socket,
    *,
    tls: Tls | None = None,
    connections: int = HttpLimits().connections,
    drain: float = 5.0,
    stop: Callable[[], Awaitable[object]],
) -> None:
    """Serve clients on a socket until `stop` returns; then requests under way have `drain` seconds, and streams end.

    Args:
        gateway: What is served.
        application: How: see `open_http`.
        listening: Where: see `bound`. It is closed afterwards.
        tls: Its certificate; None: without TLS.
        connections: Connections at once.
        drain: Seconds for requests under way.
        stop: `async () -> None`, returns when it is to end.
    """
    taken = _Connections(listening, tls, connections)
    context = WorkerContext(None)
    handle = partial(_handle, application, _config(), context, taken)
    async with trio.open_nursery() as clients:
        try:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(partial(trio.serve_listeners, handle, [taken], handler_nursery=clients))
                await stop()
                await gateway.drain(drain)
                accepting.cancel_scope.cancel()
            application.end_clients(lambda _: True)
            await context.terminated.set()
            with trio.move_on_after(FAREWELL):
                await taken.wait_left()
        finally:
            taken.reset()  # Hypercorn shields its writes
        clients.cancel_scope.cancel()


async def _handle(
    application: HttpApplication,
    config: Config,
    context: WorkerContext,
    taken: _Connections,
    stream: trio.abc.Stream,
) -> None:
    """One connection, whose end is no other's."""
    try:
        await TCPServer(
            ASGIWrapper(cast("Any", application)), config, context, ConnectionState({}), cast("Any", stream)
        ).run()
    except Exception:
        logger.exception("a connection has ended by an error")
    finally:
        taken.leave(stream)


def _config() -> Config:
    config = Config()
    config.loglevel = "WARNING"
    config.h11_max_incomplete_size = HEAD
    config.keep_alive_timeout = HEAD_SECONDS
    config.ssl_handshake_timeout = HANDSHAKE
    config.include_server_header = False
    return config
