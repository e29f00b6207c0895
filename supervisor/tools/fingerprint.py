"""A text of bounded length that stands for all a definition says, made in steps. Pure.

A server chooses how long its definitions are. What is long counts by its digest: it is compared as well as any other,
and takes no more room than that, and no step of making it takes more than a few milliseconds.
"""

import json
from collections.abc import Collection, Generator, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, cast

import orjson

from mcp_nursery.actors.json_depth import levels_of, texts_in

MOST_LETTERS: Final = 64 * 1024
"""Characters of the texts and keys in one field of a definition that are kept verbatim; of longer ones, a digest."""
MOST_VALUES: Final = 5000
"""JSON values in one field that are kept verbatim; of more, a digest. The keys of an object that has more are taken in
the order in which it was declared: to sort a million of them is no small step."""
_PIECE: Final = 64 * 1024
"""Characters that are hashed in one step."""
_LONGEST_INTEGER: Final = 4000
"""Bits of an integer that Python writes in decimal digits whatever its settings."""


def fingerprint(said: Mapping[str, Any]) -> Generator[None, None, str]:
    """The JSON object that stands for these fields, its keys sorted; step by step.

    A field that is too long is an array, `["sha256", hexadecimal digits, bytes]`, which no field is of itself.
    """
    fields: list[str] = []
    for key in sorted(said):
        value = yield from _field(said[key])
        fields.append(f"{json.dumps(key)}:{value}")
    return f"{{{','.join(fields)}}}"


def _field(value: object) -> Generator[None, None, str]:
    yield
    if _is_small(value):
        return _canonical(value)
    digest, size = sha256(), 0
    for piece in _pieces(value):
        digest.update(piece)
        size += len(piece)
        yield
    return _canonical(["sha256", digest.hexdigest(), size])


def _is_small(value: object) -> bool:
    """Whether it is kept verbatim. Looks at no more of it than that."""
    values, letters = MOST_VALUES, MOST_LETTERS
    for level in levels_of(value):
        values -= sum(len(cast("Collection[object]", one)) for one in level if isinstance(one, (dict, list)))
        if values < 0 or any(isinstance(one, int) and one.bit_length() > _LONGEST_INTEGER for one in level):
            return False
        letters -= sum(map(len, texts_in(level)))
        if letters < 0:
            return False
    return True


def _canonical(value: object) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # half a surrogate pair, an integer beyond 64 bits, or nested deeper than orjson goes
        return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _pieces(value: object) -> Iterator[bytes]:
    """The value in pieces, each of which says how long it is or is JSON: no two values have the same."""
    if _is_small(value):
        yield _canonical(value).encode()
        return
    match value:
        case str():
            yield b"s%d:" % len(value)
            for start in range(0, len(value), _PIECE):
                yield value[start : start + _PIECE].encode("utf-8", "surrogatepass")
        case dict():
            entries = cast("dict[str, object]", value)
            yield b"o%d:" % len(entries)
            for key in sorted(entries) if len(entries) <= MOST_VALUES else entries:
                yield from _pieces(key)
                yield from _pieces(entries[key])
        case list():
            items = cast("list[object]", value)
            yield b"a%d:" % len(items)
            for item in items:
                yield from _pieces(item)
        case _:
            yield b"i%x;" % cast("int", value)
