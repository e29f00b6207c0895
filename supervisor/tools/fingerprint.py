"""A text of bounded length that stands for all a definition says, made in steps. Pure.

A server chooses how long its definitions are. What is long counts by its digest: it is compared as well as any other,
and takes no more room than that, and no step of making it takes more than a few milliseconds.
"""

import json
from collections.abc import Collection, Generator, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, cast

from mcp_nursery.actors.json_depth import levels_of, texts_in

from .schema_meaning import (
    WITHOUT_ORDER,
    Place,
    canonical,
    in_order,
    meaning,
    place_of_items,
    places_of_members,
    refer_by_place,
)

MOST_LETTERS: Final = 64 * 1024
"""Characters of the texts and keys in one field of a definition that are kept verbatim; of longer ones, a digest."""
MOST_VALUES: Final = 5000
"""JSON values in one field that are kept verbatim; of more, a digest. The keys of an object that has more are taken in
the order in which it was declared: to sort a million of them is no small step."""
_PIECE: Final = 64 * 1024
"""Characters that are hashed in one step."""
_PARTS: Final = 4096
"""Parts of a schema that are looked through in one step."""
_LONGEST_INTEGER: Final = 4000
"""Bits of an integer that Python writes in decimal digits whatever its settings."""


def fingerprint(
    said: Mapping[str, Any], schemas: Collection[str] = (), *, former: bool = False
) -> Generator[None, None, str]:
    """The JSON object that stands for these fields, its keys sorted; step by step.

    A field that is too long is an array, `["sha256-of-pieces", hexadecimal digits, bytes]`, which no field is of
    itself; of a schema that is, `["sha256-of-meaning", …]`.

    Args:
        said: The fields.
        schemas: Which of them count by what they mean: see `schema_meaning`.
        former: As versions wrote it that did not know of that: `["sha256", …]`, whose pieces may be those of others.
    """
    fields: list[str] = []
    for key in sorted(said):
        by_meaning = not former and key in schemas and isinstance(said[key], dict)
        value = yield from _field(said[key], by_meaning=by_meaning, former=former)
        fields.append(f"{json.dumps(key)}:{value}")
    return f"{{{','.join(fields)}}}"


def _field(value: object, *, by_meaning: bool, former: bool) -> Generator[None, None, str]:
    yield
    if _is_small(value):
        return meaning(value) if by_meaning else canonical(value)
    ordered = not by_meaning or (yield from _refers_by_place(value))
    digest, size = sha256(), 0
    for piece in _pieces(value, "data" if ordered else "schema", b"" if former else b"\n"):
        digest.update(piece)
        size += len(piece)
        yield
    kind = "sha256" if former else "sha256-of-meaning" if by_meaning else "sha256-of-pieces"
    return canonical([kind, digest.hexdigest(), size])


def _refers_by_place(schema: object) -> Generator[None, None, bool]:
    waiting: list[Iterator[object]] = [iter([schema])]
    looked = 0
    while waiting:
        for part in waiting[-1]:
            looked += 1
            if looked % _PARTS == 0:
                yield
            if isinstance(part, dict):
                if refer_by_place([part]):
                    return True
                waiting.append(iter(cast("dict[str, object]", part).values()))
                break
            if isinstance(part, list):
                waiting.append(iter(cast("list[object]", part)))
                break
        else:
            waiting.pop()
    return False


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


def _pieces(value: object, place: Place, end: bytes) -> Iterator[bytes]:
    """The value in pieces, each of which says how long it is, or is JSON with what that has none of behind it: no two
    values have the same, but those that mean the same where they stand."""
    if _is_small(value):
        yield canonical(in_order(value, place)).encode() + end
        return
    match value:
        case str():
            yield b"s%d:" % len(value)
            for start in range(0, len(value), _PIECE):
                yield value[start : start + _PIECE].encode("utf-8", "surrogatepass")
        case dict():
            entries = cast("dict[str, object]", value)
            yield b"o%d:" % len(entries)
            places: Mapping[str, Place] = places_of_members(place, entries) if place != "data" else {}
            for key in sorted(entries) if len(entries) <= MOST_VALUES else entries:
                yield from _pieces(key, "data", end)
                yield from _pieces(entries[key], places.get(key, "data"), end)
        case list():
            items, below = cast("list[object]", value), place_of_items(place)
            if place in WITHOUT_ORDER and len(items) <= MOST_VALUES:
                yield from _unordered(items, below, end)
                return
            yield b"a%d:" % len(items)
            for item in items:
                yield from _pieces(item, below, end)
        case _:
            yield b"i%x;" % cast("int", value)


def _unordered(items: Collection[object], place: Place, end: bytes) -> Iterator[bytes]:
    """The digests of all items, in their own order. Nothing is said while one is made, to give others their turn."""
    digests: list[bytes] = []
    for item in items:
        digest = sha256()
        for piece in _pieces(item, place, end):
            digest.update(piece)
            yield b""
        digests.append(digest.digest())
    yield b"u%d:" % len(digests)
    yield b"".join(sorted(digests))
