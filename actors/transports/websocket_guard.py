"""The stream under trio-websocket: checked on the way in, buffered on the way out, so that nothing crashes it."""

import os
from typing import Final

import trio

from ..errors import one_line
from .websocket_handshake import Refusal, is_decidable, refusal_of
from .websocket_pace import MOST_FRAGMENTS, Pace

WRITE_MOST = 64 << 10
"""Bytes handed over for one write, except for one larger frame: what was handed over cannot be withdrawn."""

READ_MOST = 64 << 10
"""Bytes asked of the stream at once."""
_END = b"\r\n\r\n"


class Line:
    """One stream. Its owner runs `pump`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.settled: Final = trio.Event()
        """Set once it is known whether there is a WebSocket."""
        self.refusal: Refusal | None = None
        """Why there is none."""
        self.ending: str | None = None
        """How the stream ended."""
        self.deaf: bool = False
        """A write failed; what is written now is dropped, and reading goes on to the end."""
        self._stream = stream
        self._answered = False
        self._pace = Pace()
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
        while len(self._out) > WRITE_MOST and not self.deaf:
            await self._progress.park()
        if not self.deaf:
            self._out += data
            self._filled.set()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Bytes from the peer; none once it is gone."""
        try:
            data = await self._frames(max_bytes) if self._answered else await self._answer()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            return self._end(f"the connection broke: {_cause(error)}")
        if self._pace.fragments > MOST_FRAGMENTS:
            return self._end(f"sent a message in more than {MOST_FRAGMENTS} fragments")
        return data or self._end("the connection ended without a close frame")

    async def _frames(self, max_bytes: int | None) -> bytes:
        """Some of the bytes that came, after a turn of other tasks."""
        if data := self._pace.take():
            await trio.lowlevel.checkpoint()
            return data
        while more := await self._stream.receive_some(max_bytes):
            self._pace.add(bytes(more))
            if data := self._pace.take():
                return data
        return b""

    async def _answer(self) -> bytes:
        """The answer to the handshake if it is acceptable, with the bytes that followed it at once."""
        head = b""
        while not is_decidable(head):
            data = await self._stream.receive_some(READ_MOST)
            if not data:
                self.refusal = Refusal("closed the connection before it answered")
                return b""
            head += data
        self._answered = True
        self.refusal = refusal_of(head)
        if self.refusal:
            return b""
        end = head.index(_END) + len(_END)
        self._pace.add(head[end:])
        return head[:end]

    def _end(self, ending: str) -> bytes:
        self.ending = self.ending or ending
        self.settled.set()
        return b""

    async def aclose(self) -> None:
        """Do nothing: the stream belongs to its opener."""
        await trio.lowlevel.checkpoint()


def _cause(error: BaseException) -> str:
    cause = error.__cause__
    return os.strerror(cause.errno) if isinstance(cause, OSError) and cause.errno else one_line(cause or error)
