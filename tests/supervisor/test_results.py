"""What a host gets of a tool's answer."""

import json
from typing import Any

import pytest
from mcp_types import CallToolResult

from mcp_nursery.supervisor.tools.results import NO_OUTPUT, ToolResult, render, tool_result


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def answer(*content: dict[str, Any], **rest: Any) -> CallToolResult:
    return CallToolResult.model_validate({"content": list(content), **rest}, by_name=False)


def rendered(result: CallToolResult) -> str:
    return render(result.content, result.structured_content)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (answer(), NO_OUTPUT),
        (answer(text("")), NO_OUTPUT),
        (answer(text("  one\n")), "  one\n"),
        (answer(text("one"), text("two")), "one\ntwo"),
        (answer(text('{"a": 1}')), '{"a": 1}'),
        (answer(text("é\u2028\x00")), "é\u2028\x00"),
        (
            answer({"type": "image", "data": "QUJD", "mimeType": "image/png"}),
            '{"type": "image", "data": "<4 characters of base64>", "mimeType": "image/png"}',
        ),
        (
            answer({"type": "audio", "data": "QUJDRA==", "mimeType": "audio/wav"}),
            '{"type": "audio", "data": "<8 characters of base64>", "mimeType": "audio/wav"}',
        ),
        (
            answer({"type": "resource_link", "name": "readme", "uri": "file:///r"}),
            '{"name": "readme", "uri": "file:///r", "type": "resource_link"}',
        ),
        (answer(text("see"), structuredContent={"a": 1}), 'see\n{"a": 1}'),
        (answer(structuredContent={"é": [1, None]}), '{"é": [1, null]}'),
        (answer(text('{"a":   1}'), structuredContent={"a": 1}), '{"a":   1}'),
        (answer(text("5"), structuredContent={"result": 5}), "5"),
        (answer(text("five"), structuredContent={"result": "five"}), "five"),
        (answer(text("six"), structuredContent={"result": "five"}), 'six\n{"result": "five"}'),
        (answer(text("no"), isError=True), "no"),
    ],
)
def test_rendering(result, expected):
    """T10: text verbatim, other blocks as JSON without their bytes, structured content unless it is there already."""
    said = rendered(result)
    if expected.startswith(('{"name"', '{"type"')):
        assert json.loads(said) == json.loads(expected)
    else:
        assert said == expected


def test_embedded_resources():
    """T10: text of an embedded resource is there as JSON; its binary data is not, but for its size."""
    blob = answer({"type": "resource", "resource": {"uri": "x://y", "blob": "QUJD" * 1000, "mimeType": "image/png"}})
    assert "QUJD" not in rendered(blob)
    words = answer({"type": "resource", "resource": {"uri": "x://y", "text": "words"}})
    assert json.loads(rendered(words))["resource"]["text"] == "words"


def test_a_text_that_cannot_be_parsed_by_recursion():
    """T10: a text of brackets is text."""
    nasty = "[" * 100_000
    assert rendered(answer(text(nasty), structuredContent={"a": 1})) == nasty + '\n{"a": 1}'


def test_facts_of_the_call():
    """T16: duration, server, tool, incarnation; content, structured content and `_meta` whole."""
    raw = answer(text("hey"), {"type": "image", "data": "QUJD", "mimeType": "image/png"}, _meta={"k": 1}, isError=True)
    result = tool_result(raw, duration=1.5, server="lab", tool="echo", incarnation=3)
    assert (result.duration, result.server, result.tool, result.incarnation) == (1.5, "lab", "echo", 3)
    assert (result.is_error, result.structured, result.meta) == (True, None, {"k": 1})
    assert result.content == raw.content
    assert result.content[1].data == "QUJD"


def test_the_repr_shows_no_content_twice():
    """L17: what a log line of a result shows is its text and its facts."""
    result = tool_result(
        answer(text("hey"), structuredContent={"a": "secret"}), duration=1, server="lab", tool="echo", incarnation=1
    )
    assert isinstance(result, ToolResult)
    assert repr(result).count("TextContent") == 0
