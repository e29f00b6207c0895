"""A server for HTTP/1.1: its certificate, and the connections of its clients, with the rules for how many there may be,
which give way to others, and how they end."""

import errno
import logging
import select
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Final

import trio

from mcp_nursery.actors.errors import ConfigError

from ..config.whole_file import open_regular
from .http_connection import PIECE, Application, HttpConnection, end_idle
from .listening import UNREAD


class Tls:
    """A certificate and its key, both PEM files. The file of the certificate also has those that vouch for it, and the
    key, if there is no other file. The password is that of the key.

    Raises:
        ConfigError: The files cannot be used.
    """

    def __init__(self, certificate: Path, key: Path | None, password: str | None) -> None:
        self._files = certificate, key, password or ""  # with None, OpenSSL would ask for one on the terminal
        self.context: ssl.SSLContext = self._load_context()
        """The TLS context of connections."""

    def reload(self) -> None:
        """Read the files again, for new connections.

        Raises:
            ConfigError: The files cannot be used; the certificate that was read before stays in use.
        """
        self.context = self._load_context()

    def _load_context(self) -> ssl.SSLContext:
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


logger: Final = logging.getLogger(__name__)

SLOWEST: Final = 64 << 10
"""Bytes of one message that a client has to take in each second beyond `UNREAD`."""
PAUSE: Final = 0.1
"""Seconds between two attempts to accept a connection for which there is no room, while no other gives way; and seconds
for which a new connection does not give way, since the head of its request may be on its way."""

_NO_ROOM: Final = frozenset([errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])


