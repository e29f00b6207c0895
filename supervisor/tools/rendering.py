"""A result as text. Pure."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from mcp_types import ContentBlock

NO_OUTPUT = "(no output)"
"""The text of a result that holds nothing."""

_JSON_STARTS = frozenset('{["-0123456789tfn')


def render(content: "Sequence[ContentBlock]", structured: Any) -> str:
    """The content as text: text blocks verbatim, others as JSON with binary data replaced by its size, one block a
    line; structured content after it, unless it is there already."""
    parts = [_block(block) for block in content]
    if structured is not None and not any(_says(part, structured) for part in parts):
        parts.append(json.dumps(structured, ensure_ascii=False))
    return "\n".join(parts) or NO_OUTPUT


def _block(block: "ContentBlock") -> str:
    if block.type == "text":
        return block.text
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
