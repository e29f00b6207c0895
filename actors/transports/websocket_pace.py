"""What comes on a WebSocket, handed on some frames at a time.

trio-websocket processes all that one read brings in one go, and an empty frame has two bytes: 64 KiB of them block the
loop for half a second. It also keeps the fragments of a message until the last, however many there are.
"""

from typing import Final

_AT_ONCE: Final = 64
"""Frames that are handed on at once: a millisecond."""
MOST_FRAGMENTS: Final = 100_000
"""Fragments of one message: those of 64 MiB may have 670 bytes each, and servers send thousands."""
_FINAL: Final = 0x80
_CONTROL: Final = 0x08
_SHORT: Final = 0x7F
_LONG: Final = {126: slice(2, 4), 127: slice(2, 10)}
"""Where the size of a payload stands if it is too large for seven bits."""
_MASK: Final = 4


class Pace:
    """The bytes that came and were not handed on."""

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
        for _ in range(_AT_ONCE):
            size = _head_size(held, end)
            if self._payload or end + size > len(held):
                break
            self._note(held[end])
            self._payload = _payload_size(held[end : end + size])
            end = self._skip(end + size)
        self._held = held[end:]
        return held[:end]

    def _skip(self, at: int) -> int:
        """Where the payload of the frame ends, as far as it came."""
        part = min(self._payload, len(self._held) - at)
        self._payload -= part
        return at + part

    def _note(self, first: int) -> None:
        if not first & _CONTROL:
            self.fragments = 0 if first & _FINAL else self.fragments + 1


def _head_size(data: bytes, at: int) -> int:
    """The size of a frame's head, or more than has come if it is not known yet."""
    if at + 2 > len(data):
        return 2
    second = data[at + 1]
    where = _LONG.get(second & _SHORT)
    return (2 if where is None else where.stop) + (_MASK if second & _FINAL else 0)


def _payload_size(head: bytes) -> int:
    short = head[1] & _SHORT
    where = _LONG.get(short)
    return short if where is None else int.from_bytes(head[where])
