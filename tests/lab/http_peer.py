"""A server on loopback that speaks MCP over raw HTTP, and treats each call as it is told."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from mcp_nursery.actors.jsonrpc.codec import encode
from mcp_nursery.actors.messages import Request
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.session.connection import Connection
from mcp_nursery.actors.transports.http.connectors import SseConnector, StreamableHttpConnector

from .tool_requests import tool_request

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
TOOLS = [
    {"name": "once", "inputSchema": {"type": "object"}},
    {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]
INFO = {"name": "peer", "version": "1"}
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def response(
    status: int = 200, body: bytes = b"", kind: bytes = b"application/json", more: bytes = b"", *, last: bool = False
) -> bytes:
    ends = b"connection: close\r\n" if last else b""
    return b"HTTP/1.1 %d Said\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s%s\r\n%s" % (
        *(status, kind, len(body), ends, more, body),
    )


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(message: Any, name: bytes = b"message", more: bytes = b"") -> bytes:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return chunk(b"event: %s\n%sdata: %s\n\n" % (name, more, data))


def text(message: Any, words: str) -> dict[str, Any]:
    content = {"content": [{"type": "text", "text": words}], "resultType": "complete"}
    return {"jsonrpc": "2.0", "id": message["id"], "result": content}


class RenewingAuth(httpx2.Auth):
    """Gets another token for each request that is refused, once it is `ready`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.waiting = trio.Event()
        self.ready = trio.Event()

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        refused = yield request
        if refused.status_code in (401, 403):
            self.waiting.set()
            await self.ready.wait()
            if self.error is not None:
                raise self.error
            yield request


class Asked:
    """One request, and the stream that it came on."""

    def __init__(self, peer: "HttpPeer", stream: trio.SocketStream, head: bytes, body: bytes) -> None:
        self.peer = peer
        self.stream = stream
        self.head = head
        self.method, self.path = head.split(b" ")[:2]
        self.message = json.loads(body) if body.startswith(b"{") else {}

    def header(self, name: bytes) -> bytes | None:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.lower() == name:
                return value.strip()
        return None

    def execute(self) -> dict[str, Any]:
        """Act; the message that says so."""
        self.peer.ledger.append(self.message["params"]["name"])
        return text(self.message, "done")

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def say(self, message: Any, **more: Any) -> None:
        """Answer as the transport does."""
        if self.peer.stream is None:
            await self.send(response(200, json.dumps(message).encode(), **more))
        else:
            await self.send(response(202))
            await self.peer.stream.send_all(event(message))


