"""One HTTP response to a client: a JSON document, or, once there is something to say before the answer, a stream of
events. Both end it for good, and nothing is written after that."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final

import trio

from mcp_nursery.actors.jsonrpc import codec

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

_EVENTS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_LINE_ENDS: Final = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"), (b"\xc2\x85", rb"\u0085"))
"""What many clients take for the end of a line, wrongly, and its JSON."""
LARGE: Final = 64 << 10
"""Bytes of a message from which on it is written in pieces."""
_JSON: Final = (b"content-type", b"application/json")
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")


class Response:
    """The response to one HTTP request.

    Args:
        send: Of ASGI. It waits while the client does not read.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.headers: dict[str, str] = {}
        """Added to those of the kind of response."""
        self._lock = trio.Lock()
        self._streams = False
        self.ended: bool = False
        """Whether the last byte is on its way: what the client does from now on changes nothing."""

    async def event(self, frame: bytes) -> None:
        """Send one message as an event, unless the response has ended."""
        await self._write(*_event(frame))

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification as an event."""
        await self.event(codec.notification(method, params))

    async def _write(self, *pieces: bytes) -> None:
        async with self._lock:
            if self.ended:
                return
            await self._begin_stream()
            for piece in pieces:
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def open_stream(self) -> None:
        """Begin a stream of events."""
        async with self._lock:
            await self._begin_stream()
            # Web servers keep the head until there is something of the body, be it empty.
            await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def _begin_stream(self) -> None:
        if not self._streams:
            self._streams = True
            await self._start(HTTPStatus.OK, _EVENTS)

    async def _start(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        own = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *own]})

    async def keep_alive(self) -> None:
        """Say that there is still somebody. Begins the stream if nothing was said before."""
        await self._write(b": ping\r\n\r\n")

    async def answer(self, frame: bytes, status: int = HTTPStatus.OK) -> None:
        """End it with this message: as the last event of its stream, or as a document with this status."""
        await self._finish(frame, status, _JSON, _event)

    async def document(self, body: bytes, kind: bytes) -> None:
        """End it with this."""
        await self._finish(body, HTTPStatus.OK, (b"content-type", kind), _event)

    async def end(self, status: int = HTTPStatus.ACCEPTED, text: str = "") -> None:
        """End it without a message."""
        await self._finish(text.encode(), status, _TEXT, lambda _: (b"",))

    async def _finish(
        self, body: bytes, status: int, kind: tuple[bytes, bytes], last: Callable[[bytes], tuple[bytes, ...]]
    ) -> None:
        """End it with this body, or with what that is at the end of a stream."""
        if self._streams:
            async with self._lock:
                await self._end(*last(body))
        else:  # nobody has written, and who comes from now on finds that it has ended
            await self._end(body, status=status, headers=(kind, (b"content-length", b"%d" % len(body))))

    async def _end(
        self, *pieces: bytes, status: int | None = None, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        self.ended = True
        # Cut off in the middle it would be no response, and its connection of no more use. It lasts
        # as long as a web server lets a client take.
        with trio.CancelScope(shield=True):
            if status is not None:
                await self._start(status, headers)
            for number, piece in enumerate(pieces, 1):
                await self._send({"type": "http.response.body", "body": piece, "more_body": number < len(pieces)})


def _event(frame: bytes) -> tuple[bytes, ...]:
    """An event with this message. A large one, which may wait for long, is not copied."""
    for character, escape in _LINE_ENDS:
        frame = frame.replace(character, escape)
    event = b"event: message\r\ndata: ", frame, b"\r\n\r\n"
    return event if len(frame) > LARGE else (b"".join(event),)