class ClientStream(trio.abc.HalfCloseableStream):
    """A connection that a client cannot hold open by not reading. A write that the system takes at once costs no turn
    of the event loop: a call takes 524 us of CPU, instead of 564 over Trio's own stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.socket: Final = socket.socket(fileno=stream.socket.detach())
        """The socket of the connection."""
        self.socket.settimeout(0)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive at most so many bytes; none at the end."""
        while True:
            await self._wait(trio.lowlevel.wait_readable)
            try:
                return self.socket.recv(max_bytes or PIECE)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the system takes bytes."""
        await self._wait(trio.lowlevel.wait_writable)

    async def send_eof(self) -> None:
        """Signal that nothing follows."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all bytes, within the time that a client has for so many.

        Raises:
            BrokenResourceError: The client has gone, or did not read: the connection is reset.
        """
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
        """Send what the system takes at once. Returns the number of bytes."""
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
        """Close it at once, and drop all that its client has not taken."""
        if self.socket.fileno() >= 0:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._close()

    def _close(self) -> None:
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()

    async def aclose(self) -> None:
        """Close it; the system goes on sending what it has taken."""
        self._close()
        await trio.lowlevel.checkpoint()


def _has_waiting(listening: trio.socket.SocketType) -> bool:
    """True if a connection waits to be accepted."""
    waiting = select.poll()
    waiting.register(listening, select.POLLIN)
    return bool(waiting.poll(0))


class HttpServer:
    """The connections that are open, at most `most` at once, and `share` of one address (None: as many as `most`);
    others wait in the queue of the socket, and connections on which no request is under way give way to them."""

    def __init__(self, application: Application, tls: Tls | None, most: int, share: int | None = None) -> None:
        self._application = application
        self._tls = tls
        self._free = trio.Semaphore(most)
        self._share = most if share is None else share
        self._open: dict[HttpConnection, ClientStream] = {}
        self._of_address: dict[str, set[HttpConnection]] = {}
        self._left = trio.Event()
        self._accepting = trio.CancelScope()
        """The scope in which all new connections are accepted."""
        self._has_listener_closed = trio.Event()
        self._leaving = False
        self._is_passed_on = False
        self._has_logged = False
        """True if the lack of room was logged, and has lasted since."""

    async def end_idle(self) -> None:
        """Close connections that have been idle for too long, until cancelled."""
        await end_idle(self._open.keys(), HttpConnection.end)

    async def accept(self, listener: trio.SocketListener, clients: trio.Nursery) -> None:
        """Accept connections until cancelled, or until the socket is left to another process: those that have arrived
        by then are the last. The listener is closed afterwards."""
        async with listener:
            with self._accepting:
                while True:
                    await self._take(listener, clients)
            # The kernel resets connections that wait in a socket when the last process that has the socket closes it.
            while not self._is_passed_on and _has_waiting(listener.socket):
                await self._take(listener, clients)
        self._has_listener_closed.set()

    async def _take(self, listener: trio.SocketListener, clients: trio.Nursery) -> None:
        """Accept the next connection, once there is room for it."""
        await self._wait_for_slot(listener.socket)
        try:
            accepted = await self._accept_next(listener)
        except BaseException:
            self._free.release()
            raise
        clients.start_soon(self._serve, accepted)

    async def _wait_for_slot(self, listening: trio.socket.SocketType) -> None:
        """Wait until one more connection may be open."""
        if not self._free.value:
            await trio.lowlevel.wait_readable(listening)  # until a client needs it
        while not self._free.value:
            self._give_way()
            with trio.move_on_after(PAUSE):
                await self._free.acquire()
                return
        await self._free.acquire()

    async def _accept_next(self, listener: trio.SocketListener) -> trio.SocketStream:
        """The next connection. While no file descriptors are left, none is accepted, and others have to give way."""
        waits = False
        while True:
            try:
                accepted = await listener.accept()
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                if not self._has_logged:
                    logger.warning("no room for another connection: %s", error.strerror)
                self._has_logged = waits = True
                self._give_way()
                await trio.sleep(PAUSE)
            else:
                self._has_logged = waits
                return accepted

    def _give_way(self, among: Iterable[HttpConnection] | None = None) -> bool:
        """Close a connection on which no request is under way: otherwise one client could keep out all others. False if
        none gives way."""
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
        """True if one more connection of this address may be open, in a moment at the latest."""
        for patience in (PAUSE, 0):
            own = self._of_address.get(address, ())
            if len(own) < self._share or self._give_way(own):
                return True
            await trio.sleep(patience)
        return False

    async def _serve(self, socket_stream: trio.SocketStream) -> None:
        """Serve one connection, whose end is not the end of any other."""
        client = ClientStream(socket_stream)
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
        if self._leaving:
            connection.leave()
        try:
            if await self._has_room(address):
                with self._count_connection(connection, address):
                    await connection.serve()
        finally:
            client.reset()  # unless it was closed
            del self._open[connection]
            self._free.release()
            self._left.set()

    @contextmanager
    def _count_connection(self, connection: HttpConnection, address: str) -> Generator[None, None, None]:
        """Count a connection of this address, for as long as the block lasts."""
        own = self._of_address.setdefault(address, set())
        own.add(connection)
        try:
            yield
        finally:
            own.discard(connection)
            if not own:
                del self._of_address[address]

    def leave(self) -> None:
        """Make each answer from now on the last of its connection; idle connections stay for one more request."""
        self._leaving = True
        for connection in self._open:
            connection.leave()

    async def leave_socket(self, *, passed_on: bool = False) -> None:
        """Leave the listening socket to the process that has taken it over, or will. Returns when all connections that
        have come to this process are accepted; all of them are served. If the socket itself was passed on, connections
        that wait in it wait for that process."""
        self._is_passed_on = passed_on
        self._accepting.cancel()
        await self._has_listener_closed.wait()

    def end(self) -> None:
        """Close each connection when its request has ended, and new connections after their first request."""
        self.leave()
        for connection in self._open:
            connection.end()

    def reset(self) -> None:
        """Close all connections at once, even in the middle of an answer."""
        for client in self._open.values():
            client.reset()

    async def wait_closed(self, seconds: float) -> None:
        """Wait until no connection is open, so many seconds at most."""
        with trio.move_on_after(seconds):
            while self._open:
                self._left = trio.Event()
                await self._left.wait()