class HttpPeer:
    """Keeps what it was asked and what it did; `on_call` is given each call."""

    def __init__(self, era: str = MODERN, *, sse: bool = False, backlog: int = 1) -> None:
        self.era = era
        self.sse = sse
        self.backlog = backlog
        """Connections that wait to be accepted; the system lets others wait for a second."""
        self.asked: list[Asked] = []
        self.ledger: list[str] = []
        self.stream: trio.SocketStream | None = None
        """The stream that brings answers, over SSE."""
        self.streams: set[trio.SocketStream] = set()
        """Connections that are open."""
        self.connections = 0
        """How many there have been."""
        self.on_call: Callable[[Asked], Awaitable[None]] = self.answer
        self.on_other: Callable[[Asked], Awaitable[object]] | None = None
        """Sees to a request in another way, if it says so by True."""
        self.listening = trio.CancelScope()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/{'sse' if self.sse else 'mcp'}"

    def heard(self, method: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.message.get("method") == method]

    @staticmethod
    async def answer(asked: Asked) -> None:
        await asked.say(asked.execute())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=self.backlog)
        self.port = listeners[0].socket.getsockname()[1]
        self.listener = listeners[0]
        async with trio.open_nursery() as self.nursery:
            with self.listening:
                task_status.started()
                await trio.serve_listeners(self._serve, listeners, handler_nursery=self.nursery)

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.streams.add(stream)
        self.connections += 1
        try:
            async with stream:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    received = bytearray()
                    while (asked := await self._read(stream, received)) is not None:
                        self.asked.append(asked)
                        await self._handle(asked)
        finally:
            self.streams.discard(stream)

    async def _read(self, stream: trio.SocketStream, received: bytearray) -> Asked | None:
        while (gap := received.find(b"\r\n\r\n")) < 0 or len(received) < gap + 4 + _length(received[:gap]):
            part = await stream.receive_some(1 << 16)
            if not part:
                return None
            received += part
        end = gap + 4 + _length(received[:gap])
        head, body = bytes(received[:gap]), bytes(received[gap + 4 : end])
        del received[:end]
        return Asked(self, stream, head, body)

    async def _handle(self, asked: Asked) -> None:
        if self.on_other is not None and await self.on_other(asked):
            return
        if asked.method == b"GET" and asked.path.startswith(b"/sse"):
            await asked.send(STREAM + event(b"/messages?session=1", b"endpoint"))
            self.stream = asked.stream
            await trio.sleep_forever()
        elif asked.method != b"POST":
            await asked.send(response(405 if asked.method == b"GET" else 200))
        elif asked.message.get("method") == "tools/call":
            await self.on_call(asked)
        else:
            await self._talk(asked)

    async def _talk(self, asked: Asked) -> None:
        message = asked.message
        match message.get("method"):
            case "server/discover" if self.era == MODERN:
                info = {"_meta": {"io.modelcontextprotocol/serverInfo": INFO}}
                await self._result(asked, {"supportedVersions": [MODERN], "capabilities": {"tools": {}}, **info})
            case "initialize" if self.era == HANDSHAKE:
                result = {"protocolVersion": HANDSHAKE, "serverInfo": INFO, "capabilities": {"tools": {}}}
                await self._result(asked, result, b"mcp-session-id: one\r\n")
            case "tools/list":
                await self._result(asked, {"tools": TOOLS})
            case "ping":
                await self._result(asked, {})
            case _ if "id" in message and "method" in message:
                error = {"code": -32601, "message": "Method not found"}
                await asked.say({"jsonrpc": "2.0", "id": message["id"], "error": error})
            case _:
                await asked.send(response(202))

    async def _result(self, asked: Asked, result: dict[str, Any], more: bytes = b"") -> None:
        stamp = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if self.era == MODERN else {}
        message = {"jsonrpc": "2.0", "id": asked.message["id"], "result": {**result, **stamp}}
        await asked.say(message, **({"more": more} if self.stream is None else {}))


def _length(head: bytes | bytearray) -> int:
    sizes = [int(line[15:]) for line in bytes(head).lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return sum(sizes)


def call(tool: str = "once", *, limited: bool = False, arguments: object = None) -> Request:
    encoded = None if arguments is None else encode(arguments)
    return tool_request(server="lab", tool=tool, arguments=encoded, meta={}, slot=ReplySlot(), limited=limited)


@asynccontextmanager
async def serving(era: str = MODERN, *, sse: bool = False, backlog: int = 1) -> AsyncGenerator[HttpPeer, None]:
    peer = HttpPeer(HANDSHAKE if sse else era, sse=sse, backlog=backlog)
    async with trio.open_nursery() as nursery:
        await nursery.start(peer.run)
        yield peer
        nursery.cancel_scope.cancel()


def connector(peer: HttpPeer, **settings: Any) -> SseConnector | StreamableHttpConnector:
    make = SseConnector if peer.sse else StreamableHttpConnector
    return make(f"{peer.url}{settings.pop('query', '')}", settings.pop("headers", {}), close_grace=1, **settings)


@asynccontextmanager
async def connected(
    era: str = MODERN, *, sse: bool = False, backlog: int = 1, host: Any = None, **settings: Any
) -> AsyncGenerator[tuple[HttpPeer, Connection], None]:
    """A peer, and a connection to it that has listed its tools."""
    async with serving(era, sse=sse, backlog=backlog) as peer:
        opening = connector(peer, **settings)
        async with opening.connect() if host is None else opening.connect(host) as connection:
            await connection.handshake(None)
            await connection.list_tools()
            yield peer, connection


async def outcome_of(connection: Connection, sent: Request) -> Any:
    """What becomes of a call."""
    connection.submit([sent])
    with trio.fail_after(20):
        return await sent.slot.wait()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(20):
        while not condition():  # of a peer that is another task
            await trio.testing.wait_all_tasks_blocked(0.005)


serve_tcp = partial(trio.serve_tcp, host="127.0.0.1")


WIRES: dict[str, dict[str, Any]] = {
    "modern": {"era": MODERN},
    "handshake": {"era": HANDSHAKE},
    "sse": {"sse": True},
}
anyhow = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
bodies = pytest.mark.parametrize("wire", [WIRES["modern"], WIRES["handshake"]], ids=["modern", "handshake"])
