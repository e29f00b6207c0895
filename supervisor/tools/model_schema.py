"""The input schema of a tool as the APIs of models take it. Pure.

An API that refuses one schema refuses the whole request, with the tools of all other servers. What APIs refuse although
servers write it: alternatives, references and `enum` at the root, other dialects than JSON Schema 2020-12, arrays
without `items`, references that lead nowhere, and names of arguments with characters such as `$`. Such a schema is
replaced by one that allows at least as much; the server checks the arguments against its own.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

from attrs import frozen

from mcp_nursery.actors.json_depth import characters_of, more_values_than, with_each

from ..security.untrusted_marks import harmless
from .fingerprint import Position, canonical, place_of_items, places_of_members

if TYPE_CHECKING:
    import jsonschema_rs

_Schema = dict[str, Any]

_REFUSED_AT_ROOT: Final = ("$ref", "allOf", "anyOf", "oneOf", "enum", "not")
"""Keywords that OpenAI refuses at the root of a schema; Anthropic refuses `allOf`, `anyOf` and `oneOf`."""
_BY_NAME: Final = ("dependencies", "dependentRequired", "dependentSchemas", "propertyNames", "if", "then", "else")
"""Keywords at the root that speak of its properties by their names."""
_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""The names of arguments that Anthropic takes."""
_NO_PART_OF_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_.-]")
_LONGEST_BASE: Final = 60
"""Characters of a name that is followed by a number."""
_ANYTHING: Final[_Schema] = {"type": "object", "properties": {}}
"""The schema of any arguments."""
MOST_SHOWN_VALUES: Final = 5000
"""JSON values in a schema that a model is shown; one with more is replaced by one of any arguments."""
MOST_SHOWN_CHARACTERS: Final = 256 << 10
"""Characters of the names and texts in such a schema: far more than a model has room for."""
_MOST_ERRORS: Final = 1000
"""Errors of a schema that are mended; one with more is replaced by one of any arguments."""
_SCHEMAS: Final[tuple[Position, ...]] = ("schema", "schemas")
"""The places of objects that are schemas."""
_SCHEMA_TYPES: Final = ["boolean", "object"]
"""The types of JSON values that are schemas, as the metaschema names them."""


