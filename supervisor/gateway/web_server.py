"""The gateway on a port of its own: who is let in, for how long, and how it ends."""

import errno
import logging
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Final

import trio

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.nurseries import run_alongside

from ..config.whole_file import open_regular
from .gateway import Gateway
from .http import HttpApplication
from .http_connection import PIECE, HttpConnection, end_idle
from .http_limits import HttpLimits

logger: Final = logging.getLogger(__name__)

UNREAD: Final = 30.0
"""Seconds that a client may take no byte of what it is sent before its connection is reset."""
SLOWEST: Final = 64 << 10
"""Bytes of one message that a client has to take in each second after that."""
FAREWELL: Final = 0.5
"""Seconds at the end, whatever `drain` is, in which answers may be taken, and as many for what is ended without one."""
BACKLOG: Final = 128
PAUSE: Final = 0.1
"""Seconds before it is tried again to take a connection for which there was no room, and none that gives way; and in
which one that is new does not: the head of its request may be on its way."""

_NO_ROOM: Final = frozenset([errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])


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
        self.context: ssl.SSLContext = self._made()
        """What connections are made with."""

    def reload(self) -> None:
        """Read the files again, for connections that come from then on.

        Raises:
            ConfigError: They cannot be used; what was read before holds on.
        """
        self.context = self._made()

    def _made(self) -> ssl.SSLContext:
        certificate, key, password = self._files
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        for option, file in (("--tls-cert", certificate), ("--tls-key", key or certificate)):
            try:
                open_regular(file).close()
            except OSError as error:
                problem = f"cannot be read: {error.strerror or error}"
                raise ConfigError(problem, file=str(file), field=option) from None
        try:
            context.load_cert_chain(certificate, key, password)
        except (OSError, ValueError):  # ValueError: no key has a password that long
            problem = "no certificate with a key that fits and this password opens"
            if key is None and b"PRIVATE KEY" not in certificate.read_bytes():
                problem = "its key is not in it: name that with --tls-key"
            raise ConfigError(problem, file=str(certificate), field="--tls-cert") from None
        return context


class _Client(trio.abc.HalfCloseableStream):
    """A connection that nobody keeps by not reading. What its system takes at once costs no turn of the event loop:
    a call takes 524 us of CPU where it took 564 over Trio's own stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.socket: Final = socket.socket(fileno=stream.socket.detach())
        """What it goes over."""
        self.socket.settimeout(0)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            await self._wait(trio.lowlevel.wait_readable)
            try:
                return self.socket.recv(max_bytes or PIECE)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error

    async def wait_send_all_might_not_block(self) -> None:
        await self._wait(trio.lowlevel.wait_writable)

    async def send_eof(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        sent = self._send(data)
        if sent == len(data):
            return
        with memoryview(data) as whole, trio.move_on_after(UNREAD + len(data) / SLOWEST):
            while sent < len(whole):
                await self.wait_send_all_might_not_block()
                sent += self._send(whole[sent:])
            return
        self.reset()
        raise trio.BrokenResourceError("its client does not read")

    def _send(self, data: bytes | bytearray | memoryview) -> int:
        """Bytes that were taken at once."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def _wait(self, ready: Callable[[socket.socket], Awaitable[None]]) -> None:
        if self.socket.fileno() < 0:
            raise trio.ClosedResourceError
        await ready(self.socket)

    def reset(self) -> None:
        """Close it at once, with all that its client has not taken."""
        if self.socket.fileno() >= 0:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._close()

    def _close(self) -> None:
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()

    async def aclose(self) -> None:
        self._close()
        await trio.lowlevel.checkpoint()


