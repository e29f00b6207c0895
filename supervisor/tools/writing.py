"""JSON of any size as text, in pieces. Pure."""

import json
from collections.abc import Sequence
from typing import Any, Final, cast

from mcp_nursery.actors.pieces import Steps

_IN_A_ROW: Final = 1000
"""Values that are written in one go."""
_NESTED: Final = (dict, list)


def write(value: object) -> Steps[str]:
    """The text that `json.dumps` gives of a JSON value, with characters as they are."""
    parts: list[str] = []
    yield from _write(value, parts)
    return "".join(parts)


def _write(value: object, parts: list[str]) -> Steps[None]:
    """What holds nothing nested is written in one go, as far as it goes: that is quick."""
    yield
    if not isinstance(value, _NESTED):
        parts.append(_text(value))
        return
    is_object = isinstance(value, dict)
    items: list[Any] = [*cast("dict[str, Any]", value).items()] if is_object else cast("list[Any]", value)
    is_flat = not any(
        isinstance(item, _NESTED) for item in (cast("dict[str, Any]", value).values() if is_object else items)
    )
    parts.append("{" if is_object else "[")
    for at in range(0, len(items), _IN_A_ROW if is_flat else 1):
        parts.append(", " if at else "")
        if is_flat:
            row: Sequence[Any] = items[at : at + _IN_A_ROW]
            parts.append(_text(dict(row) if is_object else row)[1:-1])
            yield
            continue
        if is_object:
            parts.append(_text({items[at][0]: None}).removeprefix("{").removesuffix("null}"))
        yield from _write(items[at][1] if is_object else items[at], parts)
    parts.append("}" if is_object else "]")


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
