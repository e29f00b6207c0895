"""What a hostile server says: values for any place of a message, and messages for any moment."""

import json
from copy import deepcopy
from typing import Any

from attrs import field, frozen

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
INFO = {"name": "hostile", "version": "1"}
STAMP = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


@frozen
class Raw:
    """A JSON text in the place of a value."""

    text: str = field(repr=lambda text: text if len(text) < 60 else f"{text[:40]}… ({len(text)})")


def dumps(value: Any) -> str:
    """JSON with raw texts in it."""
    raws: list[str] = []

    def mark(raw: Raw) -> str:
        raws.append(raw.text)
        return f"\x01raw{len(raws) - 1}\x01"

    text = json.dumps(value, default=mark)
    for number, raw in enumerate(raws):
        text = text.replace(f'"\\u0001raw{number}\\u0001"', raw)
    return text


def nested(depth: int, *, array: bool = True) -> Raw:
    return Raw("[" * depth + "]" * depth) if array else Raw('{"a":' * depth + "1" + "}" * depth)


WORST = [
    *(
        nested(depth, array=array)
        for depth in (50, 190, 199, 201, 250, 300, 500, 900, 980, 1000)
        for array in (False, True)
    ),
    *(Raw("9" * digits) for digits in (10, 19, 20, 310, 4300, 4301, 10000)),
    *map(Raw, ("-1", "0", "1e999", "-1e400", "1.5", "NaN", "Infinity", "-Infinity", "-0.0", "true", "null")),
    *map(Raw, ('"\\ud800"', '"a\\udfff"', '{"\\ud800": 1}', '["\\udc00"]', '"\\u0000"', '""', "[]", "{}", '"1"')),
    *map(
        Raw, ('"' + "x" * 5000 + '"', '"\\u001b[2J\\u202e\\r\\nroot"', '"e\\u0301"', '"\\u00e9"', '"\\u0665"', '"09"')
    ),
    *map(
        Raw, ('{"a": 1, "a": 2}', '{"": {"": {"": 0}}}', '[[], {}, null, 1, "x"]', '{"$ref": "#"}', '"input_required"')
    ),
]
"""What a place in a message may be filled with."""

PATHOLOGICAL_SCHEMAS: list[Any] = [
    {"$ref": "#"},
    {"type": "object", "allOf": [{"$ref": "#"}]},
    {"type": "object", "$ref": "http://127.0.0.1:1/schema"},
    {"type": "object", "$ref": "file:///etc/passwd"},
    {"type": "object", "properties": {"a": {"pattern": "^(a|aa)+\\1?(?!x)$"}}},
    {"type": "object", "properties": {"a": {"pattern": "("}}},
    {"type": "object", "properties": {"a": {"enum": list(range(5000))}}},
    {"type": "object", "$schema": "http://example.org/none"},
    {"type": 5},
    {"type": "object", "required": ["\ud800"]},
    {"type": "object", "properties": {"\ud800": {}}},
    {"type": "object", "maxProperties": Raw("9" * 400)},
    {"type": "object", "properties": {"a": {"multipleOf": Raw("1e-320")}}},
    {
        "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
        | {"d40": {"type": "string"}},
        "type": "object",
        "$ref": "#/$defs/d0",
    },
]

# -- what a well-behaved server would say ---------------------------------------------------------------------------


def tool(name: Any, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "title": "A tool",
        "description": "Does it.",
        "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}},
        "annotations": {"readOnlyHint": True},
        "_meta": {"anthropic/searchHint": "it"},
        **more,
    }


TOOLS: list[Any] = [
    tool("echo"),
    tool("typed", outputSchema={"type": "object", "properties": {"a": {"type": "string"}}}),
    tool("x" * 100),
]
NAMES: list[Any] = [
    "echo",
    "Echo",
    "ECHO",
    "e\u0301",
    "\u00e9",
    "",
    "\x00",
    "\ud800",
    "a b",
    "a\nb",
    "x" * 5000,
    "echo_",
]
CALLED = ("echo", "typed", "x" * 100, "a\nb", "\ud800", "nobody has this")


def reply(method: str, *, modern: bool) -> dict[str, Any] | None:
    """The result of a request; None for an error."""
    stamp = STAMP if modern else {}
    match method:
        case "server/discover" if modern:
            meta = {"io.modelcontextprotocol/serverInfo": INFO}
            return {
                "supportedVersions": [MODERN],
                "capabilities": {"tools": {"listChanged": True}},
                "_meta": meta,
                "instructions": "Be good.",
                **stamp,
            }
        case "initialize" if not modern:
            return {
                "protocolVersion": HANDSHAKE,
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": INFO,
                "instructions": "Be good.",
            }
        case "tools/list":
            return {"tools": deepcopy(TOOLS), **stamp}
        case "tools/call":
            content = [{"type": "text", "text": "fine"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}]
            return {
                "content": content,
                "structuredContent": {"a": "b"},
                "_meta": {"a": 1},
                **({"resultType": "complete"} if modern else {}),
            }
        case "ping":
            return {}
        case _:
            return None


ELICIT = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "who?", "requestedSchema": {"type": "object", "properties": {}}},
}
SAMPLE = {
    "method": "sampling/createMessage",
    "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 10},
}
ROOTS: dict[str, Any] = {"method": "roots/list", "params": {}}
QUESTION = {"resultType": "input_required", "inputRequests": {"q": ELICIT, "s": SAMPLE}, "requestState": "state"}
VISIT = {
    "code": -32042,
    "message": "visit",
    "data": {"elicitations": [{"mode": "url", "message": "go", "url": "http://127.0.0.1/", "elicitationId": "1"}]},
}
REFUSAL = {"code": -32000, "message": "no", "data": {"a": ["b"]}}

UNASKED: list[dict[str, Any]] = [
    {"method": "notifications/progress", "params": {"progressToken": 3, "progress": 1, "total": 2, "message": "m"}},
    {"method": "notifications/cancelled", "params": {"requestId": 1, "reason": "r"}},
    {"method": "notifications/tools/list_changed", "params": {}},
    {"method": "notifications/resources/updated", "params": {"uri": "file:///a"}},
    {"method": "notifications/message", "params": {"level": "info", "data": {"a": 1}, "logger": "l"}},
    {"method": "notifications/elicitation/complete", "params": {"elicitationId": "1"}},
    {"method": "notifications/subscriptions/acknowledged", "params": {"notifications": {}}},
    {"method": "notifications/unheard_of", "params": {}},
    {"id": 7, **ELICIT},
    {"id": 8, **SAMPLE},
    {"id": "r", **ROOTS},
    {"id": 9, "method": "ping"},
    {"id": 10, "method": "unheard/of", "params": {"a": 1}},
    {"id": 424242, "result": {}},
    {"id": 2, "result": {"tools": []}},
    {"id": 3, "error": REFUSAL},
]
BROKEN = [
    b"",
    b"[]",
    b"[[]]",
    b"null",
    b"{}",
    b"{",
    b"\xff\xfe",
    b"[" * 5000,
    b'{"a":' * 2000,
    b'"',
    b"1" * 6000,
    b'[1,{"jsonrpc":"2.0"}]',
]
