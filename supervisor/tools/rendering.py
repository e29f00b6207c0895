"""A result as text. Pure."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from mcp_types import ContentBlock

_JSON_STARTS = frozenset('{["-0123456789tfn')


def render(content: "Sequence[ContentBlock]", structured: Any) -> str:
    """The content as text: text blocks verbatim, others as JSON with binary data replaced by its size, one block a
    line; structured content after it, unless it is there already. Empty if there is nothing."""
    parts = [block.text if block.type == "text" else _other(block) for block in content]
    if structured is not None:
        _add(structured, parts)
    return "\n".join(parts)


def _add(structured: Any, parts: list[str]) -> None:
    for part in parts:
        if _says(part, structured):
            return
    parts.append(json.dumps(structured, ensure_ascii=False))


def _other(block: "ContentBlock") -> str:
    dumped = block.model_dump(by_alias=True, mode="json", exclude_none=True)
    for holder, key in ((dumped, "data"), (dumped.get("resource", {}), "blob")):
        if isinstance(data := holder.get(key), str):
            holder[key] = f"<{len(data)} characters of base64>"
    return json.dumps(dumped, ensure_ascii=False)


def _says(part: str, structured: Any) -> bool:
    """Whether a text block is the structured content, as servers send it for older hosts."""
    if structured == {"result": part}:
        return True
    if part.lstrip(" \t\r\n")[:1] not in _JSON_STARTS:  # an exception for every ordinary text would be slow
        return False
    try:
        said = orjson.loads(part)
    except orjson.JSONDecodeError:
        return False
    return structured in (said, {"result": said})
