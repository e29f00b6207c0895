"""What a JSON Schema means, as a text: the same in whatever order those parts come that have none. Pure.

Some servers write their schemas out of sets, in another order at each start: the names in `required`, the values of
`enum`, the alternatives of `anyOf`. That changes nothing. Only keywords count, where schemas stand: a property that is
called `required` and the items of `examples` are data, and what is in `prefixItems` has an order.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, cast

import orjson

Place: TypeAlias = Literal["data", "schema", "schemas", "by name", "dependencies", "values", "alternatives"]
"""Where a value stands: `schemas` are one, or several in their order; `values` and `alternatives` have no order."""

WITHOUT_ORDER: Final[tuple[Place, ...]] = ("values", "alternatives")
"""Where the items of a list have none."""

_KEYWORDS_OF: Final[dict[Place, tuple[str, ...]]] = {
    "values": ("required", "enum", "type"),
    "alternatives": ("anyOf", "oneOf", "allOf"),
    "by name": ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"),
    "dependencies": ("dependentRequired", "dependencies"),
    "schemas": (
        *("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems", "contentSchema"),
        *("additionalProperties", "propertyNames", "unevaluatedProperties", "not", "if", "then", "else"),
    ),
}
_KEYWORDS: Final[dict[str, Place]] = {
    keyword: place for place, keywords in _KEYWORDS_OF.items() for keyword in keywords
}
_BESIDE: Final = frozenset([*_KEYWORDS, *_KEYWORDS_OF["by name"], "examples", "default", "const"])
"""Keywords with lists or objects that say nothing of the order of others beside them. What is none of these, such as
`enumNames` or `discriminator`, may name the values or alternatives by their places."""
_ITEMS: Final[dict[Place, Place]] = {"schemas": "schema", "alternatives": "schema"}

_IN_ORDER: Final[dict[Place, Place]] = {"values": "data", "alternatives": "schemas"}
"""The same places where the order counts."""

_ROOM: Final = 48
"""Levels of a small schema in which the order of parts is left out of account; deeper parts count as they stand."""
_ROOM_OF_A_SET: Final = 6
"""Levels that a list without order counts as: each of its items is written down to be put in order."""

_MAY_BE_WITHOUT_ORDER: Final = re.compile(
    r'"(?:required|enum|type|anyOf|oneOf|allOf)":\[|"depend(?:encies|entRequired)":\{'
)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_REFERS_BY_PLACE: Final = re.compile(r'"\$(?:r|dynamicR|recursiveR)ef":"(?:[^"\\]|\\.)*?(?:/\d+[/"]|%)')
_LONGEST_REFERENCE: Final = 1024
"""Characters of a reference that is looked at; a longer one may be any."""
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
    """Whether there is a number in it that orjson writes as nothing: one such as 1e999 is read as infinite."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return True
    except TypeError:  # what Python alone has, of a server in this process
        pass
    return False


def meaning(schema: object) -> str:
    """A small schema as a text of its meaning, which is a schema itself.

    One that refers to a part by its place in a list is left as it is: there each place has a meaning.
    """
    text = canonical(schema)
    if not _MAY_BE_WITHOUT_ORDER.search(text) or _REFERS_BY_PLACE.search(text):
        return text
    return canonical(in_order(schema, "schema", _ROOM))


def in_order(value: object, place: Place, room: int = _ROOM) -> object:
    """A small value with all its parts that have no order in the same."""
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


def places_of_members(place: Place, members: Mapping[str, object]) -> Mapping[str, Place]:
    """Where the members of an object stand that stands there itself."""
    places: dict[str, Place] = {key: _place_of_member(place, key, part) for key, part in members.items()}
    if place in ("schema", "schemas") and any(
        key not in _BESIDE and isinstance(part, (dict, list)) for key, part in members.items()
    ):
        return {key: _IN_ORDER.get(each, each) for key, each in places.items()}
    return places


def _place_of_member(place: Place, key: str, part: object) -> Place:
    match place:
        case "schema" | "schemas":
            return _KEYWORDS.get(key, "data")
        case "by name":
            return "schema"
        case "dependencies":
            return "values" if isinstance(part, list) else "schema"
        case _:
            return "data"


def place_of_items(place: Place) -> Place:
    """Where the items of a list stand that stands there itself."""
    return _ITEMS.get(place, "data")


def refer_by_place(values: Iterable[Any]) -> bool:
    """Whether one of these values is a reference to a part by its place in a list, or may be."""
    objects = (cast("dict[str, object]", one) for one in values if isinstance(one, dict))
    references = (one.get(key) for one in objects for key in _REFERENCES)
    return any(
        isinstance(each, str) and (len(each) > _LONGEST_REFERENCE or _BY_PLACE.search(each)) for each in references
    )
