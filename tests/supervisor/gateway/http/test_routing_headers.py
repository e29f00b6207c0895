"""Headers that repeat a request are refused exactly where the SDK refuses them, whether or not it had to be asked."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import (
    InboundLadderRejection,
    classify_inbound_request,
    decode_header_value,
    find_duplicated_routing_header,
    validate_mcp_param_headers,
)

from mcp_nursery.actors.preload import SDK_MODULES
from mcp_nursery.actors.protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    HEADER_MISMATCH,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    JsonRpcError,
)
from mcp_nursery.supervisor.gateway.client_request import ClientRequest, split_message
from mcp_nursery.supervisor.gateway.http.routing_headers import check_headers, check_version

VERSION = "2026-07-28"
REPEATED = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}


async def nobody(_method, _params):
    raise AssertionError


class SchemaView:
    """The view of a client who calls one tool, whose schema is known or not."""

    def __init__(self, schema):
        self.input_schema = lambda name: schema

    def with_apps(self):
        return self


def message_of(method, params, version=VERSION):
    meta = {PROTOCOL_VERSION_META_KEY: version, CLIENT_CAPABILITIES_META_KEY: {}}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params | {"_meta": meta}}


async def refusal(lines, message, schema):
    """The code of the refusal; None: there is none."""
    exchange = SimpleNamespace(lines=lines, headers=dict(lines), view=SchemaView(schema))
    request = ClientRequest(*split_message(message | {"params": dict(message["params"])}), nobody, principal=None)
    try:
        await check_headers(exchange, message, request)
    except JsonRpcError as error:
        return error.code
    return None


def refusal_of_sdk(lines, message, schema):
    if find_duplicated_routing_header(lines) is not None:
        return HEADER_MISMATCH
    named = dict(lines).get("mcp-name")
    if message["method"] == "tasks/get" and decode_header_value(named) != (named and message["params"]["taskId"]):
        return HEADER_MISMATCH
    found = classify_inbound_request(message, headers=dict(lines))
    if not isinstance(found, InboundLadderRejection):
        found = None
        if message["method"] == "tools/call" and schema is not None:
            found = validate_mcp_param_headers(schema, message["params"].get("arguments") or {}, dict(lines))
    return None if found is None else found.code


NAME = st.sampled_from(["echo", "=?base64?ZWNobw==?=", "=?echo", "other", " echo", "zum Bäcker"])
METHOD = st.sampled_from(["tools/call", "tools/list", "prompts/get", "resources/read", "tasks/get"])
VALUE = st.sampled_from(["echo", "=?base64?ZWNobw==?=", "=?echo", "other", "Ulm", VERSION, "tools/call", "tools/list"])
LINES = st.lists(
    st.tuples(
        st.sampled_from(["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-param-city", "mcp-session-id", "host"]),
        VALUE,
    ),
    max_size=2,
)


@given(
    method=METHOD,
    name=NAME,
    version=st.sampled_from([VERSION, "2025-11-25"]),
    repeats=st.booleans(),
    lines=LINES,
    arguments=st.sampled_from([{}, {"city": "Ulm"}]),
    schema=st.sampled_from([None, {"type": "object"}, REPEATED]),
)
async def test_what_the_sdk_refuses_is_refused(*, method, name, version, repeats, lines, arguments, schema):
    params = {
        "tools/call": {"name": name, "arguments": arguments},
        "prompts/get": {"name": name},
        "resources/read": {"uri": name},
        "tasks/get": {"taskId": name},
    }.get(method, {})
    message = message_of(method, params, version)
    own = [("mcp-protocol-version", version), ("mcp-method", method), ("mcp-name", name)] if repeats else []
    lines = [line for line in [*own, *lines] if line[1].isascii()]
    assert await refusal(lines, message, schema) == refusal_of_sdk(lines, message, schema)


ROUTE = [("mcp-protocol-version", VERSION), ("mcp-method", "tools/call")]


@pytest.mark.parametrize(
    ("name", "lines", "schema"),
    [
        ("echo", ROUTE, None),
        ("echo", [*ROUTE, ("mcp-name", "other")], None),
        ("=?base64?ZWNobw==?=", [*ROUTE, ("mcp-name", "=?base64?ZWNobw==?=")], None),  # the header says echo
        ("echo", [*ROUTE, ("mcp-name", "echo"), ("mcp-name", "echo")], None),
        ("echo", [*ROUTE, ("mcp-name", "echo")], REPEATED),
        ("echo", [("mcp-protocol-version", VERSION), ("mcp-method", "tools/list"), ("mcp-name", "echo")], None),
    ],
)
async def test_a_header_that_does_not_say_what_the_body_says_is_refused(name, lines, schema):
    message = message_of("tools/call", {"name": name, "arguments": {"city": "Ulm"}})
    assert await refusal(lines, message, schema) == refusal_of_sdk(lines, message, schema) == HEADER_MISMATCH


@pytest.mark.parametrize(
    ("method", "params", "named"),
    [
        ("tools/list", {}, {}),
        ("tools/call", {"name": "echo", "arguments": {}}, {"mcp-name": "echo"}),
        ("resources/read", {"uri": "note://today"}, {"mcp-name": "note://today"}),
        ("tasks/get", {"taskId": "a"}, {"mcp-name": "a"}),
        ("tasks/cancel", {"taskId": "a"}, {}),  # as FastMCP's client asks
    ],
)
async def test_what_plainly_agrees_needs_no_sdk(method, params, named, monkeypatch):
    monkeypatch.setattr(SDK_MODULES, "ensure_loaded", None)  # calling it fails
    lines = [("mcp-protocol-version", VERSION), ("mcp-method", method), *named.items(), ("host", "x")]
    assert await refusal(lines, message_of(method, params), {"type": "object"}) is None
    await check_version(VERSION)


async def test_a_notification_of_an_unknown_version_is_refused():
    with pytest.raises(JsonRpcError) as refused:
        await check_version("2099-01-01")
    assert refused.value.code == UNSUPPORTED_PROTOCOL_VERSION
    assert refused.value.data["requested"] == "2099-01-01"
