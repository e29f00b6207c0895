"""The form of a tool, made from its schema, and the arguments that a person has filled in. Pure."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, cast

from mcp_nursery.actors.json_depth import TOO_DEEP, nested_too_deep
from mcp_nursery.actors.json_parsing import parse_json, refuse_constant
from mcp_nursery.supervisor.gateway.bridge import as_object

from .layout import ServerWords, pretty, short
from .markup import Child, Html, h

FIELD: Final = "arg."
"""The beginning of the names of fields, and the name of the one field for all arguments. The number of a property
follows: a schema may have properties of any name, and browsers change some characters of names."""
MOST_PROPERTIES: Final = 200
"""Properties that have a field each; the arguments of a tool with more are typed as JSON."""
_NUMBERS: Final = {
    "integer": re.compile(r"-?(0|[1-9]\d{0,999})", re.ASCII),
    "number": re.compile(r"-?(0|[1-9]\d{0,999})(\.\d{1,999})?([eE][+-]?\d{1,9})?", re.ASCII),
}
"""Numbers as JSON writes them: nothing else is taken for one."""
_PLAIN: Final = frozenset({"string", "integer", "number", "boolean"})
MOST_CHOICES: Final = 200
"""Values of a choice that are offered; if it has more, the value is typed."""
MOST_OPTIONS: Final = 1_000
"""Values of all choices of a form together; if there are more, values are typed."""
LARGEST_OFFER: Final = 10_000
"""Characters of the values of a choice together, and of a default that is filled in."""


class WronglyFilled(ValueError):
    """The error of a field whose content does not fit the schema."""


def fields_of(schema: Mapping[str, Any], given: Mapping[str, str], words: ServerWords) -> Html:
    """The fields of a form for arguments of this JSON Schema, with the values that were filled in before, by names of
    fields. A choice or a default with a secret is not offered."""
    properties = _properties(schema)
    if properties is None:
        value = given.get(FIELD, "{}")
        label = h("label", "Arguments, as a JSON object", for_=FIELD)
        return h("div", label, h("textarea", f"\n{value}", id=FIELD, name=FIELD, rows=4))
    required = _required(schema)
    few = sum(len(_list(each.get("enum"))) for each in properties.values()) <= MOST_OPTIONS
    return h(
        "div",
        [
            _field(f"{FIELD}{number}", (name, each, _choices(each, few=few)), name in required, given, words)
            for number, (name, each) in enumerate(properties.items())
        ],
    )


def _field(
    id_: str,
    property_: tuple[str, Mapping[str, Any], list[str] | None],
    is_required: bool,
    given: Mapping[str, str],
    words: ServerWords,
) -> Html:
    name, schema, choices = property_
    kind = _kind(schema)
    value = given.get(id_)
    if value is None:
        value = _default(schema, kind, words)
    about = schema.get("description")
    hint = h("small", words.line(about), id=f"{id_}-hint") if isinstance(about, str) else None
    mark = " *" if is_required else ""
    described = None if hint is None else f"{id_}-hint"
    label = h("label", f"{words.line(name)}{mark}", h("small", f" {kind}"), for_=id_)
    shared: dict[str, str | bool | None] = {"id": id_, "name": id_, "aria_describedby": described}
    control: Child
    if choices is not None and all(map(words.keeps, choices)):
        options = [h("option", short(each) or "-", value=each, selected=each == value) for each in ("", *choices)]
        control = h("select", options, **shared)
    elif kind in ("integer", "number"):
        step = "1" if kind == "integer" else "any"
        control = h("input", type="number", step=step, value=value, required=is_required, **shared)
    elif kind == "string" and "\n" not in (value or ""):
        control = h("input", type="text", value=value, **shared)
    else:
        control = h("textarea", f"\n{value or ''}", rows=3, spellcheck="false", **shared)
    return h("div", label, control, hint, class_="field")


def _default(schema: Mapping[str, Any], kind: str, words: ServerWords) -> str | None:
    if "default" not in schema:
        return None
    default = schema["default"]
    written = default if kind == "string" and isinstance(default, str) else pretty(default, LARGEST_OFFER + 1)
    return written if len(written) <= LARGEST_OFFER and words.keeps(written) else None


def arguments_of(schema: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """The arguments that were filled in. An empty field is left out, unless it is required. Lines end with `\\n`:
    browsers send `\\r\\n`.

    Raises:
        WronglyFilled: A field cannot be read, or JSON cannot express its content; the field is named.
    """
    properties = _properties(schema)
    if properties is None:
        arguments = _json("the arguments", given.get(FIELD, "").strip() or "{}")
        if not isinstance(arguments, dict):
            raise WronglyFilled("the arguments must be a JSON object")
        return cast("dict[str, Any]", arguments)
    required = _required(schema)
    filled: dict[str, Any] = {}
    for number, (name, each) in enumerate(properties.items()):
        text, kind = given.get(f"{FIELD}{number}", "").replace("\r\n", "\n"), _kind(each)
        if text or (kind == "string" and name in required):
            filled[name] = _value(short(name), text, kind)
    return filled


def _value(name: str, text: str, kind: str) -> Any:
    if kind == "string":
        return text
    if kind in ("integer", "number") and _NUMBERS[kind].fullmatch(text.strip()) is None:
        raise WronglyFilled(f"{name}: {short(text, 60)!r} is no {kind}")
    return _json(name, text)


def _json(name: str, text: str) -> Any:
    try:
        value = parse_json(text, parse_constant=refuse_constant, parse_float=_exact)
    except (ValueError, RecursionError) as error:
        raise WronglyFilled(f"{name}: no JSON: {error}") from None
    if nested_too_deep(value):
        raise WronglyFilled(f"{name}: {TOO_DEEP}")
    return value


def _exact(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.60} is too large")
    if Decimal(text) != Decimal(repr(value)):
        raise ValueError(f"{text:.60} has more digits than a number keeps: {value!r}")
    return value


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]] | None:
    """The properties that have a field each; None: there are no properties, or too many."""
    found = {name: as_object(each) for name, each in as_object(schema.get("properties")).items()}
    return found if 0 < len(found) <= MOST_PROPERTIES else None


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(map(str, _list(schema.get("required"))))


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list) else []  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _kind(schema: Mapping[str, Any]) -> str:
    """The plain type of a property, or `JSON` for all else: objects, lists, and values of several types."""
    kind, values = schema.get("type"), _list(schema.get("enum"))
    if isinstance(kind, list):
        plain = [each for each in _list(schema["type"]) if each != "null"]
        kind = plain[0] if len(plain) == 1 else None
    if kind is None and values and all(isinstance(each, str) for each in values):
        return "string"
    return kind if isinstance(kind, str) and kind in _PLAIN else "JSON"


def _choices(schema: Mapping[str, Any], *, few: bool) -> list[str] | None:
    """The values that are offered; None: the value is typed. `few`: the whole form does not have too many."""
    kind = _kind(schema)
    if kind == "boolean":
        return ["true", "false"]
    values = [each for each in _list(schema.get("enum")) if isinstance(each, str)]
    fits = 0 < len(values) <= MOST_CHOICES and sum(map(len, values)) <= LARGEST_OFFER
    plain = fits and not any("\r" in each or "\n" in each for each in values)  # browsers change the ends of lines
    return values if few and kind == "string" and plain else None
