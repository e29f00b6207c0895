"""Large frames: refused before they are read if that would take too long, and read in pieces otherwise. No I/O.

The time to parse depends on bytes and on values. Texts are copied at gigabytes a second, but every value makes an
object, which takes a hundred times as long as a character, and parsers hold the interpreter's lock meanwhile. So a
message that is parsed in one go has a budget of values. Its bytes are bounded by the wire.
"""

import codecs
import gc
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson
from pydantic_core import from_json

from ..json_depth import may_be_nested_too_deep
from ..pieces import SMALL, Steps
from . import codec

_MARKS: Final = b",:[{"
_GLANCE: Final = 1 << 20
"""Bytes that are counted at once, at gigabytes a second."""
_LOOK: Final = 128 << 10
"""Bytes that are examined at once."""
_ESCAPES: Final = 8192
"""Escapes that are examined in a row."""
_MENDED: Final = 12 << 20
"""Bytes that a frame may grow to when what is not UTF-8 in it is replaced, three bytes for one: to parse as many takes
about 30 ms. A larger frame may grow by half."""
_DIGITS: Final = 1000
"""Digits of a number: the time to read it is quadratic in them."""

_ENDS: Final = 1024
"""Bytes at either end of a frame that are searched for members that say what it is about."""
_MEMBER: Final = rb'\s*"([^"\\]{0,100})"\s*:\s*("[^"\\]{0,200}"|-?[0-9]{1,20}|null)\s*'
_FIRST: Final = re.compile(_MEMBER + b"[,}]")
_LAST: Final = re.compile(rb"(?:," + _MEMBER + rb")+\}\s*\Z")
_ONE: Final = re.compile(_MEMBER)


class Refused(ValueError):
    """A message that is not read because it would take too long. One line that names its size and the limit."""


def read(frame: bytes, *, most: int) -> Steps[Iterator[dict[str, Any]]]:
    """The messages in a frame of any size, as `codec.messages` gives them.

    Args:
        frame: What came.
        most: JSON values that it may have: see `Limits.values`.

    Raises:
        Refused: It has more, numbers of more than 1000 digits, or too much that is not UTF-8.
        ValueError: It is not JSON; the iterator raises it too.
    """
    yield from check_values(frame, most)
    decoded = yield from _decoded(frame, most)
    yield
    deep = may_be_nested_too_deep(frame)
    yield
    return codec.split(decoded, deep=deep)


def members(frame: bytes) -> dict[str, object]:
    """The texts, integers and nulls among the first and the last members of an object that is otherwise unread."""
    start, end = frame[:_ENDS].lstrip(), frame[-_ENDS:]
    if not start.startswith(b"{"):
        return {}
    found: list[re.Match[bytes]] = []
    at = 1
    while member := _FIRST.match(start, at):
        found.append(member)
        at = member.end()
    if last := _LAST.search(end):
        found += _ONE.finditer(last[0])
    return {member[1].decode(errors="replace"): orjson.loads(member[2]) for member in found if _is_json(member[2])}


def _is_json(value: bytes) -> bool:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True


def _size(frame: bytes) -> str:
    return f"a message of {len(frame) / (1 << 20):.1f} MiB"


def check_values(frame: bytes, most: int) -> Steps[None]:
    """Count fast, and precisely only where texts may hold some of what was counted.

    Raises:
        Refused: It has more JSON values.
    """
    if (yield from values_in(frame)) <= most:
        return
    marks = 0
    for piece in outside(frame):  # some of them stand in texts
        marks += _marks(piece)
        if marks > most:
            raise Refused(f"{_size(frame)} with more than {most} JSON values, the most a message may have")
        yield


def values_in(frame: bytes) -> Steps[int]:
    """How many JSON values and names it has at most."""
    marks = 0
    for at in range(0, len(frame), _GLANCE):
        marks += _marks(frame[at : at + _GLANCE])
        yield
    return marks


def _marks(piece: bytes) -> int:
    return len(piece) - len(piece.translate(None, _MARKS))


def outside(frame: bytes) -> Iterator[bytes]:
    """What stands outside the texts of a JSON text, in bounded pieces."""
    inside, held = False, b""
    for at in range(0, len(frame), _LOOK):
        piece = held + frame[at : at + _LOOK]
        held = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""  # an escape that goes on in the next
        parts = piece.removesuffix(held).replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[inside::2])
        inside ^= len(parts) % 2 == 0


def _decoded(frame: bytes, most: int) -> Steps[object]:
    """The JSON in it, read as leniently as `codec.decode` does."""
    parsers = [_lenient] if (yield from _has_long_integers(frame, most)) else [orjson.loads, _lenient]
    for parse in parsers:
        try:
            return _parsed(parse, frame)
        except ValueError:
            yield
    mended = yield from _mended(frame)
    for parse in parsers[:-1]:
        try:
            return _parsed(parse, mended)
        except ValueError:
            yield
    return _parsed(_lenient, mended)


def _lenient(frame: bytes) -> object:
    """Parse it, and allow integers of any size and NaN."""
    return from_json(frame, cache_strings="none")


def _parsed(parse: Callable[[bytes], object], frame: bytes) -> object:
    """Parse it without garbage collection: a parser makes no garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return parse(frame)
    finally:
        if collects:
            gc.enable()


def _has_long_integers(frame: bytes, most: int) -> Steps[bool]:
    """Whether orjson would make a float of an integer.

    Raises:
        Refused: A number is too long, or too many are long.
    """
    overlap = 32
    suspect = False
    for at in range(0, len(frame), _GLANCE):
        suspect = suspect or codec.may_hold_a_long_integer(frame[at : at + _GLANCE + overlap])
        yield
    if not suspect:
        return False
    long, before, values = False, b"", 0
    for piece in outside(frame):  # many texts are full of digits
        digits = piece.translate(codec.DIGITS)
        before = before[-_DIGITS:] + digits
        long = long or codec.LONG_INTEGER in before
        if b"0" * (_DIGITS + 1) in before:
            raise Refused(f"{_size(frame)} with a number of more than {_DIGITS} digits")
        values += _marks(piece) + digits.count(codec.LONG_INTEGER)
        if values > most:
            limit = f"more than {most} JSON values, the most a message may have"
            raise Refused(f"{_size(frame)} with {limit}: every 19 digits of a number count as one")
        yield
    return long


def _mended(frame: bytes) -> Steps[bytes]:
    """The frame with U+FFFD for invalid bytes and for halves of surrogate pairs.

    Raises:
        Refused: So little of it is UTF-8 that it would grow too large.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces: list[bytes] = []
    size, most = 0, max(_MENDED, len(frame) * 3 // 2)
    for at in range(0, len(frame), SMALL):
        pieces.append(decoder.decode(frame[at : at + SMALL], at + SMALL >= len(frame)).encode())
        size += len(pieces[-1])
        if size > most:
            raise Refused(f"{_size(frame)} of which more than a quarter is not UTF-8")
        yield
    text = b"".join(pieces)
    yield
    return (yield from _with_whole_characters(text))


def _with_whole_characters(text: bytes) -> Steps[bytes]:
    whole: list[bytes] = []
    some: list[bytes] = []
    begin = 0
    for count, escape in enumerate(codec.ESCAPE.finditer(text)):
        if escape[1] is not None:
            some += (text[begin : escape.start()], codec.NO_CHARACTER)
            begin = escape.end()
        if count % _ESCAPES == 0:
            whole.append(b"".join(some))
            some.clear()
            yield
    yield
    if begin == 0:
        return text
    mended = b"".join([*whole, *some, text[begin:]])
    yield
    return mended
