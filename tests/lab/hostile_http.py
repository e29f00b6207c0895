"""A hostile server over real HTTP: raw bodies, no framework that would refuse to send them."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from .hostile import Plan, Speaker

JSON, STREAM = b"application/json", b"text/event-stream"


def event(data: bytes, name: bytes = b"message") -> bytes:
    lines = b"".join(b"data: %s\n" % line for line in data.split(b"\n"))
    return b"event: %s\n%s\n" % (name, lines)


def head(kind: bytes, *, status: bytes = b"200 OK", length: int | None = None) -> bytes:
    size = b"" if length is None else b"content-length: %d\r\n" % length
    return b"HTTP/1.1 %s\r\ncontent-type: %s\r\n%sconnection: close\r\n\r\n" % (status, kind, size)


class HostileHttp:
    """Speaks streamable HTTP on `/mcp`, with a document or a stream for an answer, and SSE on `/sse`."""

    def __init__(self, plan: Plan, *, streams: bool) -> None:
        self._speaker = Speaker(plan)
        self._streams = streams
        self._listeners: list[Callable[[bytes], Awaitable[None]]] = []

    async def serve(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._exchange, listeners)
            task_status.started(listeners[0].socket.getsockname()[1])

    async def _exchange(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                request, body = await read_request(stream)
                await self._respond(stream, request, body)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the client has gone

    async def _respond(self, stream: trio.SocketStream, request: bytes, body: bytes) -> None:
        if request.startswith(b"GET /sse"):
            await self._listen(stream)
        elif request.startswith(b"POST /messages"):
            await stream.send_all(head(JSON, status=b"202 Accepted", length=0))
            for said in self._speaker.hear(json.loads(body)):
                for listener in self._listeners:
                    await listener(said)
        elif request.startswith(b"POST"):
            await self._answer(stream, json.loads(body))
        else:
            await stream.send_all(head(JSON, status=b"405 No", length=0))

    async def _answer(self, stream: trio.SocketStream, message: dict[str, Any]) -> None:
        said = self._speaker.hear(message)
        if not said:
            await stream.send_all(head(JSON, status=b"202 Accepted", length=0))
        elif self._streams:
            await stream.send_all(head(STREAM) + b"".join(map(event, said)))
        else:
            await stream.send_all(head(JSON, length=len(said[-1])) + said[-1])

    async def _listen(self, stream: trio.SocketStream) -> None:
        await stream.send_all(head(STREAM) + event(b"/messages", b"endpoint"))
        sends = trio.Lock()

        async def send(said: bytes) -> None:
            async with sends:
                await stream.send_all(event(said))

        self._listeners.append(send)
        try:
            await stream.receive_some(1)  # until the client goes
        finally:
            self._listeners.remove(send)


async def read_request(stream: trio.SocketStream) -> tuple[bytes, bytes]:
    received = bytearray()
    while (gap := received.find(b"\r\n\r\n")) < 0:
        received += await _some(stream)
    request = bytes(received[:gap])
    sizes = [
        int(line.partition(b":")[2]) for line in request.split(b"\r\n") if line.lower().startswith(b"content-length")
    ]
    while len(received) < gap + 4 + sum(sizes):
        received += await _some(stream)
    return request, bytes(received[gap + 4 :])


async def _some(stream: trio.SocketStream) -> bytes:
    chunk = await stream.receive_some(65536)
    if not chunk:
        raise trio.BrokenResourceError
    return chunk
