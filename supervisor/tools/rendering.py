"""A result as text. Pure."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from mcp_nursery.actors.limits import MOST_VALUES
from mcp_nursery.actors.steps import SMALL, Steps
from mcp_nursery.actors.wire import large

from .writing import write

if TYPE_CHECKING:
    from mcp_types import ContentBlock

_BLOCKS = 100
"""Blocks that are shown in a row."""
_JSON_STARTS = frozenset('{["-0123456789tfn')


def render(content: "Sequence[ContentBlock]", structured: Any, *, small: bool = False) -> Steps[str]:
    """The content as text: text blocks verbatim, others as JSON with binary data replaced by its size, one block a
    line; structured content after it, unless it is there already. Empty if there is nothing.

    Args:
        content: The blocks.
        structured: What comes with them; None if nothing does.
        small: It came in a message that is seen to in one go.
    """
    parts: list[str] = []
    for count, block in enumerate(content, 1):
        parts.append(block.text if block.type == "text" else _other(block))
        if count % _BLOCKS == 0:
            yield
    if structured is not None and not (yield from _is_said(structured, parts)):
        parts.append(json.dumps(structured, ensure_ascii=False) if small else (yield from write(structured)))
    return "\n".join(parts)


def _is_said(structured: Any, parts: Sequence[str]) -> Steps[bool]:
    unseen = 0
    for part in parts:
        unseen += len(part)
        if unseen > SMALL:
            yield
            unseen = 0
        if len(part) > SMALL and not (yield from _is_readable(part)):
            continue
        if _says(part, structured):
            return True
    return False


def _is_readable(part: str) -> Steps[bool]:
    """Whether a long text has no more values, if it is JSON, than a message may have."""
    try:
        yield from large.check_values(part.encode(errors="replace"), MOST_VALUES)
    except large.Refused:
        return False
    return True


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
