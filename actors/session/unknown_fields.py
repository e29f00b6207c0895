"""Definitions that say more than the types of the protocol hold: they are kept whole, for whoever hands them on.

Most say no more, and are what the SDK makes of them. One that does is of a type derived from the SDK's, which keeps
fields that it does not know, at every level: that costs what these fields hold, and some 700 bytes.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

import mcp_types
from pydantic import BaseModel, create_model


def _open(base: type[BaseModel], **nested: Any) -> type[BaseModel]:
    """The type, with room for fields of any name, and these fields of such types."""
    fields: dict[str, Any] = {name: (of | None, None) for name, of in nested.items()}
    return create_model(base.__name__, __base__=base, __cls_kwargs__={"extra": "allow"}, **fields)


_NESTED: Final[Mapping[type[BaseModel], Mapping[str, type[BaseModel]]]] = {
    mcp_types.Tool: {
        "icons": mcp_types.Icon,
        "annotations": mcp_types.ToolAnnotations,
        "execution": mcp_types.ToolExecution,
    },
    mcp_types.Prompt: {"icons": mcp_types.Icon, "arguments": mcp_types.PromptArgument},
    mcp_types.Resource: {"icons": mcp_types.Icon, "annotations": mcp_types.Annotations},
    mcp_types.ResourceTemplate: {"icons": mcp_types.Icon, "annotations": mcp_types.Annotations},
}
"""What is listed, and its fields whose objects have types of their own."""
_LISTS: Final = ("icons", "arguments")
"""Those that hold several."""


def _field(name: str, of: type[BaseModel]) -> Any:
    several: Any = list[_open(of)]  # type: ignore[misc]
    return several if name in _LISTS else _open(of)


_OPEN: Final = {of: _open(of, **{name: _field(name, to) for name, to in has.items()}) for of, has in _NESTED.items()}


def _known(of: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in of.model_fields.items())


_KNOWN: Final = {of: _known(of) for of in _NESTED}
_KNOWN_NESTED: Final = {of: {name: _known(to) for name, to in has.items()} for of, has in _NESTED.items()}


def whole(entry: BaseModel, raw: object) -> BaseModel:
    """The definition with all that the server said of it: `entry`, if that is all of it.

    Args:
        entry: What the SDK has made of it.
        raw: As it came.
    """
    kind = type(entry)
    said = cast("dict[str, Any]", raw)  # or it would not be valid
    if said.keys() <= _KNOWN[kind]:
        nested = _KNOWN_NESTED[kind]
        if not any(_says_more(said[name], known) for name, known in nested.items() if name in said):
            return entry
    return _OPEN[kind].model_validate(said, by_name=False)


def _says_more(value: object, known: frozenset[str]) -> bool:
    objects = cast("list[object]", value) if isinstance(value, list) else [value]
    return any(isinstance(each, dict) and not cast("dict[str, Any]", each).keys() <= known for each in objects)


def more_of(entry: BaseModel) -> list[object]:
    """All that a definition says in fields that the types do not have."""
    if entry.model_extra is None:
        return []
    said: list[object] = [entry.model_extra]
    for name in ("icons", "annotations", "execution", "arguments"):
        value: object = getattr(entry, name, None)
        objects = cast("list[object]", value) if isinstance(value, list) else [value]
        said += [each.model_extra for each in objects if isinstance(each, BaseModel)]
    return said
