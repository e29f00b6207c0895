"""A text of bounded length that stands for a whole definition, made in steps. Pure.

A server chooses how long its definitions are. A long value is replaced by its digest, which is compared as well as any
other and takes little room. No step of making it takes more than a few milliseconds.
"""

import json
import re
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias, cast

import orjson

from mcp_nursery.actors.json_depth import levels_of, texts_in

# -- the meaning of a schema ------------------------------------------------------------------------------------------
#
# A text that does not depend on the order of parts that have none. Some servers write their schemas from sets, in
# another order at each start: the names in `required`, the values of `enum`, the alternatives of `anyOf`. That changes
# nothing. Only keywords of schemas count: a property that is called `required` and the items of `examples` are data,
# and the items of `prefixItems` have an order.

Position: TypeAlias = Literal["data", "schema", "schemas", "by name", "dependencies", "values", "alternatives"]
"""The place of a value: `schemas` are one, or several in their order; `values` and `alternatives` have no order."""

WITHOUT_ORDER: Final[tuple[Position, ...]] = ("values", "alternatives")
"""The places of lists whose items have no order."""

_KEYWORDS_OF: Final[dict[Position, tuple[str, ...]]] = {
    "values": ("required", "enum", "type"),
    "alternatives": ("anyOf", "oneOf", "allOf"),
    "by name": ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"),
    "dependencies": ("dependentRequired", "dependencies"),
    "schemas": (
        *("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems", "contentSchema"),
        *("additionalProperties", "propertyNames", "unevaluatedProperties", "not", "if", "then", "else"),
    ),
}
_KEYWORDS: Final[dict[str, Position]] = {
    keyword: place for place, keywords in _KEYWORDS_OF.items() for keyword in keywords
}
_BESIDE: Final = frozenset([*_KEYWORDS, *_KEYWORDS_OF["by name"], "examples", "default", "const"])
"""Keywords with lists or objects that do not refer to the order of those beside them. Any other, such as `enumNames` or
`discriminator`, may name the values or alternatives by their places."""
_ITEMS: Final[dict[Position, Position]] = {"schemas": "schema", "alternatives": "schema"}

_IN_ORDER: Final[dict[Position, Position]] = {"values": "data", "alternatives": "schemas"}
"""The same places where the order counts."""

_ROOM: Final = 48
"""Levels of a small schema in which the order of parts is left out of account; deeper parts count as they stand."""
_ROOM_OF_A_SET: Final = 6
"""Levels that a list without order counts as: each of its items is written out to be sorted."""

_MAY_BE_WITHOUT_ORDER: Final = re.compile(
    r'"(?:required|enum|type|anyOf|oneOf|allOf)":\[|"depend(?:encies|entRequired)":\{'
)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_REFERS_BY_PLACE: Final = re.compile(r'"\$(?:r|dynamicR|recursiveR)ef":"(?:[^"\\]|\\.)*?(?:/\d+[/"]|%)')
_LONGEST_REFERENCE: Final = 1024
"""Characters of a reference that is examined; a longer one counts as one by place."""
_BY_PLACE: Final = re.compile(r"/\d+(?:/|\Z)|%")


def canonical(value: object) -> str:
    """A JSON value as a text; the order of the members of objects does not count."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
        if "null" not in text or not _has_infinity(value):
            return text
    except TypeError:  # half a surrogate pair, an integer beyond 64 bits, or nested deeper than orjson goes
        pass
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _has_infinity(value: object) -> bool:
    """True if there is a number in it that orjson writes as null: one such as 1e999 is read as infinite."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return True
    except TypeError:  # an object of Python's, from an in-process server
        pass
    return False


def meaning(schema: object) -> str:
    """A small schema as a text of its meaning, itself a schema.

    A schema that refers to a part by its place in a list is left as it is: there each place has a meaning.
    """
    text = canonical(schema)
    if not _MAY_BE_WITHOUT_ORDER.search(text) or _REFERS_BY_PLACE.search(text):
        return text
    return canonical(in_order(schema, "schema", _ROOM))


def in_order(value: object, place: Position, room: int = _ROOM) -> object:
    """A small value, with all parts that have no order sorted."""
    if room <= 0 or place == "data":
        return value
    if isinstance(value, dict):
        places = places_of_members(place, cast("dict[str, object]", value))
        return {key: in_order(part, places[key], room - 1) for key, part in cast("dict[str, object]", value).items()}
    if not isinstance(value, list):
        return value
    below = room - (_ROOM_OF_A_SET if place in WITHOUT_ORDER else 1)
    items = [in_order(item, place_of_items(place), below) for item in cast("list[object]", value)]
    return sorted(items, key=canonical) if place in WITHOUT_ORDER and len(items) > 1 else items