@frozen
class ModelSchema:
    """The input schema of one tool for the APIs of models, made once: a model may be asked a hundred times."""

    _text: str
    _names: Mapping[str, str]
    """The declared names of arguments, by the names that a model is given, where these are others."""

    @classmethod
    def of(cls, declared: Mapping[str, Any]) -> "ModelSchema":
        """The schema for what a server declares. One that is too large is replaced by one of any arguments."""
        if more_values_than(declared, MOST_SHOWN_VALUES) or characters_of(declared) > MOST_SHOWN_CHARACTERS:
            return cls(json.dumps(_ANYTHING), {})
        flat = _without_alternatives(declared)
        shown = _shown_names(flat)
        text = json.dumps(_mended(with_each(_with_shown_names(flat, shown), _harmless)))
        return cls(text, {name: own for own, name in shown.items()})

    def as_dict(self) -> dict[str, Any]:
        """The schema, with `type` and `properties`, and without texts that forge the marks around results. It is the
        caller's own."""
        schema: dict[str, Any] = json.loads(self._text)
        return schema

    def with_declared_names(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of a model under the names that the server declares."""
        if not self._names:
            return arguments
        return {self._names.get(name, name): value for name, value in arguments.items()}


def _mended(schema: _Schema) -> _Schema:
    """The schema as JSON Schema 2020-12, in place."""
    for part, place in _parts(schema, "schema"):
        _without_dead_reference(part, schema)
        if place in _SCHEMAS:
            _in_this_dialect(part)
    return _ANYTHING | schema | {"type": "object"} if _mended_by_rules(schema) else _ANYTHING


def _harmless(value: Any) -> Any:
    return harmless(value) if isinstance(value, str) else value


# -- the root ---------------------------------------------------------------------------------------------------------


def _without_alternatives(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with the properties of all that it is made of, as its own."""
    if not any(keyword in schema for keyword in _REFUSED_AT_ROOT):
        return schema
    named, required = _members(schema, schema, set())
    kept = {key: value for key, value in schema.items() if key not in (*_REFUSED_AT_ROOT, "required")}
    alternatives = {name: list(each.values()) for name, each in named.items()}
    properties = {name: each[0] if len(each) == 1 else {"anyOf": each} for name, each in alternatives.items()}
    wanted = {"required": [name for name in named if name in required]} if required else {}
    return kept | {"properties": properties} | wanted


def _with_shown_names(schema: Mapping[str, Any], shown: Mapping[str, str]) -> Mapping[str, Any]:
    """The schema with names that all APIs take. A renamed property begins its description with its own name."""
    if not shown:
        return schema
    properties = {
        shown.get(name, name): _described(name, each) if name in shown else each
        for name, each in schema["properties"].items()
    }
    kept = {key: value for key, value in schema.items() if key not in (*_BY_NAME, "required")}
    required = [shown.get(name, name) for name in _items(schema.get("required")) if isinstance(name, str)]
    return kept | {"properties": properties} | ({"required": required} if required else {})


def _described(name: str, schema: object) -> object:
    if not isinstance(schema, dict):
        return schema
    members = cast("_Schema", schema)
    return members | {"description": f"{name}: {members.get('description', '')}".removesuffix(": ")}


def _shown_names(schema: Mapping[str, Any]) -> dict[str, str]:
    """The names that a model is given, by the declared ones; without those that are the same."""
    declared = schema.get("properties")
    if not isinstance(declared, dict) or all(map(_NAME.fullmatch, cast("_Schema", declared))):
        return {}
    taken = {name for name in cast("_Schema", declared) if _NAME.fullmatch(name)}
    shown: dict[str, str] = {}
    numbers: defaultdict[str, Iterator[int]] = defaultdict(partial(count, 2))
    for name in cast("_Schema", declared):
        if name not in taken:
            base = shown[name] = _NO_PART_OF_A_NAME.sub("_", name)[:_LONGEST_BASE] or "_"
            while shown[name] in taken:
                shown[name] = f"{base}{next(numbers[base])}"
            taken.add(shown[name])
    return shown


def _members(
    part: Mapping[str, Any], root: Mapping[str, Any], seen: set[str]
) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """The schemas by property that a schema of objects has or takes from others, each by its text, and the properties
    that it requires.

    Its own come before those of others. Alternatives require what all of them require.
    """
    properties, required = part.get("properties"), part.get("required")
    own = cast("_Schema", properties) if isinstance(properties, dict) else {}
    named = {name: {"": each} for name, each in own.items()}
    wanted = {each for each in _items(required) if isinstance(each, str)}
    together = [*_items(part.get("allOf")), *_referred(part, root, seen)]
    for others, all_of_them in (together, True), (_items(part.get("anyOf")), False), (_items(part.get("oneOf")), False):
        found = [_members(cast("_Schema", each), root, seen) for each in others if isinstance(each, dict)]
        for more, _ in found:
            for name, schemas in more.items():
                if name not in own:
                    named.setdefault(name, {}).update((canonical(each), each) for each in schemas.values())
        each_wants = [wants for _, wants in found]
        if each_wants:
            common: Callable[..., set[str]] = set[str].union if all_of_them else set[str].intersection
            wanted |= common(*each_wants)
    return named, wanted


def _referred(part: Mapping[str, Any], root: Mapping[str, Any], seen: set[str]) -> Iterator[object]:
    """The schema that this one refers to, once: schemas may refer to each other in circles."""
    reference = part.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        yield _target(reference, root)


def _target(reference: object, root: Mapping[str, Any]) -> object:
    """The part of the schema that a reference leads to; None if it leads nowhere, or out of the schema."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found: Any = root
    for step in unquote(reference).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = cast("_Schema", found).get(key)
        elif key.isdecimal() and int(key) < len(items := _items(found)):
            found = items[int(key)]
        else:
            return None
    return cast("_Schema | bool", found) if isinstance(found, (dict, bool)) else None


def _items(value: object) -> Sequence[object]:
    return cast("list[object]", value) if isinstance(value, list) else ()


# -- its parts --------------------------------------------------------------------------------------------------------


def _parts(value: object, place: Position) -> Iterator[tuple[_Schema, Position]]:
    """The objects in a schema with their places, itself included, to be changed: the inner ones come first."""
    if isinstance(value, dict):
        members = cast("_Schema", value)
        places = places_of_members(place, members)
        for key, part in members.items():
            yield from _parts(part, places[key])
        yield members, place
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _parts(item, place_of_items(place))


def _without_dead_reference(part: _Schema, root: _Schema) -> None:
    """Take a reference out that leads nowhere. LangChain follows whatever is called so, be it an example or a property
    of an inner object."""
    if "$ref" in part and _target(part["$ref"], root) is None:
        del part["$ref"]


def _in_this_dialect(part: _Schema) -> None:
    """Write a schema without a dialect of its own, and the items of an array as 2020-12 has them."""
    if isinstance(part.get("$schema"), str):
        del part["$schema"]
    if isinstance(part.get("items"), list):
        part["prefixItems"] = part.pop("items")
        part["items"] = part.pop("additionalItems", {})
    if "items" not in part and ("array" in kinds if isinstance(kinds := part.get("type"), list) else kinds == "array"):
        part["items"] = {}


def _mended_by_rules(schema: _Schema) -> bool:
    """Take out of a schema what JSON Schema 2020-12 forbids. False if it is no schema even so."""
    if _rules().is_valid(schema):
        return True
    errors = islice(_rules().iter_errors(schema), _MOST_ERRORS)
    wrong = {tuple(error.instance_path): getattr(error.kind, "types", None) == _SCHEMA_TYPES for error in errors}
    for path, is_schema in wrong.items():
        _take_out(schema, path, is_schema=is_schema)
    return _rules().is_valid(schema)


def _take_out(schema: _Schema, path: tuple[str | int, ...], *, is_schema: bool) -> None:
    """Replace the part at this path by a schema of anything, if it should be one; else take out its keyword."""
    while path and not is_schema and isinstance(path[-1], int):
        path = path[:-1]
    place: Any = schema
    for step in path[:-1]:
        place = cast("_Schema", place).get(str(step)) if isinstance(place, dict) else place[step]
        if place is None:  # taken out before
            return
    if path and is_schema:
        place[path[-1]] = {}
    elif path:
        cast("_Schema", place).pop(str(path[-1]), None)


@cache
def _rules() -> "jsonschema_rs.Draft202012Validator":
    """The metaschema."""
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator({"$ref": "https://json-schema.org/draft/2020-12/schema"})
