"""What is seen to be right without the SDK is right by the SDK's models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import InboundModernRoute, classify_inbound_request
from mcp_types import methods

from mcp_nursery.actors.protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    HANDSHAKE_PROTOCOL_VERSIONS,
    INVALID_PARAMS,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    JsonRpcError,
)
from mcp_nursery.supervisor.gateway.client_request import ClientRequest, check_request, is_plain
from mcp_nursery.supervisor.gateway.clients import ClientSession


async def nobody(_method, _params):
    raise AssertionError


def request(method, params, meta=None):
    session = ClientSession(nobody, None, None)
    return ClientRequest(1, method, params, meta or {}, nobody, principal=session, session=session)


def modern(method, params, meta):
    return ClientRequest(1, method, params, meta, nobody, principal=None)


OBJECT = st.sampled_from(
    [{}, {"form": {}}, {"form": {}, "url": {}}, {"listChanged": True}, {"listChanged": 1}, 5, None]
)
INFO = st.dictionaries(
    st.sampled_from(["name", "version", "title", "websiteUrl", "icons", "description"]),
    st.sampled_from(["a", "", 5, None, []]),
)
CAPABILITIES = st.dictionaries(
    st.sampled_from(["roots", "sampling", "elicitation", "tasks", "experimental", "extensions"]), OBJECT
)
OPENING = st.fixed_dictionaries(
    {"protocolVersion": st.sampled_from(["2025-11-25", "", 5])},
    optional={
        "clientInfo": INFO | st.just({"name": "a", "version": "1"}),
        "capabilities": CAPABILITIES,
        "more": st.just(1),
    },
)
ENVELOPE = st.fixed_dictionaries(
    {},
    optional={
        PROTOCOL_VERSION_META_KEY: st.sampled_from(["2026-07-28", "2025-11-25", "", 5, None, []]),
        CLIENT_CAPABILITIES_META_KEY: CAPABILITIES | st.none(),
        CLIENT_INFO_META_KEY: INFO | st.just({"name": "a", "version": "1"}) | st.none(),
        LOG_LEVEL_META_KEY: st.sampled_from(["debug", "loud", 5, None, []]),
        "progressToken": st.sampled_from([1, "a", None, []]),
    },
)
LISTING = st.dictionaries(st.sampled_from(["cursor", "more"]), st.sampled_from(["a", "", 5, None]))
REQUEST = st.tuples(st.just("initialize"), OPENING) | st.tuples(
    st.sampled_from(["tools/list", "prompts/list", "resources/list", "resources/templates/list", "ping"]), LISTING
)
OF_MODERN = st.tuples(
    st.sampled_from(["server/discover", "tools/list", "resources/list", "ping", "initialize", "tools/call"]), LISTING
)


@given(asked=REQUEST, version=st.sampled_from(HANDSHAKE_PROTOCOL_VERSIONS))
def test_what_is_plain_is_valid(asked, version):
    method, params = asked
    if is_plain(request(method, params)):
        methods.validate_client_request(method, version, params)


@given(asked=OF_MODERN, meta=ENVELOPE)
def test_what_is_plain_without_a_session_is_valid(asked, meta):
    method, params = asked
    if is_plain(modern(method, params, meta)):
        whole = params | {"_meta": meta}
        methods.validate_client_request(method, meta[PROTOCOL_VERSION_META_KEY], whole)
        assert isinstance(classify_inbound_request({"method": method, "params": whole}), InboundModernRoute)


@pytest.mark.parametrize("method", ["server/discover", "tools/list"])
@pytest.mark.parametrize(
    ("capabilities", "more"),
    [
        ({}, {}),
        ({"roots": {}}, {LOG_LEVEL_META_KEY: "debug"}),  # of FastMCP
        ({"elicitation": {"form": {}, "url": {}}}, {CLIENT_INFO_META_KEY: {"name": "mcp", "version": "2"}}),
        ({"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]}}}, {}),
    ],
)
def test_what_clients_without_a_session_begin_with_is_plain(method, capabilities, more):
    meta = {PROTOCOL_VERSION_META_KEY: "2026-07-28", CLIENT_CAPABILITIES_META_KEY: capabilities, **more}
    assert is_plain(modern(method, {}, meta))


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/list", {}),
        ("tools/list", {"cursor": "x"}),
        ("ping", {}),
        (
            "initialize",  # of Claude Code
            {
                "protocolVersion": "2025-11-25",
                "capabilities": {"roots": {"listChanged": True}, "elicitation": {"form": {}, "url": {}}},
                "clientInfo": {
                    "name": "claude-code",
                    "title": "Claude Code",
                    "version": "2",
                    "websiteUrl": "https://x",
                },
            },
        ),
        (
            "initialize",  # of hosts that try something out
            {
                "protocolVersion": "2025-11-25",
                "capabilities": {"experimental": {"x": {"y": [1]}}},
                "clientInfo": {"name": "a", "version": "1"},
            },
        ),
        (
            "initialize",  # of the SDK
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {"sampling": {}, "roots": {}},
                "clientInfo": {"name": "mcp", "version": "0.1.0"},
            },
        ),
    ],
)
def test_what_clients_begin_with_is_plain(method, params):
    assert is_plain(request(method, params))


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("initialize", {"protocolVersion": "2025-11-25"}, INVALID_PARAMS),
        ("tools/list", {"cursor": 5}, INVALID_PARAMS),
        ("server/discover", {}, METHOD_NOT_FOUND),
    ],
)
async def test_what_is_not_is_refused_as_the_sdk_refuses_it(method, params, code):
    with pytest.raises(JsonRpcError) as refused:
        await check_request(request(method, params), "2025-11-25")
    assert refused.value.code == code


async def test_the_protocol_says_nothing_of_methods_that_it_does_not_know():
    await check_request(request("nonsense/method", {"any": "thing"}), "2025-11-25")
