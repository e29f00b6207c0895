"""Server-sent events, parsed as they come, within a limit: an event that is too large is skipped and reported.

So the stream goes on after it, and its beginning and end still show which request it answers.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Sequence

import trio

from mcp_nursery.actors.records import frozen

_BYTES_PER_TURN = 1 << 16
"""Bytes processed in one turn of the loop: a few compressed bytes can become very many."""
_LINES_PER_TURN = 500
"""Lines processed in one turn: a server may send nothing but empty ones."""
_KEPT_END_BYTES = 1024
"""Bytes kept of either end of an event that is too large."""
_LONGEST_ID = 8 << 10
"""Bytes of an id: servers accept no longer one in a header."""


@frozen
class ServerSentEvent:
    """One event."""

    name: str
    data: bytes
    id: str
    """The latest id that was given, with this event or before."""
    retry: float | None
    """Seconds to wait before the stream is resumed, if the server said so."""


@frozen
class Oversized:
    """An event over the limit: reported once when that is found, and again at its end."""

    size: int
    """Bytes so far."""
    head: bytes
    """The beginning of its data."""
    tail: bytes = b""
    """The end of its data."""
    whole: bool = False
    """True if this is its end."""


async def events_of(parts: AsyncIterable[bytes], limit: int) -> AsyncGenerator[ServerSentEvent | Oversized, None]:
    """The events in a body that comes in parts."""
    parser = EventParser(limit)
    async for part in parts:
        for at in range(0, len(part), _BYTES_PER_TURN):
            lines = parser.split(part[at : at + _BYTES_PER_TURN])
            for first in range(0, len(lines), _LINES_PER_TURN):
                if at or first:
                    await trio.lowlevel.checkpoint()
                for event in parser.take(lines[first : first + _LINES_PER_TURN]):
                    yield event


class EventParser:
    """A parser of events from bytes, however split. Of one event, `limit` bytes are kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._after_cr = False
        self._line = bytearray()
        self._id = ""
        self._begin()

    def _begin(self) -> None:
        self._name = ""
        self._data: bytearray | None = None
        self._retry: float | None = None
        self._over: _Over | None = None

    def split(self, chunk: bytes) -> Sequence[bytes]:
        """The lines in the next bytes, with their ends; the last may be the beginning of a line."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        return chunk.splitlines(keepends=True)

    def take(self, lines: Iterable[bytes]) -> Iterator[ServerSentEvent | Oversized]:
        """The events that these lines complete."""
        for piece in lines:
            ends = piece[-1:] in (b"\n", b"\r")
            yield from self._take(piece.rstrip(b"\r\n") if ends else piece, ends=ends)

    def _take(self, piece: bytes, *, ends: bool) -> Iterator[ServerSentEvent | Oversized]:
        """Take a line, or the part of it that came."""
        if self._over is not None:
            yield from self._pass_over(piece, ends=ends)
            return
        self._line += piece
        size = len(self._line) + len(self._data or b"")
        if size > self._limit and not self._line.startswith(b":"):
            yield self._overflow(size, ends=ends)
        elif ends:
            line = bytes(self._line)
            self._line.clear()
            if line:
                self._field(line)
            else:
                yield from self._complete()
        elif self._line.startswith(b":"):
            del self._line[1:]  # a comment, of whatever length

    def _overflow(self, size: int, *, ends: bool) -> Oversized:
        head = self._data if self._data is not None else self._line.partition(b":")[2].lstrip(b" ")
        self._over = _Over(size, bytes(head[:_KEPT_END_BYTES]), bytes(self._line[-_KEPT_END_BYTES:]), blank=ends)
        self._line.clear()
        self._data = None
        return Oversized(size, self._over.head)

    def _pass_over(self, piece: bytes, *, ends: bool) -> Iterator[Oversized]:
        over = self._over
        assert over is not None  # the caller has checked
        over.size += len(piece)
        over.tail = (over.tail + piece)[-_KEPT_END_BYTES:]
        if not (ends and over.blank and not piece):
            over.blank = ends
            return
        self._begin()
        yield Oversized(over.size, over.head, over.tail, whole=True)

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                if self._data is None:
                    self._data = bytearray(value)
                else:
                    self._data += b"\n" + value
            case b"event":
                self._name = value.decode(errors="replace")
            case b"id":
                if b"\0" not in value and len(value) <= _LONGEST_ID:
                    self._id = value.decode(errors="replace")
            case b"retry":
                if value.isdigit() and len(value) < _KEPT_END_BYTES:
                    self._retry = int(value) / 1000
            case _:
                pass

    def _complete(self) -> Iterator[ServerSentEvent]:
        event = ServerSentEvent(self._name or "message", bytes(self._data or b""), self._id, self._retry)
        self._begin()
        yield event


class _Over:
    """The state of an event that is being skipped."""

    def __init__(self, size: int, head: bytes, tail: bytes, *, blank: bool) -> None:
        self.size = size
        self.head = head
        self.tail = tail
        self.blank = blank
        """True if the line that begins now has nothing in it yet."""
