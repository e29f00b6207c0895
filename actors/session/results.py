"""Results of callers' requests as the SDK's models. Loads the models."""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from mcp_types import CallToolResult, CompleteResult, GetPromptResult, InputRequiredResult, ReadResourceResult
from pydantic import BaseModel, ValidationError

from ..messages import CALL_TOOL
from ..pieces import Steps
from .base import PARTS_AT_ONCE, BadResult

__all__ = ["ValidationError", "readable_result", "typed_question", "typed_result"]

_KNOWN: Final = frozenset(["text", "image", "audio", "resource_link", "resource"])
"""The types of blocks that the protocol has."""
_MOST_QUOTED: Final = 1000
"""Characters that are quoted of what cannot be read."""

_RESULTS: Final[Mapping[str, type[BaseModel]]] = {
    CALL_TOOL: CallToolResult,
    "resources/read": ReadResourceResult,
    "prompts/get": GetPromptResult,
    "completion/complete": CompleteResult,
}


def typed_result(method: str, raw: dict[str, Any], first: int = 0) -> BaseModel:
    """The result of a request of this method; `first`: the place of the first of its parts among all.

    Raises:
        BadResult: It is not valid.
    """
    try:
        return _RESULTS[method].model_validate(raw, by_name=False)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part + first if isinstance(part, int) else part) for part in problem["loc"])
        raise BadResult(f"not a {method} result: {where}: {problem['msg']}") from None


def readable_result(raw: dict[str, Any], *, extended: bool = False) -> Steps[dict[str, Any]]:
    """The result of a tool, of which a part is not valid, as far as it can be read.

    The text of a block that is not valid is given as text. Whatever else is not valid stands in its place as a text
    that quotes it, in at most 1,000 characters: the tool has run, and its answer is not lost for its shape. `extended`:
    blocks of unknown types are left for a client that may know them.
    """
    content: object = raw.get("content")
    blocks = cast("list[object]", content) if isinstance(content, list) else []
    readable: list[object] = []
    for at in range(0, len(blocks), PARTS_AT_ONCE):
        some = blocks[at : at + PARTS_AT_ONCE]
        wrong = {where[1] for where in _wrong_places({"content": some})}
        for place, block in enumerate(some):
            is_fine = place not in wrong or (extended and _is_unknown(block))
            readable += [block] if is_fine else _text_and_rest(block, f"block {at + place + 1}")
        yield
    said: dict[str, Any] = {**raw, "content": []}
    for (member,) in {where[:1] for where in _wrong_places(said)}:
        value = said.pop(member)
        if value is not None:
            readable.append(_unread(f"{member!r}", value))
        if member == "isError":
            said[member] = bool(value)
    if content is not None and blocks is not content:
        readable.append(_unread("'content'", raw["content"]))
    elif content is None and "structuredContent" not in raw:
        readable.append(_unread("all", raw))
    return {**said, "content": readable}


def _wrong_places(raw: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The places of the errors in a result of a tool."""
    try:
        CallToolResult.model_validate(raw, by_name=False)
    except ValidationError as error:
        return [each["loc"] for each in error.errors(include_url=False, include_context=False, include_input=False)]
    return []


def _is_unknown(block: object) -> bool:
    kind = _members(block).get("type")
    return isinstance(kind, str) and kind not in _KNOWN


def _members(value: object) -> Mapping[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _text_and_rest(block: object, name: str) -> list[object]:
    members = _members(block)
    text = members.get("text")
    if not isinstance(text, str):
        return [_unread(name, block)]
    rest = {key: value for key, value in members.items() if key != "text"}
    return [{"type": "text", "text": text}, _unread(f"a part of {name}", rest)]


def _unread(name: str, value: object) -> dict[str, str]:
    """A block that names what cannot be read, and quotes it."""
    quoted = ""
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        quoted += piece[:_MOST_QUOTED]
        if len(quoted) > _MOST_QUOTED:
            quoted = f"{quoted[:_MOST_QUOTED]}…"
            break
    return {"type": "text", "text": f"[{name} of this result cannot be read: {quoted}]"}


def typed_question(raw: dict[str, Any]) -> InputRequiredResult:
    """A request for input in place of a result.

    Raises:
        ValidationError: It is not valid.
    """
    return InputRequiredResult.model_validate(raw, by_name=False)
