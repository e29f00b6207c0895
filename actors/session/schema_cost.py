"""What it may cost to check a value against a JSON Schema, in the worst case. Pure.

References multiply: a schema of a few lines can ask for more steps than there are atoms, twice as many for each of its
definitions, or for each level of the value.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import unquote

from attrs import define, field

Schema = Mapping[str, Any]

LIMIT: Final = 2_000_000
"""Steps beyond which nobody counts: 20 ms. A step takes about 10 ns, and of what takes longer more are counted."""

_DIGITS: Final = 10
_EDGES: Final = 5_000
"""References and subschemas up to which a schema is looked at. To compile as many references takes 40 ms."""
_PATTERN: Final = 50
"""What a pattern counts as among them."""
_COMPARED: Final = 12
"""Steps to compare a value with one of an `enum`."""
_UNIQUE: Final = 30
"""Steps to know an item from all others."""
_UNEVALUATED: Final = 4
"""Steps to find out of a property or an item whether another keyword has seen to it."""
_COUNTED: Final = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_ONE_WAY: Final = re.compile(r"\^[^*+?|]*")
_ONE_WAY_STEPS: Final = 10

_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_INSIDE: Final = (
    "items",
    "prefixItems",
    "additionalItems",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "contains",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_MAPS: Final = ("properties", "patternProperties", "dependentSchemas", "dependencies")


@define(eq=False)
class _Node:
    """One subschema."""

    own: int
    """Steps for its own keywords."""
    in_place: list["_Node"] = field(factory=list["_Node"])
    """Those that hold for the same value."""
    named: list["_Node"] = field(factory=list["_Node"])
    """Those that hold for the value of one property each: of them at most one holds for a value."""
    inside: list["_Node"] = field(factory=list["_Node"])
    """Those that may hold for any value inside."""
    here: int = 0
    """Steps for one value that lies as many levels down as were counted last."""
    above: int = 0
    """The same for one level less."""
    open: int = 0


class SchemaCost:
    """Steps that one value may take, by how many levels down it lies. Counted level by level, as they are needed.

    Args:
        schema: The schema.
        own: Steps that the keywords of one subschema may take for a value: `steps_for_a_value`, or, if what is counted
            is what a character of a text may take, `steps_for_a_character`.
    """

    def __init__(self, schema: Schema, own: Callable[[Schema], int] | None = None) -> None:
        self.most: int = 0
        """Steps for a value on the levels counted so far; more than `LIMIT` if nobody can tell."""
        self.over: bool = False
        """Whether what lies deeper costs nothing more."""
        self._levels = 0
        graph = _Graph(schema, own or steps_for_a_value)
        self.is_small: Final = graph.is_whole
        """Whether it has so few parts, and patterns, that it is compiled in no time."""
        order = _innermost_first(graph.nodes) if graph.is_whole else None
        self._whole = graph.nodes[0]
        self._order: list[_Node] = order or []
        if order is None:
            self.most = LIMIT + 1

    def down_to(self, levels: int) -> int:
        """The most for a value at most so many levels down."""
        while self._levels < levels and self.most <= LIMIT and not self.over:
            self._descend()
        return self.most

    def _descend(self) -> None:
        self._levels += 1
        for node in self._order:
            node.above = node.here
        for node in self._order:
            steps = node.own if self._levels == 1 else max((each.above for each in node.named), default=0)
            steps += sum(each.here for each in node.in_place)
            if self._levels > 1:
                steps += sum(each.above for each in node.inside)
            node.here = min(steps, LIMIT + 1)
        self.most = max(self.most, self._whole.here)
        self.over = not any(node.here for node in self._order)


class _Graph:
    """All subschemas that the first of them leads to."""

    def __init__(self, schema: Schema, own: Callable[[Schema], int]) -> None:
        self.nodes: list[_Node] = []
        """The first is the whole."""
        self._schema = schema
        self._own = own
        self._known: dict[int, _Node] = {}
        self._waiting: list[tuple[Schema, _Node]] = []
        self._edges = 0
        self._node(schema)
        while self._waiting and self._edges <= _EDGES:
            self._link(*self._waiting.pop())

    def _node(self, schema: Schema) -> _Node:
        node = self._known.get(id(schema))
        if node is None:
            node = self._known[id(schema)] = _Node(self._own(schema))
            self._waiting.append((schema, node))
            self.nodes.append(node)
            self._edges += _PATTERN * len(_patterns(schema))
        self._edges += 1
        return node

    @property
    def is_whole(self) -> bool:
        """Whether all were found before they were too many."""
        return self._edges <= _EDGES

    def _link(self, schema: Schema, node: _Node) -> None:
        node.in_place += [self._node(each) for key in _IN_PLACE for each in _schemas(schema, key)]
        node.in_place += [self._node(self._target(schema[key])) for key in _REFERENCES if key in schema]
        node.named += [self._node(each) for each in _schemas(schema, "properties")]
        node.inside += [self._node(each) for key in _INSIDE for each in _schemas(schema, key)]

    def _target(self, reference: object) -> Schema:
        """What is referred to; the whole schema, of which it is a part, where that is not easily told."""
        found: object = self._schema
        if isinstance(reference, str) and reference.startswith("#/"):
            for part in reference[2:].split("/"):
                found = _step(found, unquote(part).replace("~1", "/").replace("~0", "~"))
        return cast("Schema", found) if isinstance(found, Mapping) else self._schema


def _step(value: object, key: str) -> object:
    """One step of a JSON pointer; None if it leads nowhere."""
    if isinstance(value, Mapping):
        return cast("Schema", value).get(key)
    if isinstance(value, list) and key.isdecimal() and len(key) < _DIGITS:
        return next(iter(cast("list[object]", value)[int(key) :]), None)
    return None


def _schemas(schema: Schema, key: str) -> list[Schema]:
    """The subschemas under a keyword."""
    under: object = schema.get(key)
    found: list[object] = []
    if isinstance(under, Mapping):
        found = [*cast("Schema", under).values()] if key in _MAPS else [cast("object", under)]
    elif isinstance(under, list):
        found = cast("list[object]", under)
    return [cast("Schema", each) for each in found if isinstance(each, Mapping)]


def steps_for_a_value(schema: Schema) -> int:
    """What the keywords of one subschema may take for one value, however long the texts in it."""
    steps = 1 + len(_patterns(schema)) + _COMPARED * _listed(schema.get("enum"))
    steps += _UNIQUE * ("uniqueItems" in schema)
    return steps + _UNEVALUATED * ("unevaluatedItems" in schema or "unevaluatedProperties" in schema)


def steps_for_a_character(schema: Schema) -> int:
    """What the patterns of one subschema may take for each character. In the worst case each of the states that a
    pattern can be in is looked at."""
    return sum(map(_states, _patterns(schema)))


def _states(pattern: str) -> int:
    if _ONE_WAY.fullmatch(pattern):  # in few at once, however often something is repeated
        return _ONE_WAY_STEPS
    counts = [max(int(digits[-9:] or 0) for digits in found) for found in _COUNTED.findall(pattern)]
    if "){" in pattern:  # they may multiply
        return min(len(pattern) * math.prod(count or 1 for count in counts), LIMIT + 1)
    return len(pattern) + sum(counts)


def _patterns(schema: Schema) -> list[str]:
    under: object = schema.get("patternProperties")
    patterns: list[object] = [schema.get("pattern"), *(cast("Schema", under) if isinstance(under, Mapping) else ())]
    return [each for each in patterns if isinstance(each, str)]


def _listed(enum: object) -> int:
    """Plain values are looked up, others compared one by one."""
    if not isinstance(enum, list):
        return 0
    return 1 + sum(isinstance(each, (dict, list)) for each in cast("list[object]", enum))


def _innermost_first(nodes: list[_Node]) -> list[_Node] | None:
    """In an order in which what holds in place comes before where it holds; None if there is none."""
    users: dict[int, list[_Node]] = {}
    for node in nodes:
        node.open = len(node.in_place)
        for each in node.in_place:
            users.setdefault(id(each), []).append(node)
    ready = [node for node in nodes if not node.open]
    for node in ready:  # grows
        for user in users.get(id(node), []):
            user.open -= 1
            if not user.open:
                ready.append(user)
    if len(ready) < len(nodes):
        return None
    return ready
