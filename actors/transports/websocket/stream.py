"""Frames as messages of a WebSocket, on a stream that somebody else opened and closes.

trio-websocket speaks the protocol. It sits on a stream of ours, so that no write of it ever waits for the peer, no
failed write ends its reading, and the answer to its handshake is judged before it reads it.
"""

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import h11
import trio
import wsproto.utilities
from trio_websocket import CloseReason, ConnectionClosed, WebSocketConnection, wrap_client_stream

from mcp_nursery.actors.records import field, frozen

from ...errors import leaves, one_line
from ...nurseries import run_alongside
from ...outcomes import Loss
from .guard import READ_MOST, WRITE_MOST, Line
from .upgrade import SUBPROTOCOL, HandshakeRefusal

_NO_STATUS, _ABNORMAL = 1005, 1006


@frozen
class UpgradeRequest:
    """The request for a WebSocket."""

    host: str
    """For the `Host` header, with the port unless it is the scheme's own."""
    resource: str
    """Path and query, in ASCII."""
    headers: Sequence[tuple[bytes, bytes]] = field(default=(), repr=False)
    """Headers added to the handshake's own."""


class NoWebSocket(Exception):
    """The server opened no WebSocket."""

    def __init__(self, refusal: HandshakeRefusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.problem)


@asynccontextmanager
async def open_stream(
    stream: trio.abc.Stream, request: UpgradeRequest, *, close_grace: float, frame_limit: int
) -> "AsyncGenerator[WebSocketStream, None]":
    """Open a WebSocket on a stream; leaving the block closes it. The stream itself stays open.

    Leaving takes at most `close_grace` seconds, also when cancelled. The block's exception is not wrapped.

    Raises:
        NoWebSocket: On entering.
    """
    line = Line(stream)
    opening = _Opening(line, request, frame_limit)
    async with run_alongside(line.pump, opening.run):
        connection = await opening.done()
        try:
            yield WebSocketStream(line, connection)
        finally:
            with trio.move_on_after(close_grace, shield=True):
                await opening.close(connection)
                await line.drained()


class WebSocketStream:
    """A `FrameStream` on a WebSocket: one message a frame.

    A binary message is taken like a text one. What the endpoint cannot read is noise, as on every wire.
    """

    pid = None
    """None: its process is not known."""

    def __init__(self, line: Line, connection: WebSocketConnection) -> None:
        self._line = line
        self._connection = connection
        self._batch: deque[bytes] = deque()
        self._begun = False
        self._ended = False

    @property
    def unfinished(self) -> bool:
        """True if frames were begun whose rest waits for `writable()`."""
        return bool(self._batch) or self._line.backlog

    def write_nowait(self, frames: Sequence[bytes]) -> int:
        """Take what one write may hold, unless earlier frames wait; return how many were begun. Never waits.

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
            with self._line.held():
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

    async def taken(self) -> None:
        """Return at once: what was read is unknown, and a server that accepted the connection has started."""
        await trio.lowlevel.checkpoint()

    async def read(self) -> list[bytes]:
        """Wait for the next message. The list is empty once the peer is gone, and only then."""
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
        """The reason for its end."""
        await trio.lowlevel.checkpoint()
        return Loss(self._what_happened(), unheard=not self._begun)

    def _what_happened(self) -> str:
        closed = self._connection.closed
        if closed is None or closed.code == _ABNORMAL:
            return self._line.ending or "closed"
        return _describe(closed)


class _Opening:
    """The task of trio-websocket, whose reader may crash on what a peer sends."""

    def __init__(self, line: Line, request: UpgradeRequest, frame_limit: int) -> None:
        self._line = line
        self._request = request
        self._frame_limit = frame_limit
        self._connection: WebSocketConnection | None = None
        self._reading_over = trio.Event()
        """Set once trio-websocket reads no more."""

    async def close(self, connection: WebSocketConnection) -> None:
        """Close it. Its reader may crash on a ping meanwhile: the answer to the close would reach nobody."""
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await self._reading_over.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up)
            await connection.aclose()
            nursery.cancel_scope.cancel()

    async def done(self) -> WebSocketConnection:
        """Wait for the connection.

        Raises:
            NoWebSocket: There is none.
        """
        await self._line.settled.wait()
        if self._connection is None:
            raise NoWebSocket(self._line.refusal or HandshakeRefusal(f"opened no WebSocket: {self._line.ending}"))
        return self._connection

    async def run(self) -> None:
        """Do the handshake, and read from then on."""
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
                    receive_buffer_size=READ_MOST,
                )
                self._line.settled.set()
        except* (wsproto.utilities.ProtocolError, h11.ProtocolError, UnicodeError) as broken:
            # Before it was open: an answer of 101 that is no handshake. After: a ping while the WebSocket was closing.
            self._line.ending = f"broke the protocol: {one_line(_breach(broken))}"
            if self._connection is None:
                self._line.refusal = HandshakeRefusal(self._line.ending, retriable=False)
            self._line.settled.set()
        finally:
            self._reading_over.set()


def _one_write(frames: Sequence[bytes]) -> Sequence[bytes]:
    size = 0
    for count, frame in enumerate(frames):
        size += len(frame)
        if size > WRITE_MOST:
            return frames[: max(count, 1)]
    return frames


def _breach(group: BaseExceptionGroup[Exception]) -> BaseException:
    """The peer's fault: trio-websocket raises another error when it reports that to the peer."""
    first = error = next(leaves(group))
    while not isinstance(error, wsproto.utilities.RemoteProtocolError):
        if error.__context__ is None:
            return first
        error = error.__context__
    return error


def _describe(closed: CloseReason) -> str:
    if closed.code == _NO_STATUS:
        return "closed without saying why"
    name = closed.name.lower().replace("_", " ")
    reason = f": {one_line(closed.reason)}" if closed.reason else ""
    return f"closed with code {closed.code} ({name}){reason}"
