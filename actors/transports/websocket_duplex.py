"""Frames as messages of a WebSocket, on a stream that somebody else opened and closes.

trio-websocket speaks the protocol. It sits on a stream of ours, so that no write of it ever waits for the peer, no
failed write ends its reading, and the answer to its handshake is judged before it reads it.
"""

import os
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import h11
import trio
import wsproto.utilities
from attrs import field, frozen
from trio_websocket import CloseReason, ConnectionClosed, WebSocketConnection, wrap_client_stream

from ..alongside import run_alongside
from ..errors import leaves, one_line
from ..messages import Loss
from .upgrade import SUBPROTOCOL, Refusal, is_decidable, judged

_WRITE_MOST = 64 << 10
"""Bytes handed over for one write, one larger frame excepted: what was handed over can be withdrawn no more."""

_READ_MOST = 64 << 10

_NO_STATUS, _ABNORMAL = 1005, 1006


@frozen
class Request:
    """What is asked of the server."""

    host: str
    """For the `Host` header: the port included unless it is the scheme's own."""
    resource: str
    """Path and query, in ASCII."""
    headers: Sequence[tuple[bytes, bytes]] = field(default=(), repr=False)
    """Added to the handshake's own."""


class NoWebSocket(Exception):
    """The server opened no WebSocket."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.problem)


@asynccontextmanager
async def open_duplex(
    stream: trio.abc.Stream, request: Request, *, close_grace: float, frame_limit: int
) -> "AsyncGenerator[WebSocketDuplex, None]":
    """Open a WebSocket on a stream, and close it with the block. The stream itself stays open.

    Leaving takes at most `close_grace` seconds, also when cancelled. The block's exception comes out as it is.

    Raises:
        NoWebSocket: On entering.
    """
    line = _Line(stream)
    opening = _Opening(line, request, frame_limit)
    async with run_alongside(line.pump, opening.run):
        connection = await opening.done()
        try:
            yield WebSocketDuplex(line, connection)
        finally:
            with trio.move_on_after(close_grace, shield=True):
                await connection.aclose()
                await line.drained()


class WebSocketDuplex:
    """One message a frame: a `Duplex`.

    A binary message is taken like a text one. What the endpoint cannot read is noise, as on every wire.
    """

    pid = None
    """The process behind it is not ours to see."""

    def __init__(self, line: "_Line", connection: WebSocketConnection) -> None:
        self._line = line
        self._connection = connection
        self._batch: deque[bytes] = deque()
        self._begun = False
        self._ended = False

    @property
    def unfinished(self) -> bool:
        """Whether frames were begun whose rest waits for `writable()`."""
        return bool(self._batch) or self._line.backlog

    def write_nowait(self, frames: Sequence[bytes]) -> int:
        """Take what one write may hold, if nothing is in its way, and say how many were begun. Never waits.

        Raises:
            trio.BrokenResourceError: The peer reads no more. No frame of this call was begun.
        """
        self._check_open()
        if self.unfinished or not frames:
            return 0
        self._batch.extend(_one_write(frames))
        self._begun = True
        return len(self._batch)

    async def writable(self) -> None:
        """Write the frames that were begun, and wait until the peer has taken them.

        Raises:
            trio.BrokenResourceError: The peer reads no more.
        """
        try:
            while self._batch:
                await self._connection.send_message(self._batch[0].decode())
                self._batch.popleft()  # only now: a send that is cancelled has queued nothing
        except ConnectionClosed as closed:
            raise trio.BrokenResourceError("the WebSocket is closed") from closed
        await self._line.drained()
        self._check_open()

    def _check_open(self) -> None:
        if self._line.deaf or self._connection.closed is not None:
            raise trio.BrokenResourceError("the WebSocket is closed")

    async def read(self) -> list[bytes]:
        """The next message; an empty list once the peer is gone, and from then on."""
        if not self._ended:
            try:
                message = await self._connection.get_message()
            except ConnectionClosed:
                self._ended = True
            else:
                return [message if isinstance(message, bytes) else message.encode()]
        await trio.lowlevel.checkpoint()
        return []

    async def loss(self) -> Loss:
        """How it ended."""
        await trio.lowlevel.checkpoint()
        return Loss(self._what_happened(), unheard=not self._begun)

    def _what_happened(self) -> str:
        closed = self._connection.closed
        if closed is None or closed.code == _ABNORMAL:
            return self._line.fate or "closed"
        return _told(closed)


class _Opening:
    """Runs trio-websocket, whose reader may crash on what a peer sends."""

    def __init__(self, line: "_Line", request: Request, frame_limit: int) -> None:
        self._line = line
        self._request = request
        self._frame_limit = frame_limit
        self._connection: WebSocketConnection | None = None

    async def done(self) -> WebSocketConnection:
        """Wait for the connection.

        Raises:
            NoWebSocket: There is none.
        """
        await self._line.settled.wait()
        if self._connection is None:
            raise NoWebSocket(self._line.refusal or Refusal(f"opened no WebSocket: {self._line.fate}"))
        return self._connection

    async def run(self) -> None:
        """Shake hands, and read from then on."""
        try:
            async with trio.open_nursery() as nursery:
                self._connection = await wrap_client_stream(
                    nursery,
                    cast("Any", self._line),  # annotated more narrowly than it is used
                    self._request.host,
                    self._request.resource,
                    subprotocols=[SUBPROTOCOL],
                    extra_headers=list(self._request.headers),
                    message_queue_size=0,  # what waits in its queue is lost when it closes for an overlong message
                    max_message_size=self._frame_limit,
                    receive_buffer_size=_READ_MOST,
                )
                self._line.settled.set()
        except* (wsproto.utilities.ProtocolError, h11.ProtocolError, UnicodeError) as broken:
            # Before it was open: an answer of 101 that is no handshake. After: a ping while the WebSocket was closing.
            self._line.fate = f"broke the protocol: {one_line(_breach(broken))}"
            if self._connection is None:
                self._line.refusal = Refusal(self._line.fate, retriable=False)
            self._line.settled.set()


class _Line:
    """The stream as trio-websocket sees it: judged on the way in, buffered on the way out."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.settled = trio.Event()
        """Set once it is known whether there is a WebSocket."""
        self.refusal: Refusal | None = None
        """Why there is none."""
        self.fate: str | None = None
        """How the stream ended."""
        self.deaf = False
        """A write failed; what is written now is dropped, and reading goes on to the end."""
        self._stream = stream
        self._answered = False
        self._out = bytearray()
        self._writing = False
        self._filled = trio.Event()
        self._progress = trio.lowlevel.ParkingLot()

    @property
    def backlog(self) -> bool:
        """Whether something waits to be taken by the peer."""
        return bool(self._writing or self._out)

    async def drained(self) -> None:
        """Wait until the peer has taken everything, or takes nothing more."""
        while self.backlog and not self.deaf:
            await self._progress.park()

    async def pump(self) -> None:
        """Write what was sent. To be run as long as the stream is used."""
        while not self.deaf:
            await self._filled.wait()
            self._filled = trio.Event()
            data, self._out = self._out, bytearray()
            self._writing = True
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.deaf = True  # the reader will see the end
            self._writing = False
            self._progress.unpark_all()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Queue for `pump`. Waits only when much is queued already: a peer that pings and does not read."""
        while len(self._out) > _WRITE_MOST and not self.deaf:
            await self._progress.park()
        if not self.deaf:
            self._out += data
            self._filled.set()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What comes from the peer; nothing once it is gone, however it went."""
        try:
            data = await self._stream.receive_some(max_bytes) if self._answered else await self._answer()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            return self._end(f"the connection broke: {_cause(error)}")
        if not data:
            return self._end("the connection ended without a close frame")
        return bytes(data)

    async def _answer(self) -> bytes:
        """The answer to the handshake, if there is nothing against it, with whatever followed it at once."""
        head = b""
        while not is_decidable(head):
            data = await self._stream.receive_some(_READ_MOST)
            if not data:
                self.refusal = Refusal("closed the connection before it answered")
                return b""
            head += data
        self._answered = True
        self.refusal = judged(head)
        return b"" if self.refusal else head

    def _end(self, fate: str) -> bytes:
        self.fate = self.fate or fate
        self.settled.set()
        return b""

    async def aclose(self) -> None:
        """Nothing: the stream belongs to who opened it."""
        await trio.lowlevel.checkpoint()


def _one_write(frames: Sequence[bytes]) -> Sequence[bytes]:
    size = 0
    for count, frame in enumerate(frames):
        size += len(frame)
        if size > _WRITE_MOST:
            return frames[: max(count, 1)]
    return frames


def _breach(group: BaseExceptionGroup[Exception]) -> BaseException:
    """What the peer did: trio-websocket crashes of its attempt to tell the peer."""
    first = error = next(leaves(group))
    while not isinstance(error, wsproto.utilities.RemoteProtocolError):
        if error.__context__ is None:
            return first
        error = error.__context__
    return error


def _cause(error: BaseException) -> str:
    cause = error.__cause__
    return os.strerror(cause.errno) if isinstance(cause, OSError) and cause.errno else one_line(cause or error)


def _told(closed: CloseReason) -> str:
    if closed.code == _NO_STATUS:
        return "closed without saying why"
    name = closed.name.lower().replace("_", " ")
    reason = f": {one_line(closed.reason)}" if closed.reason else ""
    return f"closed with code {closed.code} ({name}){reason}"
