"""Peers on HTTP: streamable HTTP with answers that are documents or streams, and server-sent events of 2024-11-05."""

import json
from collections.abc import Sequence
from typing import Any

from mcp_nursery.supervisor import HttpTransport, SseTransport

from .links import Link
from .peers import HANDSHAKE, KEY, Asked, Leg
from .stream_peers import TcpPeer

SESSION = b"mcp-session-id: one\r\n"


def response(
    status: int = 200, body: bytes = b"", kind: bytes = b"application/json", more: bytes = b"", *, last: bool = False
) -> bytes:
    """A whole response of HTTP/1.1; the last one on its connection says so."""
    ends = b"connection: close\r\n" if last else b""
    said = (b"content-type: %s\r\n" % kind) if body else b""
    return b"HTTP/1.1 %d Said\r\n%scontent-length: %d\r\n%s%s\r\n" % (status, said, len(body), ends, more) + body


def event(data: bytes, name: bytes = b"message") -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name, data)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n%s\r\n"


class HttpPeer(TcpPeer):
    """Streamable HTTP; every answer is a document."""

    bodies_end = True
    streams = False
    """Whether its answers are streams of events."""
    path = "/mcp"
    other_port = 0
    """Another origin, of the same server."""

    async def listen(self) -> None:
        await super().listen()
        listener, port, self._listener = self._listener, self.port, None
        await super().listen()
        self._other, self.other_port = self._listener, self.port
        self._listener, self.port = listener, port

    def transport(self) -> Any:
        return HttpTransport(self.url, {"X-Key": KEY})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    async def answer(self, asked: Asked) -> None:
        if asked.head.startswith(b"POST /loop"):
            self.reply(asked)
            await asked.link.send(response(307, more=b"location: /loop\r\n"))
        else:
            await super().answer(asked)

    async def read(self, link: Link) -> Asked:
        head = await link.take_through(b"\r\n\r\n")
        sizes = [
            int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        ]
        body = await link.take(sum(sizes))
        return Asked(json.loads(body) if body else None, link, head)

    def legs(self, asked: Asked, messages: Sequence[bytes]) -> list[Leg]:
        if asked.head.startswith(b"DELETE"):
            return [(asked.link, response(200))]
        if not asked.head.startswith(b"POST"):
            return [(asked.link, response(405))]
        if not messages:
            return [(asked.link, response(202))]
        return [(asked.link, self.body(asked, messages))]

    def body(self, asked: Asked, messages: Sequence[bytes]) -> bytes:
        """A document; of several messages the text of all."""
        return response(200, b"".join(messages), more=self._more(asked))

    def _more(self, asked: Asked) -> bytes:
        return SESSION if self.version == HANDSHAKE and asked.message.get("method") == "initialize" else b""


class HttpStreamPeer(HttpPeer):
    """Streamable HTTP; every answer is a stream of events that ends with it."""

    streams = True

    def body(self, asked: Asked, messages: Sequence[bytes]) -> bytes:
        return STREAM % self._more(asked) + b"".join(chunk(event(message)) for message in messages) + b"0\r\n\r\n"


class SsePeer(HttpPeer):
    """Server-sent events: a stream that brings every answer, and a place to post to."""

    path = "/sse"
    bodies_end = False

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.stream: Link | None = None
        """The one that brings answers now."""

    def transport(self) -> Any:
        return SseTransport(self.url, {"X-Key": KEY})

    async def answer(self, asked: Asked) -> None:
        if asked.head.startswith(b"GET /sse"):
            await asked.link.send(STREAM % b"" + chunk(event(b"/messages", b"endpoint")))
            self.stream = asked.link
            await asked.link.reads(1)  # until it ends
        else:
            await super().answer(asked)

    def legs(self, asked: Asked, messages: Sequence[bytes]) -> list[Leg]:
        acknowledged = (asked.link, response(202 if asked.head.startswith(b"POST") else 405))
        if self.stream is None or not messages:
            return [acknowledged]
        return [acknowledged, (self.stream, b"".join(chunk(event(message)) for message in messages))]
