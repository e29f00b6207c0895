"""The stream under trio-websocket: checked on the way in, buffered on the way out, so that nothing crashes it.

Its input is paced: frames are handed on some at a time. trio-websocket processes all that one read brings in one go,
and an empty frame has two bytes: 64 KiB of them block the loop for half a second. It also keeps the fragments of a
message until the last, however many there are.
"""

import math
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

import h11
import trio

from mcp_nursery.actors.records import evolve

from ...errors import one_line
from ...http import limits
from ...http.responses import words_in
from .upgrade import HandshakeRefusal, is_decidable, refusal_of

_FRAMES_AT_ONCE: Final = 64
"""Frames that are handed on at once: a millisecond."""
MOST_FRAGMENTS: Final = 100_000
"""Fragments of one message: those of 64 MiB may have 670 bytes each, and servers send thousands."""
_FINAL: Final = 0x80
_FIRST_CONTROL_OPCODE: Final = 0x08
_SHORT_SIZE: Final = 0x7F
_LONG_SIZES: Final = {126: slice(2, 4), 127: slice(2, 10)}
"""The place of the size of a payload that is too large for seven bits."""
_MASK: Final = 4


class FramePace:
    """The bytes that came and were not handed on yet."""

    def __init__(self) -> None:
        self.fragments: int = 0
        """Fragments of a message whose last has not come."""
        self._held = b""
        self._payload = 0
        """Bytes still to come of the frame that was begun."""

    def add(self, data: bytes) -> None:
        """Add bytes that came."""
        self._held = self._held + data if self._held else data

    def take(self) -> bytes:
        """The bytes to hand on now; none if all were handed on but the beginning of a frame's head."""
        held = self._held
        end = self._skip(0)
        for _ in range(_FRAMES_AT_ONCE):
            size = _head_size(held, end)
            if self._payload or end + size > len(held):
                break
            self._note(held[end])
            self._payload = _payload_size(held[end : end + size])
            end = self._skip(end + size)
        self._held = held[end:]
        return held[:end]

    def _skip(self, at: int) -> int:
        """The offset at which the payload of the frame ends, as far as it came."""
        part = min(self._payload, len(self._held) - at)
        self._payload -= part
        return at + part

    def _note(self, first: int) -> None:
        if not first & _FIRST_CONTROL_OPCODE:
            self.fragments = 0 if first & _FINAL else self.fragments + 1


def _head_size(data: bytes, at: int) -> int:
    """The size of a frame's head, or more than has come if it is not known yet."""
    if at + 2 > len(data):
        return 2
    second = data[at + 1]
    where = _LONG_SIZES.get(second & _SHORT_SIZE)
    return (2 if where is None else where.stop) + (_MASK if second & _FINAL else 0)


def _payload_size(head: bytes) -> int:
    short = head[1] & _SHORT_SIZE
    where = _LONG_SIZES.get(short)
    return short if where is None else int.from_bytes(head[where])


WRITE_MOST = 64 << 10
"""Bytes handed over for one write, except for one larger frame: what was handed over cannot be withdrawn."""

HELD_SECONDS: Final = 0.02
"""Seconds that sent data waits for more: each message takes a turn of the loop, and a turn may take 50 ms."""
READ_MOST = 64 << 10
"""Bytes asked of the stream at once."""
_END = b"\r\n\r\n"


class Line:
    """One stream. Its owner runs `pump`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.settled: Final = trio.Event()
        """Set once it is known whether there is a WebSocket."""
        self.refusal: HandshakeRefusal | None = None
        """The reason why there is none."""
        self.ending: str | None = None
        """The reason why the stream ended."""
        self.deaf: bool = False
        """True if a write failed: later ones are dropped, and reading goes on to the end."""
        self._stream = stream
        self._answered = False
        self._pace = FramePace()
        self._out = bytearray()
        self._writing = False
        self._is_held = False
        self._held_until = math.inf
        self._filled = trio.Event()
        self._progress = trio.lowlevel.ParkingLot()

    @property
    def backlog(self) -> bool:
        """True if something waits to be taken by the peer."""
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
        """Queue data for `pump`. Waits only when much is queued already, for a peer that pings and does not read."""
        while len(self._out) > WRITE_MOST and not self.deaf:
            self._filled.set()
            await self._progress.park()
        if not self.deaf:
            self._out += data
            if not self._is_held or trio.current_time() >= self._held_until:
                self._held_until = trio.current_time() + HELD_SECONDS
                self._filled.set()

    @contextmanager
    def held(self) -> Generator[None, None, None]:
        """Have what is sent in a block wait for more, as one write: trio-websocket lets others run after each message.
        With 128 calls at once each takes 0.65 of the time."""
        self._is_held, self._held_until = True, trio.current_time() + HELD_SECONDS
        try:
            yield
        finally:
            self._is_held = False
            if self._out:
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
        """The answer to the handshake if acceptable. Bytes that followed it at once are held for `_frames`."""
        head = b""
        while not is_decidable(head):
            data = await self._stream.receive_some(READ_MOST)
            if not data:
                self.refusal = HandshakeRefusal("closed the connection before it answered")
                return b""
            head += data
        self._answered = True
        self.refusal = refusal_of(head)
        if self.refusal:
            if self.refusal.status is not None and (words := words_in(await self._body(head))):
                self.refusal = evolve(self.refusal, problem=f"{self.refusal.problem}: {words}")
            return b""
        end = head.index(_END) + len(_END)
        self._pace.add(head[end:])
        return head[:end]

    async def _body(self, begun: bytes) -> bytes:
        """The body of an answer that opens no WebSocket; nothing if it is too large, breaks off, or takes too long."""
        http, body = h11.Connection(h11.CLIENT), b""
        http.send(h11.Request(method="GET", target="/", headers=[("Host", "")]))  # the question that it answers
        http.send(h11.EndOfMessage())
        with trio.move_on_after(limits.REFUSAL_TIMEOUT), suppress(h11.RemoteProtocolError, trio.BrokenResourceError):
            http.receive_data(begun)
            while len(body) <= limits.REFUSAL_LIMIT:
                event = http.next_event()
                if isinstance(event, h11.EndOfMessage):
                    return body
                if isinstance(event, h11.Data):
                    body += event.data
                elif event is h11.NEED_DATA:
                    http.receive_data(bytes(await self._stream.receive_some(READ_MOST)))
        return b""

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
