"""The input schema of a tool as the APIs of models take it. Pure.

An API that refuses one schema refuses the whole request, with the tools of all other servers. What APIs refuse although
servers write it: alternatives, references and `enum` at the root, other dialects than JSON Schema 2020-12, arrays
without `items`, references that lead nowhere, and names of arguments with characters such as `$`. Such a schema is
replaced by one of the same arguments. It is no narrower, but for alternatives at the root, whose arguments then stand
side by side: the server checks them against its own.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

from mcp_nursery.actors.json_depth import MAX_NESTING, levels_of, more_values_than, texts_in
from mcp_nursery.actors.pieces import Steps, at_once
from mcp_nursery.actors.records import define, field, frozen

from ..security.untrusted_marks import harmless_throughout
from .fingerprint import Position, canonical, place_of_items, places_of_members

if TYPE_CHECKING:
    import jsonschema_rs

_Schema = dict[str, Any]

_REFUSED_AT_ROOT: Final = ("$ref", "allOf", "anyOf", "oneOf", "enum", "not")
"""Keywords that OpenAI refuses at the root of a schema; Anthropic refuses `allOf`, `anyOf` and `oneOf`."""
_BY_NAME: Final = (
    *("dependencies", "dependentRequired", "dependentSchemas", "propertyNames", "patternProperties"),
    *("unevaluatedProperties", "if", "then", "else"),
)
"""Keywords at the root that speak of its properties by their names."""
_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""The names of arguments that Anthropic takes."""
_NO_PART_OF_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_.-]")
_LONGEST_BASE: Final = 60
"""Characters of a name that is followed by a number."""
_ANYTHING: Final[_Schema] = {"type": "object", "properties": {}}
"""The schema of any arguments."""
MOST_SCHEMA_VALUES: Final = 5000
"""JSON values in a schema that a model is shown; one with more is replaced by its outline."""
MOST_SCHEMA_CHARACTERS: Final = 128 << 10
"""Characters of the names and texts in such a schema: far more than a model has room for."""
MOST_SCHEMA_DEPTH: Final = 40
"""Levels of such a schema."""
_OUTLINED: Final = 100
"""Arguments in the outline of a larger one."""
_OUTLINED_CHARACTERS: Final = 200
"""Characters of a name or a description there."""
_MOST_ERRORS: Final = 100
"""Errors of a schema that are mended; one with more is replaced by its outline."""
_MOST_MENDED: Final = 2000
"""JSON values in a schema whose errors are mended: all its errors are found in one go."""
_MOST_REQUIRED: Final = 50_000
"""Names that are compared to find out what a schema of many parts requires; if there are more, nothing is required."""
_MOST_ROUNDS: Final = 8
"""Times that conditions are taken out because of references to those taken out before."""
_CONDITIONS: Final = ("not", "if", "oneOf")
"""Keywords that allow less if a schema in them allows more."""
_MAY_NEED_MENDING: Final = re.compile(r'"(?:\$ref|\$schema|array)"|"items": \[')
_OF_PYTHON_ALONE: Final = re.compile(r"\(\?(?![:=!]|<[=!])")
_DIGITS: Final = 9
"""Digits of a place in a list that a reference names, and none has."""
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
    def of(cls, declared: Mapping[str, Any]) -> "Steps[ModelSchema]":
        """The schema for what a server declares. One that is too large or too wrong is replaced by its outline, and
        what is none by one of any arguments."""
        try:
            made = None
            if not _is_too_large(declared):
                made = yield from cls._made((yield from _without_alternatives(declared)))
            made = made or (yield from cls._made(_outline(declared)))
        except (TypeError, ValueError):  # an object of Python's, from an in-process server
            made = None
        return made or cls(json.dumps(_ANYTHING), {})

    @classmethod
    def _made(cls, flat: Mapping[str, Any]) -> "Steps[ModelSchema | None]":
        """The schema for one without alternatives at its root; None if it cannot be mended."""
        shown = _shown_names(flat)
        yield
        schema = _ANYTHING | (yield from _harmless(_with_shown_names(flat, shown))) | {"type": "object"}
        text = json.dumps(schema)
        yield
        if _MAY_NEED_MENDING.search(text) or not metaschema().is_valid(schema):
            if not (yield from _is_mended(schema, renamed=bool(shown))):
                return None
            text = json.dumps(_ANYTHING | schema | {"type": "object"})
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
        names = {name: own for name, own in self._names.items() if own not in arguments}
        return {names.get(name, name): value for name, value in arguments.items()}


