"""Large frames: refused before they are read if that would take too long, and read in pieces otherwise. No I/O.

The time to parse depends on bytes and on values. Texts are copied at gigabytes a second, but every value makes an
object, which takes a hundred times as long as a character, and parsers hold the interpreter's lock meanwhile. So a
message that is parsed in one go has a budget of values. Its bytes are bounded by the wire.
"""

import codecs
import re
from collections.abc import Callable, Iterator
from secrets import randbelow
from typing import Any, Final

import orjson

from ..json_depth import MAX_NESTING
from ..json_parsing import Uncollected
from ..limits import MOST_UNASKED
from ..pieces import SMALL, Steps
from . import codec

_VALUE_MARKS: Final = b",:[{"
_BRACKETS: Final = b"[{"
_GLANCE: Final = 1 << 20
"""Bytes that are counted at once, at gigabytes a second."""
_EXAMINED_BYTES: Final = 64 << 10
"""Bytes that are examined at once."""
_ESCAPES: Final = 8192
"""Escapes that are examined in a row."""
_MENDED: Final = 12 << 20
"""Bytes that a frame may grow to when its bytes that are not UTF-8 are replaced, each by three: parsing so many takes
about 30 ms. A larger frame may grow by half."""
_STRUCTURE: Final = re.compile(rb"[][{},]")
_DEEPER: Final = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
_MARKS: Final = 2048
"""Brackets and commas that are looked at in a row."""
_INDENT: Final = 64
"""Bytes of white space that may stand before a batch."""
_LONG: Final = 4 << 20
"""Bytes of a frame from which on sampling its texts before parsing pays."""
_PLAIN: Final = 64
"""Bytes for each escape, at least, in texts that have few escapes."""
_DIGITS: Final = 1000
"""Digits of a number: the time to read it is quadratic in them."""

_END_BYTES: Final = 1024
"""Bytes at either end of a frame that are searched for members that say what it is about."""
_MEMBER: Final = rb'\s*"([^"\\]{0,100})"\s*:\s*("[^"\\]{0,200}"|-?[0-9]{1,20}|null)\s*'
_FIRST: Final = re.compile(_MEMBER + b"[,}]")
_LAST_MEMBERS: Final = re.compile(rb"(?:," + _MEMBER + rb")+\}\s*\Z")
_ONE: Final = re.compile(_MEMBER)


class MessageTooCostly(ValueError):
    """The error for a message that would take too long to read: one line with its size and the limit."""


CROWDED: Final = 1000
"""Commas, colons and opening brackets beyond which a short message is read like a large one."""


def is_crowded(frame: bytes) -> bool:
    """True if a message that is not long may have many values."""
    return values_in(frame) > CROWDED


def read(frame: bytes, *, most: int, pause: Uncollected | None = None) -> Steps[dict[str, Any]]:
    """The message in a frame of any size, as `codec.message` gives it, with at most `most` JSON values: see
    `CostLimits.values`. `pause` begins in the last piece, which parses.

    Raises:
        MessageTooCostly: It has more, numbers of over 1000 digits, or too much that is not UTF-8.
        ValueError: It is not JSON, or no object.
    """
    values = yield from check_values(frame, most)
    return (yield from parse(frame, values, most=most, pause=pause))


def parse(frame: bytes, values: int, *, most: int, pause: Uncollected | None = None) -> Steps[dict[str, Any]]:
    """The message in a frame whose values `check_values` counted: see `read`."""
    deep = values > MAX_NESTING and (yield from _may_be_deep(frame))
    with Uncollected() as parsing:
        return codec.as_message((yield from _decoded(frame, most, pause or parsing)), deep=deep)


def is_batch(frame: bytes) -> bool:
    """True if a frame looks like a batch: several messages in one array, as version 2025-03-26 allows."""
    return frame[:_INDENT].lstrip()[:1] == b"["


def split(frame: bytes, *, most: int) -> Steps[list[bytes]]:
    """The messages of a batch, each as a frame; `null` in place of anything that is not an object.

    A batch is never parsed as a whole: each of its messages is read in a turn of its own, within the bounds of one
    message. So many messages in one frame cost others no more than as many frames.

    Raises:
        MessageTooCostly: It has more than `most` JSON values.
        ValueError: Its brackets do not match.
    """
    yield from check_values(frame, most)
    messages: list[bytes] = []
    depth = at = 0
    begin = frame.index(b"[") + 1
    for piece in without_texts(frame):
        for count, mark in enumerate(_STRUCTURE.finditer(piece)):
            depth += _DEEPER.get(mark[0], 0)
            if depth == 0 or (depth == 1 and mark[0] == b","):
                message = frame[begin : at + mark.start()].strip()
                if message or depth or messages:  # not in an empty batch
                    messages.append(message if message.startswith(b"{") else b"null")
                begin = at + mark.end()
            if count % _MARKS == 0:
                yield
        at += len(piece)
        yield
    if depth or frame[begin:].strip():
        raise ValueError("not JSON")
    return messages


def members(frame: bytes) -> dict[str, object]:
    """The texts, integers and nulls among the first and the last members of an object that is otherwise unread."""
    start, end = frame[:_END_BYTES].lstrip(), frame[-_END_BYTES:]
    if not start.startswith(b"{"):
        return {}
    found: list[re.Match[bytes]] = []
    at = 1
    while member := _FIRST.match(start, at):
        found.append(member)
        at = member.end()
    if last := _LAST_MEMBERS.search(end):
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


def _limit(most: int) -> str:
    how = "" if most == MOST_UNASKED else " (max_message_values, or maxMessageValues in a file, allows more)"
    return f"more than {most} JSON values, the most it may have{how}"


