"""What is handed on between the eras of the protocol, and what is not."""

import pytest

from mcp_nursery.supervisor.gateway.bridge import (
    bridge_result,
    build_envelope,
    discover_result,
    fit_definition,
    fit_list,
    initialize_result,
)

INFO, CAN, LEVEL, VERSION, SERVER = (
    f"io.modelcontextprotocol/{key}"
    for key in ("clientInfo", "clientCapabilities", "logLevel", "protocolVersion", "serverInfo")
)
US, OWN = {"name": "us"}, {"name": "its own"}
VERSIONS = ("2024-11-05", "2025-06-18", "2025-11-25")
OLD_HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": OWN,
    "instructions": "be nice",
    "vendor": 1,
}
NEW_HELLO = {
    "resultType": "complete",
    "ttlMs": 5,
    "cacheScope": "public",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "_meta": {SERVER: OWN, "vendor": 2},
    "vendor": 1,
}


def test_the_envelope_of_a_request_is_of_one_hop():
    meta = {INFO: "x", CAN: "x", LEVEL: "x", VERSION: "x", "progressToken": 7, "vendor": 1}
    kept = {"progressToken": 7, "vendor": 1}
    assert build_envelope(meta, {"roots": {}}, US, "info") == kept | {CAN: {"roots": {}}, INFO: US, LEVEL: "info"}
    assert build_envelope(meta, {}, None, None) == kept | {CAN: {}}


@pytest.mark.parametrize("modern", [True, False])
def test_within_one_era_nothing_of_a_result_is_touched(modern):
    result = {"tools": [], "ttlMs": 1, "_meta": {}}
    assert bridge_result("tools/list", result, to_modern=modern, from_modern=modern, server_info=US) is result


@pytest.mark.parametrize(
    ("method", "cached"),
    [
        ("tools/list", True),
        ("resources/read", True),
        ("skills/list", True),
        ("tools/call", False),
        ("prompts/get", False),
    ],
)
def test_a_result_for_a_newer_client(method, cached):
    hints = {"ttlMs": 0, "cacheScope": "private"} if cached else {}
    said = bridge_result(
        method, {"vendor": 1, "_meta": {"vendor": 2}}, to_modern=True, from_modern=False, server_info=US
    )
    assert said == {"resultType": "complete", "vendor": 1, "_meta": {"vendor": 2, SERVER: US}} | hints
    own = {"resultType": "vendor", "_meta": {SERVER: OWN}}
    assert bridge_result(method, own, to_modern=True, from_modern=False, server_info=US) == hints | own


def test_a_result_for_an_older_client():
    said = {"resultType": "complete", "ttlMs": 5, "cacheScope": "public", "vendor": 1, "_meta": {SERVER: OWN}}
    assert bridge_result("tools/list", said, to_modern=False, from_modern=True, server_info=US) == {"vendor": 1}
    said["_meta"]["vendor"] = 2
    kept = {"vendor": 1, "_meta": {"vendor": 2}}
    assert bridge_result("tools/list", said, to_modern=False, from_modern=True, server_info=US) == kept
    task = {"resultType": "task", "taskId": "1", "ttlMs": 5}
    assert bridge_result("tools/call", task, to_modern=False, from_modern=True, server_info=US) == task


@pytest.mark.parametrize(
    ("wanted", "own", "agreed"),
    [
        ("2025-11-25", "2025-06-18", "2025-06-18"),
        ("2024-11-05", "2025-06-18", "2024-11-05"),
        ("2030-01-01", "2025-11-25", "2025-11-25"),
        (None, "2025-06-18", "2025-06-18"),
        ("2030-01-01", "2031-01-01", "2025-11-25"),
        ("2025-06-18", "2030-01-01", "2025-06-18"),
    ],
)
def test_an_older_client_and_an_older_server_agree_on_a_version(wanted, own, agreed):
    said = initialize_result(OLD_HELLO | {"protocolVersion": own}, wanted, VERSIONS)
    assert said == OLD_HELLO | {"protocolVersion": agreed}


def test_an_older_client_meets_a_newer_server():
    said = initialize_result(NEW_HELLO, "2025-06-18", VERSIONS)
    kept = {"capabilities": {"tools": {}}, "_meta": {"vendor": 2}, "vendor": 1}
    assert said == {"protocolVersion": "2025-06-18", "serverInfo": OWN} | kept


def test_a_newer_client_meets_an_older_server():
    said = discover_result(OLD_HELLO)
    assert said["supportedVersions"] == ["2026-07-28"]
    assert said["_meta"] == {SERVER: OWN}
    assert said["resultType"] == "complete"
    assert {key: said[key] for key in ("capabilities", "instructions", "vendor")} == {
        key: OLD_HELLO[key] for key in ("capabilities", "instructions", "vendor")
    }
    assert not {"protocolVersion", "serverInfo"} & said.keys()


