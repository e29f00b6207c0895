"""What a call gave. Pure."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson
from attrs import field, frozen

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

NO_OUTPUT = "(no output)"
"""The text of a result that holds nothing."""


@frozen
class ToolResult:
    """A tool's answer. `is_error` is an answer too: the tool ran and says that it failed."""

    content: "Sequence[ContentBlock]" = field(repr=False)
    """The content blocks, whole."""
    structured: Any = field(repr=False)
    """The structured content; None if there is none."""
    is_error: bool
    duration: float
    """Seconds from the call to the answer, waiting for the server included."""
    server: str
    tool: str
    """The server's own name of the tool."""
    incarnation: int
    """Which connection of the server answered, from 1."""
    meta: dict[str, Any] | None = field(default=None, repr=False)
    """The result's `_meta`."""

    @cached_property
    def text(self) -> str:
        """The content for people and models: text verbatim, other blocks as JSON with binary data replaced by its
        size, one block a line; structured content after it, unless it is there already."""
        return render(self.content, self.structured)


def tool_result(result: "CallToolResult", *, duration: float, server: str, tool: str, incarnation: int) -> ToolResult:
    """What the caller gets of a validated result."""
    return ToolResult(
        content=result.content,
        structured=result.structured_content,
        is_error=bool(result.is_error),
        duration=duration,
        server=server,
        tool=tool,
        incarnation=incarnation,
        meta=None if result.meta is None else dict(result.meta),
    )


def render(content: "Sequence[ContentBlock]", structured: Any) -> str:
    """The text of a result."""
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
    try:
        said = orjson.loads(part)
    except orjson.JSONDecodeError:
        return isinstance(structured, dict) and structured == {"result": part}
    return structured in (said, {"result": said})