def places_of_members(place: Position, members: Mapping[str, object]) -> Mapping[str, Position]:
    """The places of the members of an object, by its own place."""
    places: dict[str, Position] = {key: _place_of_member(place, key, part) for key, part in members.items()}
    if place in ("schema", "schemas") and any(
        key not in _BESIDE and isinstance(part, (dict, list)) for key, part in members.items()
    ):
        return {key: _IN_ORDER.get(each, each) for key, each in places.items()}
    return places


def _place_of_member(place: Position, key: str, part: object) -> Position:
    match place:
        case "schema" | "schemas":
            return _KEYWORDS.get(key, "data")
        case "by name":
            return "schema"
        case "dependencies":
            return "values" if isinstance(part, list) else "schema"
        case _:
            return "data"


def place_of_items(place: Position) -> Position:
    """The place of the items of a list, by its own place."""
    return _ITEMS.get(place, "data")


def refer_by_place(values: Iterable[Any]) -> bool:
    """True if one of these values is a reference to a part by its place in a list, or may be."""
    objects = (cast("dict[str, object]", one) for one in values if isinstance(one, dict))
    references = (one.get(key) for one in objects for key in _REFERENCES)
    return any(
        isinstance(each, str) and (len(each) > _LONGEST_REFERENCE or _BY_PLACE.search(each)) for each in references
    )


MOST_LETTERS: Final = 64 * 1024
"""Characters of the texts and keys in one field of a definition that is kept verbatim; a longer one is kept as a
digest."""
MOST_VERBATIM_VALUES: Final = 5000
"""JSON values in one field that is kept verbatim; one with more is kept as a digest. The keys of an object with more
are taken in the order of their declaration: sorting a million of them is no small step."""
_HASHED_CHARACTERS: Final = 64 * 1024
"""Characters that are hashed in one step."""
_PARTS_PER_STEP: Final = 4096
"""Parts of a schema that are looked through in one step."""
_LONGEST_INTEGER: Final = 4000
"""Bits of an integer that Python writes in decimal digits whatever its settings."""


def fingerprint(
    said: Mapping[str, Any], schemas: Collection[str] = (), *, former: bool = False
) -> Generator[None, None, str]:
    """The JSON object that stands for these fields, its keys sorted, made step by step.

    A field that is too long becomes an array, `["sha256-of-pieces", hexadecimal digits, bytes]`, which no field is
    otherwise; such a schema becomes `["sha256-of-meaning", …]`.

    The fields named in `schemas` count by their meaning: see `meaning`. `former` is the form of earlier versions, which
    knew no meanings: `["sha256", …]`, whose pieces may be those of others.
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
            if looked % _PARTS_PER_STEP == 0:
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
    """True if the value is kept verbatim. Looks at no more of it than would be kept."""
    values, letters = MOST_VERBATIM_VALUES, MOST_LETTERS
    for level in levels_of(value):
        values -= sum(len(cast("Collection[object]", one)) for one in level if isinstance(one, (dict, list)))
        if values < 0 or any(isinstance(one, int) and one.bit_length() > _LONGEST_INTEGER for one in level):
            return False
        letters -= sum(map(len, texts_in(level)))
        if letters < 0:
            return False
    return True


def _pieces(value: object, place: Position, end: bytes) -> Iterator[bytes]:
    """The value in pieces, each of which states its length, or is JSON followed by a byte that JSON does not have: no
    two values have the same pieces, except those that mean the same in their place."""
    if _is_small(value):
        yield canonical(in_order(value, place)).encode() + end
        return
    match value:
        case str():
            yield b"s%d:" % len(value)
            for start in range(0, len(value), _HASHED_CHARACTERS):
                yield value[start : start + _HASHED_CHARACTERS].encode("utf-8", "surrogatepass")
        case dict():
            entries = cast("dict[str, object]", value)
            yield b"o%d:" % len(entries)
            places: Mapping[str, Position] = places_of_members(place, entries) if place != "data" else {}
            for key in sorted(entries) if len(entries) <= MOST_VERBATIM_VALUES else entries:
                yield from _pieces(key, "data", end)
                yield from _pieces(entries[key], places.get(key, "data"), end)
        case list():
            items, below = cast("list[object]", value), place_of_items(place)
            if place in WITHOUT_ORDER and len(items) <= MOST_VERBATIM_VALUES:
                yield from _hash_unordered(items, below, end)
                return
            yield b"a%d:" % len(items)
            for item in items:
                yield from _pieces(item, below, end)
        case _:
            yield b"i%x;" % cast("int", value)


def _hash_unordered(items: Collection[object], place: Position, end: bytes) -> Iterator[bytes]:
    """The digests of all items, sorted. Empty pieces give other tasks a turn while one is made."""
    digests: list[bytes] = []
    for item in items:
        digest = sha256()
        for piece in _pieces(item, place, end):
            digest.update(piece)
            yield b""
        digests.append(digest.digest())
    yield b"u%d:" % len(digests)
    yield b"".join(sorted(digests))