def test_a_newer_client_meets_a_newer_server():
    assert discover_result(NEW_HELLO) == NEW_HELLO


@pytest.mark.parametrize("from_modern", [True, False])
@pytest.mark.parametrize("value", [[1], 5, "x", None])
def test_structured_content_for_an_older_client_is_an_object(from_modern, value):
    options = {"from_modern": from_modern, "server_info": US}
    said = {"content": [], "structuredContent": value}
    assert bridge_result("tools/call", said, to_modern=False, **options) == {"content": []}
    assert bridge_result("tools/call", said, to_modern=True, **options)["structuredContent"] == value
    whole = {"content": [], "structuredContent": {"x": 1}}
    assert bridge_result("tools/call", whole, to_modern=False, **options) == whole


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize(
    "definition",
    [
        {"name": "a", "inputSchema": {"type": "object", "properties": {"a": {"default": None}}, "required": ["a"]}},
        {"name": "a", "inputSchema": {"type": "object", "anyOf": [True]}, "_meta": {"x": None}, "x": None, "y": [None]},
        {"name": "a", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object", "properties": {"a": {}}}},
        {"uri": "x:y", "name": "a", "annotations": {"priority": 1, "x": None}, "icons": [{"src": "x:y"}]},
        {"uri": "x:y", "name": "a", "annotations": {"lastModified": "2025-01-12T15:00:58.5Z"}, "size": 5},
    ],
)
def test_a_definition_that_is_as_the_protocol_has_it_is_handed_on(definition, modern):
    assert fit_definition(definition, modern=modern) == definition


@pytest.mark.parametrize(
    ("declared", "handed_on"),
    [
        (
            {"title": None, "annotations": {"title": None, "readOnlyHint": True}},
            {"annotations": {"readOnlyHint": True}},
        ),
        ({"icons": None, "arguments": [{"name": "a", "description": None}]}, {"arguments": [{"name": "a"}]}),
        ({"inputSchema": {}}, {"inputSchema": {"type": "object"}}),
        ({"inputSchema": {"anyOf": [{}]}}, {"inputSchema": {"type": "object", "anyOf": [{}]}}),
        ({"inputSchema": {"type": ["object"]}}, {"inputSchema": {"type": "object"}}),
        (
            {"inputSchema": {"type": "object", "properties": {"a": True, "b": False, "c": 5, "d": {}}}},
            {"inputSchema": {"type": "object", "properties": {"a": {}, "b": {"not": {}}, "c": {}, "d": {}}}},
        ),
        ({"inputSchema": {"type": "object", "properties": [], "required": True}}, {"inputSchema": {"type": "object"}}),
        ({"inputSchema": {"type": "object", "required": ["a", 5]}}, {"inputSchema": {"type": "object"}}),
        ({"outputSchema": None}, {}),
        ({"annotations": {"lastModified": "2025-01-01", "priority": 1}}, {"annotations": {"priority": 1}}),
        ({"annotations": {"lastModified": "2025-01-01T10:00:00"}}, {"annotations": {}}),
        (
            {"outputSchema": {"type": "object", "properties": {"a": True}}},
            {"outputSchema": {"type": "object", "properties": {"a": {}}}},
        ),
    ],
)
def test_a_definition_that_would_cost_a_whole_list_is_made_fit(declared, handed_on):
    """T19: strict clients refuse the list for what is here on the left."""
    for modern in (True, False):
        assert fit_definition({"name": "a", **declared}, modern=modern) == {"name": "a", **handed_on}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"anyOf": [{"type": "object"}]},
        {},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/no"}}},
        {"type": "object", "properties": {"a": {"pattern": "(?i)x"}}},
    ],
)
def test_an_output_schema_of_anything_else_is_for_newer_clients(schema):
    assert fit_definition({"name": "a", "outputSchema": schema}, modern=True)["outputSchema"] == schema
    assert fit_definition({"name": "a", "outputSchema": schema}, modern=False) == {"name": "a"}


def test_the_list_of_one_server_is_made_fit():
    """T19: the same for a server that is served alone, whose list is handed on as it answered."""
    entries = [{"name": "a", "title": None}, 5]
    said = {"tools": entries, "nextCursor": None, "_meta": None, "vendor": None}
    fit = [{"name": "a", "inputSchema": {"type": "object"}}, 5]
    assert fit_list("tools", said, entries, modern=False) == {"tools": fit, "vendor": None}
    assert fit_list("prompts", {"prompts": [{}]}, [{"name": "a"}], modern=True) == {"prompts": [{"name": "a"}]}