def check_values(frame: bytes, most: int) -> Steps[int]:
    """The number of JSON values and names, at most. They are counted fast, and precisely, without marks in texts, only
    beyond `most`.

    Raises:
        MessageTooCostly: It has more than `most`.
    """
    marks = 0
    for at in range(0, len(frame), _GLANCE):
        marks += values_in(frame[at : at + _GLANCE])
        if marks > most:
            break
        yield
    else:
        return marks
    marks = 0
    for piece in without_texts(frame):  # some of them stand in texts
        marks += values_in(piece)
        if marks > most:
            raise MessageTooCostly(f"{_size(frame)} with {_limit(most)}")
        yield
    return marks


def _may_be_deep(frame: bytes) -> Steps[bool]:
    """True if the frame has enough brackets to be nested too deep."""
    brackets = 0
    for at in range(0, len(frame), _GLANCE):
        piece = frame[at : at + _GLANCE]
        brackets += len(piece) - len(piece.translate(None, _BRACKETS))
        if brackets > MAX_NESTING:
            return True
        yield
    return False


def values_in(piece: bytes) -> int:
    """The number of JSON values and names, at most, in a small piece."""
    return len(piece) - len(piece.translate(None, _VALUE_MARKS))


def without_texts(frame: bytes) -> Iterator[bytes]:
    """The frame in bounded pieces, with zeros for the bytes of its texts: everything stays in its place."""
    inside, held = False, b""
    for at in range(0, len(frame), _EXAMINED_BYTES):
        piece = held + frame[at : at + _EXAMINED_BYTES]
        held = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""  # an escape that goes on in the next piece
        parts = piece.removesuffix(held).replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0").split(b'"')
        texts = slice(not inside, None, 2)
        parts[texts] = [bytes(len(text)) for text in parts[texts]]
        yield b'"'.join(parts)
        inside ^= len(parts) % 2 == 0


def _decoded(frame: bytes, most: int, pause: Uncollected) -> Steps[object]:
    """Decode the JSON in the frame as leniently as `codec.decode` does."""
    parsers = [_lenient] if (yield from _has_long_integers(frame, most)) else [orjson.loads, _lenient]
    if (yield from _is_plain(frame)):
        parsers.reverse()
    for parse in parsers:
        try:
            return _parsed(parse, frame, pause)
        except ValueError:
            yield
    if frame.isascii() and frame.find(b"\\u") < 0:
        raise ValueError("not JSON")  # nothing in it can be mended: a copy would be in vain
    mended = yield from _mended(frame)
    for parse in parsers[:-1]:
        try:
            return _parsed(parse, mended, pause)
        except ValueError:
            yield
    return _parsed(parsers[-1], mended, pause)


def _is_plain(frame: bytes) -> Steps[bool]:
    """True if most of the frame is long ASCII texts with few escapes: the lenient parser reads those six times as fast
    as orjson, and others more slowly."""
    if len(frame) < _LONG or not frame.isascii():
        return False
    escapes = sampled = 0
    for at in range(0, len(frame), _GLANCE):
        begin = at + randbelow(_GLANCE - _EXAMINED_BYTES)  # no peer can know where
        sample = frame[begin : begin + _EXAMINED_BYTES]
        escapes += sample.count(b"\\")
        sampled += len(sample)
    yield
    return escapes < sampled // _PLAIN


def _lenient(frame: bytes) -> object:
    """Parse the frame, allowing integers of any size and NaN."""
    from pydantic_core import from_json  # takes longer to load than the rest of this package, and few need it

    return from_json(frame, cache_strings="none")


def _parsed(parse: Callable[[bytes], object], frame: bytes, pause: Uncollected) -> object:
    """Parse the frame without garbage collection: a parser leaves no garbage."""
    pause.begin()
    try:
        return parse(frame)
    except BaseException:
        pause.end()
        raise


def _has_long_integers(frame: bytes, most: int) -> Steps[bool]:
    """True if orjson would make a float of an integer.

    Raises:
        MessageTooCostly: A number is too long, or too many are long.
    """
    overlap = 32
    suspect = False
    for at in range(0, len(frame), _GLANCE):
        suspect = suspect or codec.may_hold_a_long_integer(frame[at : at + _GLANCE + overlap])
        yield
    if not suspect:
        return False
    long, before, values = False, b"", 0
    for piece in without_texts(frame):  # many texts are full of digits
        digits = piece.translate(codec.DIGITS)
        before = before[-_DIGITS:] + digits
        long = long or codec.LONG_INTEGER in before
        if b"0" * (_DIGITS + 1) in before:
            raise MessageTooCostly(f"{_size(frame)} with a number of more than {_DIGITS} digits")
        values += values_in(piece) + digits.count(codec.LONG_INTEGER)
        if values > most:
            raise MessageTooCostly(f"{_size(frame)} with {_limit(most)}: every 19 digits of a number count as one")
        yield
    return long


def _mended(frame: bytes) -> Steps[bytes]:
    """The frame with U+FFFD for invalid bytes and for halves of surrogate pairs.

    Raises:
        MessageTooCostly: So little of it is UTF-8 that it would grow too large.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces: list[bytes] = []
    size, most = 0, max(_MENDED, len(frame) * 3 // 2)
    for at in range(0, len(frame), SMALL):
        pieces.append(decoder.decode(frame[at : at + SMALL], at + SMALL >= len(frame)).encode())
        size += len(pieces[-1])
        if size > most:
            raise MessageTooCostly(f"{_size(frame)} of which more than a quarter is not UTF-8")
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