class _Server:
    """The connections that are open, so many at once; others wait for the system to hand them out, and those on which
    no request is under way give way to them.

    Args:
        application: Whom requests are for.
        tls: The certificate; None: without TLS.
        most: Connections at once.
        share: Connections at once of one address; None: as many as of all.
    """

    def __init__(self, application: HttpApplication, tls: Tls | None, most: int, share: int | None = None) -> None:
        self._application = application
        self._tls = tls
        self._free = trio.Semaphore(most)
        self._share = most if share is None else share
        self._open: dict[HttpConnection, _Client] = {}
        self._of_address: dict[str, set[HttpConnection]] = {}
        self._left = trio.Event()
        self._ending = False
        self._has_told = False
        """Whether it was said that there is no room, and has not been otherwise since."""

    async def end_idle(self) -> None:
        """Close connections that have been idle for too long, without end."""
        await end_idle(self._open.keys())

    async def accept(self, listening: socket.socket, clients: trio.Nursery) -> None:
        """Take connections, without end."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        async with listener:
            while True:
                await self._place(listener.socket)
                clients.start_soon(self._serve, await self._accepted(listener))

    async def _place(self, listening: trio.socket.SocketType) -> None:
        """Wait until one more may be open."""
        if not self._free.value:
            await trio.lowlevel.wait_readable(listening)  # until somebody needs it
        while not self._free.value:
            self._give_way()
            with trio.move_on_after(PAUSE):
                await self._free.acquire()
                return
        await self._free.acquire()

    async def _accepted(self, listener: trio.SocketListener) -> trio.SocketStream:
        """The next connection. While there are no file descriptors left none is taken, and others have to give way."""
        waits = False
        while True:
            try:
                accepted = await listener.accept()
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                if not self._has_told:
                    logger.warning("no room for another connection: %s", error.strerror)
                self._has_told = waits = True
                self._give_way()
                await trio.sleep(PAUSE)
            else:
                self._has_told = waits
                return accepted

    def _give_way(self, among: Iterable[HttpConnection] | None = None) -> bool:
        """Close one on which no request is under way, if there is one: or one client could keep out all others."""
        places = [(each.gives_way, each) for each in (self._open if among is None else among)]
        waiting = [(place, each) for place, each in places if place is not None]
        if not waiting:
            return False
        (has_spoken, since), first = min(waiting, key=itemgetter(0))
        if not has_spoken and trio.current_time() < since + PAUSE:
            return False
        first.give_way()
        return True

    async def _has_room(self, address: str) -> bool:
        """Whether one more of this address may be open, in a moment at the latest."""
        for patience in (PAUSE, 0):
            own = self._of_address.get(address, ())
            if len(own) < self._share or self._give_way(own):
                return True
            await trio.sleep(patience)
        return False

    async def _serve(self, socket_stream: trio.SocketStream) -> None:
        """One connection, whose end is no other's."""
        client = _Client(socket_stream)
        stream: trio.abc.Stream = client
        if self._tls is not None:
            stream = trio.SSLStream(client, self._tls.context, server_side=True, https_compatible=True)
        try:
            peer = client.socket.getpeername()[:2]
        except OSError:
            peer = None  # it has gone already
        address = "" if peer is None else peer[0]
        connection = HttpConnection(self._application, stream, "http" if self._tls is None else "https", peer)
        self._open[connection] = client
        if self._ending:
            connection.end()
        try:
            if await self._has_room(address):
                with self._counted(connection, address):
                    await connection.serve()
        finally:
            client.reset()  # unless it was closed
            del self._open[connection]
            self._free.release()
            self._left.set()

    @contextmanager
    def _counted(self, connection: HttpConnection, address: str) -> Generator[None, None, None]:
        """A connection of that address, for as long as the block lasts."""
        own = self._of_address.setdefault(address, set())
        own.add(connection)
        try:
            yield
        finally:
            own.discard(connection)
            if not own:
                del self._of_address[address]

    def end(self) -> None:
        """Close each connection when its request has ended, and those that come from now on after their first."""
        self._ending = True
        for connection in self._open:
            connection.end()

    def reset(self) -> None:
        """Close all that are open, in the middle of what they are sent, too."""
        for client in self._open.values():
            client.reset()

    async def wait_closed(self, seconds: float) -> None:
        """Wait until none is open, so many seconds at most."""
        with trio.move_on_after(seconds):
            while self._open:
                self._left = trio.Event()
                await self._left.wait()


async def serve_http(
    gateway: Gateway,
    application: HttpApplication,
    listening: socket.socket,
    *,
    tls: Tls | None = None,
    connections: int = HttpLimits().connections,
    connections_of_address: int | None = HttpLimits().connections_of_address,
    drain: float = 5.0,
    stop: Callable[[], Awaitable[object]],
) -> None:
    """Serve clients on a socket until `stop` returns; then requests under way have `drain` seconds, until their clients
    have taken their answers, and streams end. From then on each answer is the last of its connection.

    Args:
        gateway: What is served.
        application: How: see `open_http`.
        listening: Where: see `bound`. It is closed afterwards.
        tls: Its certificate; None: without TLS.
        connections: Connections at once.
        connections_of_address: Connections at once of one address; None: as many as of all, for who is behind a proxy.
        drain: Seconds for requests under way.
        stop: `async () -> None`, returns when it is to end.
    """
    server = _Server(application, tls, connections, connections_of_address)
    async with trio.open_nursery() as clients:
        clients.start_soon(server.end_idle)
        try:
            async with run_alongside(partial(server.accept, listening, clients)):
                await stop()
                until = trio.current_time() + drain
                server.end()
                await gateway.drain(drain)
            server.end()
            await server.wait_closed(FAREWELL)  # answers are on their way
            application.end_clients(lambda _: True)
            await server.wait_closed(max(FAREWELL, until - trio.current_time()))  # for those that take long
        finally:
            server.reset()
            clients.cancel_scope.cancel()
