"""The form of a tool, made of its schema, and the arguments that a person has filled in. Pure."""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from mcp_nursery.supervisor.gateway.bridge import as_object

from ..output import safe_line
from .markup import Child, Html, h

FIELD: Final = "arg."
"""The beginning of the names of fields: a schema may have properties of any name."""
_PLAIN: Final = frozenset({"string", "integer", "number", "boolean"})
MOST_CHOICES: Final = 200
"""Values of a choice that are offered; one with more is typed."""


class WronglyFilled(ValueError):
    """A field has something that cannot be what the schema wants."""


def fields_of(schema: Mapping[str, Any], given: Mapping[str, str]) -> Html:
    """The fields of a form.

    Args:
        schema: The JSON Schema of the arguments.
        given: What was filled in before, by names of fields.
    """
    properties = _properties(schema)
    required = _required(schema)
    if not properties:
        value = given.get(FIELD, "{}")
        label = h("label", "Arguments, as a JSON object", for_=FIELD)
        return h("div", label, h("textarea", value, id=FIELD, name=FIELD, rows=4))
    return h("div", [_field(name, each, name in required, given) for name, each in properties.items()])


def _field(name: str, schema: Mapping[str, Any], is_required: bool, given: Mapping[str, str]) -> Html:
    id_ = FIELD + name
    kind = _kind(schema)
    value = given.get(id_)
    if value is None and "default" in schema:
        value = _written(schema["default"], kind)
    about = schema.get("description")
    hint = h("small", safe_line(about), id=f"{id_}-hint") if isinstance(about, str) else None
    mark = " *" if is_required else ""
    described = None if hint is None else f"{id_}-hint"
    label = h("label", f"{safe_line(name)}{mark}", h("small", f" {kind}"), for_=id_)
    choices = _choices(schema, kind)
    shared: dict[str, str | bool | None] = {"id": id_, "name": id_, "aria_describedby": described}
    control: Child
    if choices is not None:
        options = [h("option", choice or "-", value=choice, selected=choice == value) for choice in ("", *choices)]
        control = h("select", options, **shared)
    elif kind in ("integer", "number"):
        step = "1" if kind == "integer" else "any"
        control = h("input", type="number", step=step, value=value, required=is_required, **shared)
    elif kind == "string" and "\n" not in (value or ""):
        control = h("input", type="text", value=value, **shared)
    else:
        control = h("textarea", value or "", rows=3, spellcheck="false", **shared)
    return h("div", label, control, hint, class_="field")


def arguments_of(schema: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """The arguments that were filled in. An empty field is left out, unless it has to be there.

    Raises:
        WronglyFilled: A field cannot be read; the field is named.
    """
    properties = _properties(schema)
    if not properties:
        arguments = _json("the arguments", given.get(FIELD, "").strip() or "{}")
        if not isinstance(arguments, dict):
            raise WronglyFilled("the arguments must be a JSON object")
        return cast("dict[str, Any]", arguments)
    required = _required(schema)
    filled: dict[str, Any] = {}
    for name, each in properties.items():
        text, kind = given.get(FIELD + name, ""), _kind(each)
        if text or (kind == "string" and name in required):
            filled[name] = _value(safe_line(name), text, kind)
    return filled


def _value(name: str, text: str, kind: str) -> Any:
    if kind == "string":
        return text
    try:
        if kind == "integer":
            return int(text)
        if kind == "number":
            return float(text)
    except ValueError:
        raise WronglyFilled(f"{name}: {text!r:.60} is no {kind}") from None
    return _json(name, text)


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WronglyFilled(f"{name}: no JSON: {error}") from None


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return {name: as_object(each) for name, each in as_object(schema.get("properties")).items()}


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(map(str, _list(schema.get("required"))))


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list) else []  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _kind(schema: Mapping[str, Any]) -> str:
    """The plain type of a property, or `JSON` for all else: objects, lists, and what may be several things."""
    kind, values = schema.get("type"), _list(schema.get("enum"))
    if isinstance(kind, list):
        plain = [each for each in _list(schema["type"]) if each != "null"]
        kind = plain[0] if len(plain) == 1 else None
    if kind is None and values and all(isinstance(each, str) for each in values):
        return "string"
    return kind if isinstance(kind, str) and kind in _PLAIN else "JSON"


def _choices(schema: Mapping[str, Any], kind: str) -> list[str] | None:
    if kind == "boolean":
        return ["true", "false"]
    values = [each for each in _list(schema.get("enum")) if isinstance(each, str)]
    return values if kind == "string" and 0 < len(values) <= MOST_CHOICES else None


def _written(value: Any, kind: str) -> str:
    return value if kind == "string" and isinstance(value, str) else json.dumps(value, ensure_ascii=False)