@define(eq=False)
class SchemaForModels:
    """The model's schema of one definition, made at first use. All copies of its tool share it: a server that comes and
    goes, or a host that copies its tools, has it made once."""

    _made: ModelSchema | None = field(default=None, init=False)

    def of(self, declared: Mapping[str, Any]) -> Steps[ModelSchema]:
        """The schema for what the server declares."""
        if self._made is None:
            self._made = yield from ModelSchema.of(declared)
        return self._made

    def at_once(self, declared: Mapping[str, Any]) -> ModelSchema:
        """The same, in one go: some hundredths of a second at most."""
        return self._made or at_once(self.of(declared))


def _is_too_large(schema: Mapping[str, Any]) -> bool:
    values = characters = 0
    for depth, level in enumerate(levels_of(schema), 1):
        values += sum(len(cast("Sequence[object]", each)) for each in level if isinstance(each, (dict, list)))
        if depth > MOST_SCHEMA_DEPTH or values > MOST_SCHEMA_VALUES:
            return True
        characters += sum(map(len, texts_in(level)))
        if characters > MOST_SCHEMA_CHARACTERS:
            return True
    return False


def _harmless(schema: Mapping[str, Any]) -> Steps[_Schema]:
    """The schema without texts that forge marks, one property or definition after the other."""
    shown: _Schema = {}
    for key, each in schema.items():
        parts: _Schema = {}
        for name, part in cast("_Schema", each).items() if isinstance(each, dict) else ():
            parts |= harmless_throughout({name: part})
            yield
        (own,) = harmless_throughout({key: None})
        shown[own] = parts if isinstance(each, dict) else harmless_throughout(each)
        yield
    return shown


