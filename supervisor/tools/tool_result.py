"""The result of a call, as text, and how that becomes the text for a model. Pure. JSON of any
size is written in pieces."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from mcp_nursery.actors.jsonrpc import large_messages
from mcp_nursery.actors.limits import MOST_VALUES
from mcp_nursery.actors.pieces import SMALL, Steps
from mcp_nursery.actors.records import field, frozen

from ..security.injection import scan, scan_in_pieces
from ..security.untrusted_marks import truncate, wrap

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock


_IN_A_ROW: Final = 1000
"""Values that are written in one go."""
_SHORT: Final = SMALL // _IN_A_ROW
"""Characters of a text that is written with others in one go."""
_CONTAINER_TYPES: Final = (dict, list)


def write(value: object) -> Steps[str]:
    """The text that `json.dumps` makes of a JSON value, with characters as they are."""
    parts: list[str] = []
    yield from _write(value, parts)
    return "".join(parts)


def _write(value: object, parts: list[str]) -> Steps[None]:
    """Write a value. Many parts that are neither nested nor long texts are written in one go, which is quick."""
    yield
    if isinstance(value, str):
        yield from _write_text(value, parts)
        return
    if not isinstance(value, _CONTAINER_TYPES):
        parts.append(_text(value))
        return
    is_object = isinstance(value, dict)
    items: list[Any] = [*cast("dict[str, Any]", value).items()] if is_object else cast("list[Any]", value)
    is_flat = not any(map(_is_long, [*value, *cast("dict[str, Any]", value).values()] if is_object else items))
    parts.append("{" if is_object else "[")
    for at in range(0, len(items), _IN_A_ROW if is_flat else 1):
        parts.append(", " if at else "")
        if is_flat:
            row: Sequence[Any] = items[at : at + _IN_A_ROW]
            parts.append(_text(dict(row) if is_object else row)[1:-1])
            yield
            continue
        if is_object:
            yield from _write_name(items[at][0], parts)
        yield from _write(items[at][1] if is_object else items[at], parts)
    parts.append("}" if is_object else "]")


def _is_long(value: object) -> bool:
    return isinstance(value, _CONTAINER_TYPES) or (isinstance(value, str) and len(value) > _SHORT)


def _write_name(name: object, parts: list[str]) -> Steps[None]:
    if isinstance(name, str):
        yield from _write_text(name, parts)
        parts.append(": ")
    else:  # of an in-process server
        parts.append(_text({name: None}).removeprefix("{").removesuffix("null}"))


def _write_text(text: str, parts: list[str]) -> Steps[None]:
    """Write a text in pieces. JSON writes each character by itself, so a text may be cut anywhere."""
    parts.append('"')
    for at in range(0, len(text), SMALL):
        parts.append(_text(text[at : at + SMALL])[1:-1])
        yield
    parts.append('"')


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


NO_OUTPUT = "(no output)"
"""The text that a model is shown for an empty result."""


@frozen(slots=False)  # made in a third of the time
class ToolResult:
    """A tool's answer. `is_error` is an answer too: the tool ran and reports a failure."""

    full_text: str = field(repr=lambda text: f"<{len(text)} characters>")
    """The content as text, whole and without marks, empty if there is none: for people and programs, never for a
    model."""
    content: "Sequence[ContentBlock]" = field(repr=False)
    """The content blocks, whole."""
    structured: Any = field(repr=False)
    """The structured content; None if there is none."""
    is_error: bool
    """True if the tool reports that it failed."""
    duration: float
    """Seconds from the call to the answer, waiting for the server included."""
    server: str
    """The server's name."""
    tool: str
    """The server's own name of the tool."""
    incarnation: int
    """The incarnation of the server that answered, from 1."""
    max_result_chars: int = field(repr=False)
    """Characters of it that a model is shown."""
    signals: tuple[str, ...] = ()
    """Names of the injection signals found in the whole content: it may try to instruct the model."""
    meta: dict[str, Any] | None = field(default=None, repr=False)
    """The result's `_meta`."""

    @property
    def truncated(self) -> bool:
        """True if `text` is cut."""
        return len(self.full_text) > self.max_result_chars

    @cached_property
    def text(self) -> str:
        """The text for a model: the content, cut at the server's `max_result_chars`, between marks that say whose words
        these are and that they are untrusted."""
        return wrap(truncate(self.full_text, self.max_result_chars) or NO_OUTPUT, server=self.server, tool=self.tool)


def tool_result(
    result: "CallToolResult",
    *,
    server: str,
    tool: str,
    max_chars: int,
    duration: float,
    incarnation: int,
    small: bool = False,
) -> Steps[ToolResult]:
    """The caller's result of a validated one: rendered, scanned whole, and cut at `max_chars` and wrapped once `text`
    is read; `small`: its message is handled in one go."""
    rendered = yield from render(result.content, result.structured_content, small=small)
    signals = scan(rendered) if small else (yield from scan_in_pieces(rendered))  # what will be cut, too
    return ToolResult(  # by position: named, eleven arguments cost half a microsecond
        rendered,
        result.content,
        result.structured_content,
        bool(result.is_error),
        duration,
        server,
        tool,
        incarnation,
        max_chars,
        signals,
        None if result.meta is None else dict(result.meta),
    )


_BLOCKS_AT_ONCE = 100
"""Blocks that are shown in a row."""

_JSON_STARTS = frozenset('{["-0123456789tfn')


def render(content: "Sequence[ContentBlock]", structured: Any, *, small: bool = False) -> Steps[str]:
    """The content as text: text blocks verbatim, others as JSON with binary data replaced by its size, one block a
    line; structured content after it, unless it is there already. Empty if there is nothing. With `small`, its message
    is handled in one go."""
    parts: list[str] = []
    for count, block in enumerate(content, 1):
        parts.append(block.text if block.type == "text" else _describe_block(block))
        if count % _BLOCKS_AT_ONCE == 0:
            yield
    if structured is not None and not (yield from _repeats_structured(structured, parts)):
        parts.append(json.dumps(structured, ensure_ascii=False) if small else (yield from write(structured)))
    return "\n".join(parts)


def _repeats_structured(structured: Any, parts: Sequence[str]) -> Steps[bool]:
    unseen = 0
    for part in parts:
        unseen += len(part)
        if unseen > SMALL:
            yield
            unseen = 0
        if len(part) > SMALL and not (yield from _is_readable(part)):
            continue
        if _repeats(part, structured):
            return True
    return False


def _is_readable(part: str) -> Steps[bool]:
    """True if a long text, read as JSON, has no more values than a message may have."""
    try:
        yield from large_messages.check_values(part.encode(errors="replace"), MOST_VALUES)
    except large_messages.MessageTooCostly:
        return False
    return True


def _describe_block(block: "ContentBlock") -> str:
    dumped = block.model_dump(by_alias=True, mode="json", exclude_none=True)
    for holder, key in ((dumped, "data"), (dumped.get("resource", {}), "blob")):
        if isinstance(data := holder.get(key), str):
            holder[key] = f"<{len(data)} characters of base64>"
    return json.dumps(dumped, ensure_ascii=False)


def _repeats(part: str, structured: Any) -> bool:
    """True if a text block is the structured content, as servers send it for older hosts."""
    if structured == {"result": part}:
        return True
    if part.lstrip(" \t\r\n")[:1] not in _JSON_STARTS:  # an exception for every ordinary text would be slow
        return False
    try:
        said = orjson.loads(part)
    except orjson.JSONDecodeError:
        return False
    return structured in (said, {"result": said})
