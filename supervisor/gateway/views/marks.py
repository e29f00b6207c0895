"""The marks of the library around the words of servers for a model, for clients whose host has no marks of its own."""

import json
from collections.abc import Mapping
from typing import Final, cast

from mcp_nursery.actors.pieces import Steps

from ...resources import READ
from ...security.injection import scan_in_pieces
from ...security.untrusted_marks import harmless_throughout, preamble, truncate, wrap
from ...tools.outcome import outcome_of_result
from ...tools.tool_result import tool_result
from ..bridge import Json, as_object

SIGNALS_KEY: Final = "mcp-nursery/signals"
"""The key, in the `_meta` of a marked result, of the names of the injection signals found in it."""

_HOLDS_TEXT: Final = "text"
_SHOWN: Final = frozenset(["content", "structuredContent"])
"""The members of a tool's result that a model is shown."""
_TASK: Final = "task"
"""The name in the marks of the result of a task: the tool that began it is not known any more."""


def add_preamble(hello: Json, instructions: Mapping[str, str], missing: str) -> Json:
    """The introduction to clients with the rule about marks, marked instructions, and the line about servers that are
    missing."""
    return hello | {"instructions": preamble(instructions, missing)}


def mark_result(method: str, result: Json, *, server: str, tool: str, room: int) -> Steps[Json]:
    """A result of a server as a model may see it, which is shown `room` characters. Prompts are not marked: the user
    has chosen them. `tool` is the server's own name of the tool that was called."""
    if result.get("resultType") == "input_required":
        return result
    match method:
        case "tools/call" if result.keys() & _SHOWN:  # a task has none of them
            return (yield from _mark_call(result, server=server, tool=tool, room=room))
        case "tasks/get" if isinstance(result.get("result"), dict):
            marked = yield from _mark_call(result["result"], server=server, tool=_TASK, room=room)
            return result | {"result": marked}
        case "resources/read":
            return (yield from _mark_contents(result, server=server, room=room))
        case "tools/list":
            yield
            return result | {"tools": [_strip_definition(each) for each in _objects(result.get("tools"))]}
        case _:
            return result


def _mark_call(result: Json, *, server: str, tool: str, room: int) -> Steps[Json]:
    """The result of a call as one text, with images and audio as they came. Structured content is put into the text: a
    host would show it without marks."""
    from mcp_types import CallToolResult

    try:
        typed = CallToolResult.model_validate(result)
    except ValueError:  # a kind of content that nobody knows yet
        said = json.dumps(result.get("content"), ensure_ascii=False)
        typed = CallToolResult.model_validate({"content": [{"type": "text", "text": said}]})
    yield
    given = yield from tool_result(typed, server=server, tool=tool, max_chars=room, duration=0.0, incarnation=0)
    content = [
        block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in outcome_of_result(given).content
    ]
    kept = {key: value for key, value in result.items() if key != "structuredContent"}
    return _add_signals(kept | {"content": content}, given.signals)


def _mark_contents(result: Json, *, server: str, room: int) -> Steps[Json]:
    """The contents of a resource, each text between marks of its own."""
    contents = _objects(result.get("contents"))
    texts = [text for each in contents if isinstance(text := each.get(_HOLDS_TEXT), str)]
    signals = yield from scan_in_pieces("\n".join(texts))
    shown: list[Json] = []
    for each in contents:
        yield
        text = each.get(_HOLDS_TEXT)
        body = {_HOLDS_TEXT: wrap(truncate(text, room), server=server, tool=READ)} if isinstance(text, str) else {}
        shown.append(each | body)
    return _add_signals(result | {"contents": shown}, signals)


def _strip_definition(tool: Json) -> Json:
    """The definition of a tool without an output schema, and without anything that forges a mark."""
    return {
        key: value if key == "name" else harmless_throughout(value)
        for key, value in tool.items()
        if key != "outputSchema"
    }


def _add_signals(result: Json, signals: tuple[str, ...]) -> Json:
    return result | {"_meta": as_object(result.get("_meta")) | {SIGNALS_KEY: list(signals)}} if signals else result


def _objects(values: object) -> list[Json]:
    return [as_object(each) for each in cast("list[object]", values)] if isinstance(values, list) else []
