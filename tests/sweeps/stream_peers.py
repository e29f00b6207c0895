"""Peers on one connection for everything: a process's standard streams, and a WebSocket."""

import array
import base64
import hashlib
import json
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from mcp_nursery.supervisor import StdioTransport, WebSocketTransport

from .links import Ended, Link, PipeLink, SocketLink
from .peers import KEY, Asked, Leg, Peer

RELAY = Path(__file__).with_name("relay.py")


class StdioPeer(Peer):
    """Holds the standard streams of the processes that the supervisor starts."""

    async def listen(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sweep")
        self._path = f"{self._folder.name}/boss"
        boss = trio.socket.socket(socket.AF_UNIX)
        await boss.bind(self._path)
        boss.listen()
        self.nursery.start_soon(self._accept, boss)

    async def _accept(self, boss: trio.socket.SocketType) -> None:
        with self._folder, boss:
            while True:
                process, _ = await boss.accept()
                _, extra, _, _ = await process.recvmsg(1, socket.CMSG_SPACE(8))
                if not extra:  # killed for its slow start between the two calls
                    process.close()
                    continue
                stdin, stdout = array.array("i", extra[0][2])
                link = PipeLink(stdin, stdout, process)
                self.nursery.start_soon(self.serve, link)

    def transport(self) -> Any:
        return StdioTransport(sys.executable, ["-I", "-S", str(RELAY), self._path], {"KEY": KEY})

    async def read(self, link: Link) -> Asked:
        return Asked(json.loads(await link.take_through(b"\n")), link)

    def legs(self, asked: Asked, messages: Sequence[bytes]) -> list[Leg]:
        return [(asked.link, b"".join(message + b"\n" for message in messages))]


def bound(port: int) -> trio.socket.SocketType:
    """A socket on this port of loopback; 0: on any. Several may be bound to one port while at most one listens."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return trio.socket.from_stdlib_socket(made)


class TcpPeer(Peer):
    """Listens on a port of loopback, and keeps it while it refuses."""

    port = 0
    _listener: trio.socket.SocketType | None = None
    """None while it refuses."""

    async def listen(self) -> None:
        self.nursery.start_soon(self._hold, held := bound(0))
        self.port = held.getsockname()[1]
        await self.accept()

    async def accept(self) -> None:
        if self._listener is not None:
            return  # refused twice, it comes back twice
        self._listener = listener = bound(self.port)
        listener.listen(64)
        self.nursery.start_soon(self._accept, listener)

    def refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _hold(self, held: trio.socket.SocketType) -> None:
        """Keep the port: nobody else gets it while no socket listens on it."""
        with held:
            await trio.sleep_forever()

    async def _accept(self, listener: trio.socket.SocketType) -> None:
        with listener:
            while True:
                try:
                    connection, _ = await listener.accept()
                except (trio.ClosedResourceError, OSError):
                    return
                self.nursery.start_soon(self.serve, SocketLink(connection))


TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


class WebSocketPeer(TcpPeer):
    """One message a frame, from either side."""

    def transport(self) -> Any:
        return WebSocketTransport(f"ws://127.0.0.1:{self.port}/mcp", {"X-Key": KEY})

    async def open(self, link: Link) -> None:
        head = await link.take_through(b"\r\n\r\n")
        lines = [line.partition(b":") for line in head.split(b"\r\n")]
        (key,) = (value.strip() for name, _, value in lines if name.lower() == b"sec-websocket-key")
        digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        await link.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: mcp\r\nSec-WebSocket-Accept: %s\r\n\r\n" % base64.b64encode(digest)
        )

    async def read(self, link: Link) -> Asked:
        while True:
            kind, data = await self._frame(link)
            if kind == TEXT:
                return Asked(json.loads(data), link)
            if kind == PING:
                await link.send(frame(data, PONG))
            if kind == CLOSE:
                await link.send(frame(data, CLOSE))
                raise Ended

    async def _frame(self, link: Link) -> tuple[int, bytes]:
        first, second = await link.take(2)
        size = second & 127
        if size > 125:
            (size,) = struct.unpack(*((">H", await link.take(2)) if size == 126 else (">Q", await link.take(8))))
        mask = await link.take(4)
        data = await link.take(size)
        return first & 15, bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))

    def legs(self, asked: Asked, messages: Sequence[bytes]) -> list[Leg]:
        return [(asked.link, b"".join(map(frame, messages)))]


def frame(data: bytes, kind: int = TEXT, first: int = 128) -> bytes:
    """Of a server: without a mask."""
    if len(data) < 126:
        size = bytes([len(data)])
    else:
        size = struct.pack(">BH", 126, len(data)) if len(data) < 1 << 16 else struct.pack(">BQ", 127, len(data))
    return bytes([first | kind]) + size + data