def _outline(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The names of the first arguments, with their types and the beginnings of their descriptions."""
    declared = schema.get("properties")
    named = cast("_Schema", declared) if isinstance(declared, dict) else {}
    properties = {
        name: {
            key: said[:_OUTLINED_CHARACTERS]
            for key in ("type", "description")
            if isinstance(said := cast("_Schema", each).get(key), str)
        }
        for name, each in islice(named.items(), _OUTLINED)
        if isinstance(each, dict) and len(name) <= _OUTLINED_CHARACTERS
    }
    required = [name for name in _items(schema.get("required")) if isinstance(name, str) and name in properties]
    return {"properties": properties} | ({"required": required} if required else {})


# -- the root ---------------------------------------------------------------------------------------------------------


def _without_alternatives(schema: Mapping[str, Any]) -> Steps[Mapping[str, Any]]:
    """The schema with the properties of all that it is made of, as its own."""
    if not any(keyword in schema for keyword in _REFUSED_AT_ROOT):
        return schema
    parts = _Parts(schema)
    properties = yield from parts.properties()
    required = parts.required()
    yield
    dropped = *_REFUSED_AT_ROOT, "required", "unevaluatedProperties"
    kept = {key: value for key, value in schema.items() if key not in dropped}
    wanted = {"required": [name for name in properties if name in required]} if required else {}
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
    # Some servers write schemas from sets, in another order at each start: the names stay the same.
    for name in sorted(cast("_Schema", declared)):
        if name not in taken:
            base = shown[name] = _NO_PART_OF_A_NAME.sub("_", name)[:_LONGEST_BASE] or "_"
            while shown[name] in taken:
                shown[name] = f"{base}{next(numbers[base])}"
            taken.add(shown[name])
    return shown


class _Parts:
    """The parts of a schema of objects that it is made of, by `allOf`, by alternatives and by references. Each part is
    looked at once, however often others refer to it: schemas may refer to each other in circles, or very often."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._made_of: dict[int, Mapping[str, list[_Schema]]] = {}
        self._required: dict[int, set[str]] = {}
        self._left = _MOST_REQUIRED

    def properties(self) -> Steps[_Schema]:
        """The schema of each property. Those of the root hide those of its parts."""
        own = _properties(self._root)
        found, alternatives = {**own}, dict[str, _Schema]()
        waiting = [self._root]
        while waiting:
            part = waiting.pop()
            if id(part) in self._made_of:
                continue
            for name, each in _properties(part).items():
                if name in own:
                    continue
                if found.setdefault(name, each) is not each:
                    known = alternatives.setdefault(name, {canonical(found[name]): found[name]})
                    known.setdefault(canonical(each), each)
                yield
            waiting += [each for parts in self._of(part).values() for each in parts][::-1]
            yield
        for name, known in alternatives.items():
            if len(known) > 1:
                found[name] = {"anyOf": [*known.values()]}
        return found

    def _of(self, part: Mapping[str, Any]) -> Mapping[str, list[_Schema]]:
        """The schemas that another is made of, by the keyword. All of them apply for a reference, too."""
        if id(part) not in self._made_of:
            made_of = self._made_of[id(part)] = {
                keyword: [cast("_Schema", each) for each in _items(part[keyword]) if isinstance(each, dict)]
                for keyword in ("allOf", "anyOf", "oneOf")
                if keyword in part
            }
            if isinstance(target := _target(part.get("$ref"), self._root), dict):
                made_of["allOf"] = [*made_of.get("allOf", ()), cast("_Schema", target)]
        return self._made_of[id(part)]

    def required(self) -> set[str]:
        """The properties that are required. Alternatives require what all of them require. Nothing is required if that
        takes long to find out."""
        names = self._required_by(self._root, 0)
        return names if self._left >= 0 else set()

    def _required_by(self, part: Mapping[str, Any], depth: int) -> set[str]:
        if id(part) in self._required:
            return self._required[id(part)]
        self._required[id(part)] = set()  # for parts that refer to it in a circle
        wanted = {each for each in _items(part.get("required")) if isinstance(each, str)}
        for keyword, parts in self._of(part).items() if depth < MAX_NESTING else ():
            each_wants = [self._required_by(each, depth + 1) for each in parts]
            self._left -= sum(map(len, each_wants))
            if each_wants and self._left >= 0:
                common: Callable[..., set[str]] = set[str].union if keyword == "allOf" else set[str].intersection
                wanted |= common(*each_wants)
        self._required[id(part)] = wanted
        return wanted


def _properties(schema: Mapping[str, Any]) -> _Schema:
    properties = schema.get("properties")
    return cast("_Schema", properties) if isinstance(properties, dict) else {}


def _target(reference: object, root: Mapping[str, Any]) -> object:
    """The part of the schema that a reference leads to; None if it leads nowhere, or out of the schema."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found: Any = root
    for step in unquote(reference).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = cast("Mapping[str, Any]", found).get(key)
        elif key.isdecimal() and len(key) < _DIGITS and int(key) < len(items := _items(found)):
            found = items[int(key)]
        else:
            return None
    return cast("_Schema | bool", found) if isinstance(found, (dict, bool)) else None


def _members(value: object) -> Mapping[str, object]:
    return cast("_Schema", value) if isinstance(value, dict) else {}


def _items(value: object) -> Sequence[object]:
    return cast("list[object]", value) if isinstance(value, list) else ()


# -- its parts --------------------------------------------------------------------------------------------------------


def _is_mended(schema: _Schema, *, renamed: bool) -> Steps[bool]:
    """Rewrite the schema as JSON Schema 2020-12, in place; False if it is none even so. `renamed`: the root is not what
    references to it mean."""

    def is_dead(reference: object) -> bool:
        return (renamed and reference == "#") or _target(reference, schema) is None

    for _ in range(_MOST_ROUNDS):
        wrong = yield from _with_dead_references(schema, is_dead)
        if not wrong or not (yield from _without_conditions(schema, wrong)):
            break
    else:
        return False
    for part, place in (yield from _all_parts(schema)):
        yield
        if place in _SCHEMAS:
            _in_this_dialect(part, is_dead)
        # LangChain follows whatever is called so, in examples and as a name.
        if "$ref" in part and (place == "by name" or is_dead(part["$ref"])):
            del part["$ref"]
    return _is_mended_by_rules(schema)


def _all_parts(schema: _Schema) -> Steps[list[tuple[_Schema, Position]]]:
    parts: list[tuple[_Schema, Position]] = []
    for each in _parts(schema, "schema"):
        parts.append(each)
        yield
    return parts


def _parts(value: object, place: Position) -> Iterator[tuple[_Schema, Position]]:
    """The objects in a schema with their places, itself included, to be changed: the outer ones come first."""
    if isinstance(value, dict):
        members = cast("_Schema", value)
        yield members, place
        places = places_of_members(place, members)
        for key, part in members.items():
            yield from _parts(part, places[key])
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _parts(item, place_of_items(place))


def _with_dead_references(schema: _Schema, is_dead: Callable[[object], bool]) -> Steps[set[int]]:
    """The identities of the objects and arrays with a reference in them that leads nowhere."""
    wrong = set[int]()
    for level in reversed([*levels_of(schema)]):
        for each in level:
            members = _members(each)
            inner = [*members.values()] or _items(each)
            if any(id(one) in wrong for one in inner) or ("$ref" in members and is_dead(members["$ref"])):
                wrong.add(id(each))
            yield
    return wrong


def _without_conditions(schema: _Schema, wrong: set[int]) -> Steps[bool]:
    """Take out what allows less once a reference in it allows anything: `not`, `if`, and that of alternatives only one
    may hold. False if there is nothing of it: references to what was taken out lead nowhere now."""
    changed = False
    for part, place in (yield from _all_parts(schema)):
        yield
        for keyword in _CONDITIONS if place in _SCHEMAS else ():
            if id(part.get(keyword)) in wrong:
                changed = True
                alternatives = part.pop(keyword)
                if keyword == "oneOf" and "anyOf" not in part:
                    part["anyOf"] = alternatives
    return changed


def _has_dead_reference(value: object, is_dead: Callable[[object], bool]) -> bool:
    objects = (cast("_Schema", each) for level in levels_of(value) for each in level if isinstance(each, dict))
    return any("$ref" in each and is_dead(each["$ref"]) for each in objects)


def _in_this_dialect(part: _Schema, is_dead: Callable[[object], bool]) -> None:
    """Write a schema without a dialect of its own, the items of an array as 2020-12 has them, and nothing called `$ref`
    that is no reference."""
    if isinstance(part.get("$schema"), str):
        del part["$schema"]
    if isinstance(part.get("items"), list):
        part["prefixItems"] = part.pop("items")
        part["items"] = part.pop("additionalItems", {})
    if "items" not in part and ("array" in kinds if isinstance(kinds := part.get("type"), list) else kinds == "array"):
        part["items"] = {}
    for keyword in ("const", "enum"):
        if keyword in part and _has_dead_reference(part[keyword], is_dead):
            del part[keyword]
    properties = part.get("properties")
    if isinstance(properties, dict) and "$ref" in properties:
        del properties["$ref"]
        part.pop("additionalProperties", None)
        if "$ref" in _items(part.get("required")):
            del part["required"]


def _is_mended_by_rules(schema: _Schema) -> bool:
    """Take out of a schema what JSON Schema 2020-12 forbids. False if it is no schema even so."""
    if metaschema().is_valid(schema):
        return True
    if more_values_than(schema, _MOST_MENDED):
        return False
    errors = islice(metaschema().iter_errors(schema), _MOST_ERRORS)
    wrong = {tuple(error.instance_path): getattr(error.kind, "types", None) == _SCHEMA_TYPES for error in errors}
    for path, is_schema in wrong.items():
        _take_out(schema, path, is_schema=is_schema)
    return metaschema().is_valid(schema)


def _take_out(schema: _Schema, path: tuple[str | int, ...], *, is_schema: bool) -> None:
    """Replace the part at this path by a schema of anything, if it should be one; else take out its keyword, and in any
    case that of a condition around it."""
    holder, keyword = schema, ""
    place: Any = schema
    position: Position = "schema"
    for step in path:
        if isinstance(place, dict):
            holder, keyword = cast("_Schema", place), str(step)
            if keyword not in holder:  # taken out before
                return
            if position in _SCHEMAS and keyword in _CONDITIONS:
                del holder[keyword]
                return
            position = places_of_members(position, holder)[keyword]
            place = holder[keyword]
        else:
            position = place_of_items(position)
            place = next(islice(_items(place), int(step), None), None)
    said: Any = holder.get(keyword)
    if is_schema:
        items = _items(said) if isinstance(path[-1], int) else ()
        holder[keyword] = [_as_schema(each) for each in items] if items else {}
    elif keyword == "required" and (strings := [each for each in _items(said) if isinstance(each, str)]):
        holder[keyword] = list(dict.fromkeys(strings))
    else:
        holder.pop(keyword, None)


def _as_schema(value: object) -> object:
    return cast("object", value) if isinstance(value, (dict, bool)) else {}


@cache
def metaschema() -> "jsonschema_rs.Draft202012Validator":
    """The schema of schemas of JSON Schema 2020-12."""
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator({"$ref": "https://json-schema.org/draft/2020-12/schema"})


# -- for strict clients -----------------------------------------------------------------------------------------------


def compiles_anywhere(schema: Mapping[str, Any]) -> bool:
    """True if validators of other languages compile a schema: it is valid, refers to itself alone, and has neither
    Python's patterns nor the `nullable` of OpenAPI."""
    try:
        if _is_too_large(schema) or not metaschema().is_valid(schema):
            return False
    except (TypeError, ValueError):
        return False
    objects = [cast("_Schema", each) for level in levels_of(schema) for each in level if isinstance(each, dict)]
    return not any(
        ("$ref" in each and _target(each["$ref"], schema) is None)
        or ("nullable" in each and "type" not in each)
        or each.get("enum") == []
        or _OF_PYTHON_ALONE.search(str(each.get("pattern", "")))
        for each in objects
    )
