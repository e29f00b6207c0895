"""The cost of compiling a JSON Schema, and of checking a value against it, in the worst case. Pure.

References multiply: a schema of a few lines can take more steps than there are atoms, since each of its definitions, or
each level of the value, may double them. Compiling `unevaluatedProperties` or `unevaluatedItems` can take as many. So
each subschema is looked at once, and its cost is computed from those that it refers to, one level of the value after
the other. An unknown cost counts as more than `MOST_STEPS`.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, cast
from urllib.parse import unquote

from mcp_nursery.actors.records import frozen

from ..json_depth import levels_of

Schema = Mapping[str, Any]

MOST_STEPS: Final = 2_000_000
"""Steps beyond which counting stops: 20 ms. A step takes about 10 ns; what takes longer counts as several."""

_EDGES: Final = 5_000
"""References and subschemas up to which a schema is compiled. As many take 40 ms. A subschema for the same value as a
keyword for all that is unevaluated is compiled, and counts, once more for it."""
MOST_OF_PATTERNS: Final = 4 << 10
"""Characters of all patterns of a schema up to which it is compiled. Those that take longest take 10 us each."""
_PATTERN: Final = 50
"""Subschemas that one pattern counts as."""
_COMPARED: Final = 12
"""Steps to compare a value with one of an `enum`."""
_UNIQUE: Final = 30
"""Steps to compare an item with all others."""
_UNEVALUATED: Final = 4
"""Steps to find out whether another keyword has evaluated a property or an item."""
_REPETITION: Final = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_ONE_WAY: Final = re.compile(r"\^[^*+?|]*")
_ONE_WAY_STEPS: Final = 10

_REFERENCES: Final = frozenset(["$ref", "$dynamicRef", "$recursiveRef"])
_IN_PLACE: Final = frozenset(
    ["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"]
)
_INSIDE: Final = frozenset(
    [
        *("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"),
        *("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties"),
    ]
)
_ANCHOR_KEYWORDS: Final = frozenset(["$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"])
_MAPS: Final = frozenset(["properties", "patternProperties", "dependentSchemas", "dependencies"])
"""Keywords with schemas under names."""


@frozen
class _Part:
    """One subschema, and the keys of the subschemas that it leads to."""

    own: int
    """Steps for its own keywords."""
    in_place: list[int]
    """Subschemas that apply to the same value."""
    named: list[int]
    """Subschemas that each apply to the value of one property: at most one of them applies to a value."""
    inside: list[int]
    """Subschemas that may apply to any value inside."""
    edges: int
    """The weight in a compiled schema, without the parts that it leads to."""
    finds_unevaluated: bool
    """True if it has a keyword for all that other keywords leave unevaluated."""


class SchemaCost:
    """The steps that one value may take, by how deep it lies. Counted level by level, as they are needed. `own` counts
    the steps of one subschema's own keywords: `steps_for_a_value`, or, for each character of a text,
    `steps_for_a_character`."""

    def __init__(self, schema: Schema, own: Callable[[Schema], int] | None = None) -> None:
        self.most: int = 0
        """Steps for a value on the levels counted so far; more than `MOST_STEPS` if unknown."""
        self.over: bool = False
        """True if deeper levels cost nothing more."""
        self._parts = _parts(schema, own or steps_for_a_value)
        self._whole = id(schema)
        self._levels = 0
        self._steps: dict[int, int] = {}  # of each part, for a value on the level that was counted last
        try:
            self._order = [*TopologicalSorter({key: part.in_place for key, part in self._parts.items()}).static_order()]
        except CycleError:
            self._order = []
        if not self._order:
            self.most = MOST_STEPS + 1
        self.is_small: Final = bool(self._parts) and self._compiled_again() + self._edges() <= _EDGES
        """True if it has few enough parts and patterns to be compiled quickly."""

    def _edges(self) -> int:
        return sum(part.edges for part in self._parts.values())

    def _compiled_again(self) -> int:
        """Edges compiled once more for keywords for what is unevaluated. An unknown count is over the limit."""
        again = [key for key, part in self._parts.items() if part.finds_unevaluated]
        if again and not self._order:
            return _EDGES
        in_place = dict[int, int]()
        for key in self._order if again else ():
            part = self._parts[key]
            in_place[key] = min(part.edges + sum(in_place[each] for each in part.in_place), _EDGES)
        return sum(in_place[key] for key in again)

    def down_to(self, levels: int) -> int:
        """The most steps for a value at most so many levels down."""
        while self._levels < levels and self.most <= MOST_STEPS and not self.over:
            self._descend()
        return self.most

    def _descend(self) -> None:
        above, here = self._steps, dict[int, int]()
        for key in self._order:
            part = self._parts[key]
            steps = part.own
            if self._levels:
                steps = max((above[each] for each in part.named), default=0) + sum(above[each] for each in part.inside)
            here[key] = min(steps + sum(here[each] for each in part.in_place), MOST_STEPS + 1)
        self._levels += 1
        self._steps = here
        self.most = max(self.most, here[self._whole])
        self.over = not any(here.values())
        if self.over or self.most > MOST_STEPS:  # nothing is counted any more
            self._parts, self._order, self._steps = {}, [], {}


def _parts(whole: Schema, own: Callable[[Schema], int]) -> dict[int, _Part]:
    """All subschemas that a schema leads to, by their identity; none if they are too many."""
    parts: dict[int, _Part] = {}
    waiting, edges = [whole], 0
    while waiting and edges <= _EDGES:
        schema = waiting.pop()
        if id(schema) in parts:
            continue
        in_place, named, inside = list[Schema](), list[Schema](), list[Schema]()
        for key, under in schema.items():
            if key in _REFERENCES:
                in_place.append(_target(whole, under))
            elif key in _IN_PLACE:
                in_place += _schemas(key, under)
            elif key in _INSIDE:
                inside += _schemas(key, under)
            elif key == "properties":
                named += _schemas(key, under)
        own_edges = 1 + len(in_place) + len(named) + len(inside) + _PATTERN * len(_patterns(schema))
        parts[id(schema)] = _Part(
            *(own(schema), [*map(id, in_place)], [*map(id, named)], [*map(id, inside)], own_edges),
            finds_unevaluated=_finds_unevaluated(schema),
        )
        edges += own_edges
        waiting += in_place + named + inside
    return parts if edges <= _EDGES else {}


def _target(whole: Schema, reference: object) -> Schema:
    """The schema that is referred to; where that is not easily found, the whole schema, which contains it."""
    found: Any = whole
    fragment = reference.partition("#")[2] if isinstance(reference, str) else ""
    if fragment.startswith("/"):
        for part in unquote(fragment)[1:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(key) if isinstance(found, list) else key]
            except (LookupError, TypeError, ValueError):
                return whole
    return cast("Schema", found) if isinstance(found, Mapping) else whole


def _schemas(key: str, under: object) -> list[Schema]:
    """The subschemas under a keyword."""
    if isinstance(under, Mapping):
        under = [*cast("Schema", under).values()] if key in _MAPS else [cast("Schema", under)]
    each_one = cast("list[object]", under) if isinstance(under, list) else []
    return [cast("Schema", each) for each in each_one if isinstance(each, Mapping)]


def steps_for_a_value(schema: Schema) -> int:
    """The steps that the keywords of one subschema may take for one value, however long the texts in it."""
    steps = 1 + len(_patterns(schema)) + _COMPARED * _listed(schema.get("enum"))
    steps += _UNIQUE * ("uniqueItems" in schema)
    return steps + _UNEVALUATED * _finds_unevaluated(schema)


def _finds_unevaluated(schema: Schema) -> bool:
    return "unevaluatedItems" in schema or "unevaluatedProperties" in schema


def steps_for_a_character(schema: Schema) -> int:
    """The steps that the patterns of one subschema may take for each character. In the worst case one for each state
    that a pattern can be in."""
    return sum(map(_states, _patterns(schema)))


def _states(pattern: str) -> int:
    if _ONE_WAY.fullmatch(pattern):  # in few states at once, however often something is repeated
        return _ONE_WAY_STEPS
    counts = [max(int(digits[-9:] or 0) for digits in found) for found in _REPETITION.findall(pattern)]
    if "){" in pattern:  # they may multiply
        return min(len(pattern) * math.prod(count or 1 for count in counts), MOST_STEPS + 1)
    return len(pattern) + sum(counts)


def characters_of_patterns(schema: Schema) -> int:
    """The number of characters of all patterns in a schema, wherever they stand."""
    return sum(len(pattern) for each in _objects(schema) for pattern in _patterns(each))


def has_inner_names(schema: Schema) -> bool:
    """True if a part of it has a name that references may use in place of its path: those are not followed here."""
    inner = [each for each in _objects(schema) if each is not schema]
    names = _ANCHOR_KEYWORDS | (
        {"id"} if any("draft-04" in str(each.get("$schema")) for each in (schema, *inner)) else set[str]()
    )
    return any(isinstance(each.get(name), (str, bool)) for each in inner for name in names)


def _objects(schema: Schema) -> Iterator[Schema]:
    for level in levels_of(schema):
        yield from (cast("Schema", each) for each in level if isinstance(each, dict))


def _patterns(schema: Schema) -> list[str]:
    under: object = schema.get("patternProperties")
    patterns: list[object] = [schema.get("pattern"), *(cast("Schema", under) if isinstance(under, Mapping) else ())]
    return [each for each in patterns if isinstance(each, str)]


def _listed(enum: object) -> int:
    """Comparisons with an `enum`: plain values are looked up, others compared one by one."""
    if not isinstance(enum, list):
        return 0
    return 1 + sum(isinstance(each, (dict, list)) for each in cast("list[object]", enum))
