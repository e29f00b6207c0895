"""The far side of a WebSocket, under the test's control: a server of trio-websocket, or bytes on a bare connection."""

import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from trio_websocket import serve_websocket
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection

from mcp_nursery.actors.transports.websocket.connector import WebSocketConnector

CLOSE, PING, TEXT, BINARY, CONTINUATION = 8, 9, 1, 2, 0


def connector(url: str, **settings: Any) -> WebSocketConnector:
    return WebSocketConnector(url, **{"headers": {}, "close_grace": 1.0, **settings})


@asynccontextmanager
async def serving(
    handler: Callable[[Any], Awaitable[None]], ssl_context: ssl.SSLContext | None = None
) -> AsyncGenerator[str, None]:
    """A server of trio-websocket; `handler` gets each request. Gives its URL."""
    async with trio.open_nursery() as nursery:
        start = partial(serve_websocket, handler, "127.0.0.1", 0, ssl_context, max_message_size=1 << 30)
        server = await nursery.start(start)
        yield f"{'ws' if ssl_context is None else 'wss'}://127.0.0.1:{server.port}/mcp"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def listening(script: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncGenerator[str, None]:
    """A bare TCP server; `script` gets each connection, which it may leave open. Gives its URL."""

    async def handle(stream: trio.SocketStream) -> None:
        await script(stream)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        yield f"ws://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def scripted(
    script: Callable[[trio.SocketStream], Awaitable[None]], **settings: Any
) -> AsyncGenerator[Any, None]:
    """A stream to a script that writes bytes once the WebSocket is open."""

    async def greet_first(stream: trio.SocketStream) -> None:
        await accept(stream)
        await script(stream)

    async with listening(greet_first) as url:
        with trio.fail_after(60):
            async with connector(url, **settings).open() as opened:
                yield opened


async def accept(stream: trio.SocketStream, **answer: Any) -> None:
    """The opening handshake."""
    await stream.send_all(await acceptance(stream, **answer))


async def acceptance(
    stream: trio.SocketStream, subprotocol: str = "mcp", extra_headers: Iterable[tuple[bytes, bytes]] = ()
) -> bytes:
    """The bytes that accept what the client asks."""
    protocol = WSConnection(ConnectionType.SERVER)
    protocol.receive_data(await request_of(stream))
    next(protocol.events())
    return protocol.send(AcceptConnection(subprotocol=subprotocol, extra_headers=list(extra_headers)))


async def request_of(stream: trio.SocketStream) -> bytes:
    request = b""
    while b"\r\n\r\n" not in request:
        request += bytes(await stream.receive_some())
    return request


async def until_end(stream: trio.SocketStream) -> bytes:
    """Read to the end of what the client sends."""
    heard = b""
    async for data in stream:
        heard += data
    return heard


def frame(opcode: int, payload: bytes = b"", *, final: bool = True, header: bytes | None = None) -> bytes:
    """A frame as a server sends it."""
    size = len(payload)
    if header is None:
        first = opcode | (0x80 if final else 0)
        if size < 126:
            header = struct.pack("!BB", first, size)
        elif size < 1 << 16:
            header = struct.pack("!BBH", first, 126, size)
        else:
            header = struct.pack("!BBQ", first, 127, size)
    return header + payload


def close_frame(code: int | None = None, reason: str = "") -> bytes:
    return frame(CLOSE, b"" if code is None else struct.pack("!H", code) + reason.encode())


async def reset(stream: trio.SocketStream) -> None:
    """Break the connection the hard way."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await trio.aclose_forcefully(stream)


async def everything(opened: Any) -> list[bytes]:
    """All frames to the end."""
    frames: list[bytes] = []
    while batch := await opened.read():
        frames += batch
    return frames


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
