"""What is seen to be right without the SDK is right by the SDK's models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import InboundModernRoute, classify_inbound_request
from mcp_types import methods
from pydantic import ValidationError

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


TASKS = {"list": {}, "cancel": {}, "requests": {"sampling": {"createMessage": {}}, "elicitation": {"create": {}}}}
OBJECT = st.sampled_from(
    [{}, {"form": {}}, {"form": {}, "url": {}}, {"listChanged": True}, {"listChanged": 1}, TASKS, {"list": 5}, 5, None]
)
INFO = st.dictionaries(
    st.sampled_from(["name", "version", "title", "websiteUrl", "icons", "description"]),
    st.sampled_from(["a", "", 5, None, []]),
)
TOKEN = st.sampled_from([1, 1 << 70, "a", "", True, 1.5, None, []])
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
        "progressToken": TOKEN,
        "progress_token": TOKEN,
        "traceparent": OBJECT,
    },
)
META = st.fixed_dictionaries({}, optional={"progressToken": TOKEN, "progress_token": TOKEN, "a/b": OBJECT})
LISTING = st.dictionaries(st.sampled_from(["cursor", "more"]), st.sampled_from(["a", "", 5, None]))
VALUE = st.sampled_from(["a", "", "\u00e9", 5, 1 << 70, 1.5, True, None, [], {}])
REFERENCE = st.fixed_dictionaries(
    {"type": st.sampled_from(["ref/prompt", "ref/resource", "ref/tool", 5])},
    optional={"name": VALUE, "uri": VALUE, "title": VALUE},
)
ARGUMENTS = st.dictionaries(st.sampled_from(["name", "value", "more"]), VALUE)
ABOUT_ONE = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("name", "uri", "requestState", "task", "inputResponses"), VALUE),
        "arguments": ARGUMENTS | VALUE,
        "level": st.sampled_from(["debug", "loud", 5, None]),
        "ref": REFERENCE | VALUE,
        "argument": ARGUMENTS | VALUE,
        "context": OBJECT,
        "notifications": st.dictionaries(
            st.sampled_from(["toolsListChanged", "resourceSubscriptions", "taskIds", "more"]),
            st.sampled_from([True, 1, None, ["a"], [5], "a"]),
        )
        | VALUE,
    },
)
LISTS = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"]
OTHERS = ["tools/call", "prompts/get", "resources/read", "completion/complete", "subscriptions/listen"]
OF_SESSIONS = ["logging/setLevel", "resources/subscribe", "resources/unsubscribe"]
REQUEST = (
    st.tuples(st.just("initialize"), OPENING)
    | st.tuples(st.sampled_from([*LISTS, "ping"]), LISTING)
    | st.tuples(st.sampled_from([*OTHERS, *OF_SESSIONS]), ABOUT_ONE)
)
OF_MODERN = st.tuples(st.sampled_from(["server/discover", *LISTS, "ping", "initialize"]), LISTING) | st.tuples(
    st.sampled_from([*OTHERS, *OF_SESSIONS]), ABOUT_ONE
)


@given(asked=REQUEST, meta=META, version=st.sampled_from(HANDSHAKE_PROTOCOL_VERSIONS))
def test_what_is_plain_is_valid(asked, meta, version):
    method, params = asked
    if is_plain(request(method, params, meta)):
        methods.validate_client_request(method, version, params | {"_meta": meta})


@given(asked=OF_MODERN, meta=ENVELOPE)
def test_what_is_plain_without_a_session_is_valid(asked, meta):
    method, params = asked
    if is_plain(modern(method, params, meta)):
        whole = params | {"_meta": meta}
        methods.validate_client_request(method, meta[PROTOCOL_VERSION_META_KEY], whole)
        assert isinstance(classify_inbound_request({"method": method, "params": whole}), InboundModernRoute)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("server/discover", {}),
        ("tools/list", {}),
        ("subscriptions/listen", {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["note://a"]}}),
    ],
)
@pytest.mark.parametrize(
    ("capabilities", "more"),
    [
        ({}, {}),
        ({"roots": {}}, {LOG_LEVEL_META_KEY: "debug"}),  # of FastMCP
        ({"elicitation": {"form": {}, "url": {}}}, {CLIENT_INFO_META_KEY: {"name": "mcp", "version": "2"}}),
        ({"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]}}}, {}),
    ],
)
def test_what_clients_without_a_session_begin_with_is_plain(method, params, capabilities, more):
    meta = {PROTOCOL_VERSION_META_KEY: "2026-07-28", CLIENT_CAPABILITIES_META_KEY: capabilities, **more}
    assert is_plain(modern(method, params, meta))


OF_CALLS = [
    ("tools/call", {"name": "echo"}),
    ("tools/call", {"name": "echo", "arguments": {"text": "x", "deep": [{"a": 1.5}]}}),
    ("prompts/get", {"name": "summarise", "arguments": {"topic": "x"}}),
    ("resources/read", {"uri": "note://today"}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "summarise"}, "argument": {"name": "topic", "value": "x"}},
    ),
    (
        "completion/complete",
        {"ref": {"type": "ref/resource", "uri": "note://day/{day}"}, "argument": {"name": "day", "value": ""}},
    ),
]


@pytest.mark.parametrize(("method", "params"), OF_CALLS)
def test_what_clients_ask_most_is_plain(method, params):
    """With a token for progress, which most hosts send with each call."""
    token = {"progressToken": 7}
    envelope = {PROTOCOL_VERSION_META_KEY: "2026-07-28", CLIENT_CAPABILITIES_META_KEY: {}, "traceparent": "00-1-2-01"}
    assert is_plain(request(method, params))
    assert is_plain(request(method, params, token | {"claudecode/toolUseId": "x"}))
    assert is_plain(modern(method, params, envelope | token))


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("logging/setLevel", {"level": "info"}),
        ("resources/subscribe", {"uri": "note://today"}),
        ("resources/unsubscribe", {"uri": "note://today"}),
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
            "initialize",  # of those that can be asked by tasks
            {
                "protocolVersion": "2025-11-25",
                "capabilities": {"sampling": {"tools": {}}, "tasks": TASKS},
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


ABOUT = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "a", "version": "1"}}


@pytest.mark.parametrize(
    ("method", "params", "meta"),
    [
        ("tools/call", {"name": 5}, {}),
        ("tools/call", {"arguments": {}}, {}),
        ("tools/call", {"name": "a", "arguments": []}, {}),
        *(("tools/call", {"name": "a"}, {"progressToken": token}) for token in (1.5, [])),
        ("prompts/get", {"name": "a", "arguments": {"b": 5}}, {}),
        ("resources/read", {"uri": 5}, {}),
        ("resources/subscribe", {}, {}),
        ("logging/setLevel", {"level": "loud"}, {}),
        ("completion/complete", {"ref": {"type": "ref/tool", "name": "a"}, "argument": {"name": "a", "value": ""}}, {}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "uri": "a"}, "argument": {"name": "a", "value": ""}},
            {},
        ),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "a"}, "argument": {"name": "a", "value": 5}},
            {},
        ),
        ("initialize", ABOUT | {"capabilities": {"elicitation": {"form": 5}}}, {}),
        ("initialize", ABOUT | {"capabilities": {"tasks": {"requests": {"sampling": {"createMessage": 5}}}}}, {}),
        ("initialize", ABOUT | {"capabilities": {"roots": {"listChanged": {}}}}, {}),
    ],
)
def test_what_the_sdk_refuses_is_not_plain(method, params, meta):
    with pytest.raises(ValidationError):
        methods.validate_client_request(method, "2025-11-25", params | {"_meta": meta})
    assert not is_plain(request(method, params, meta))


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "a", "requestState": 5}),
        ("resources/read", {"uri": "a", "inputResponses": 5}),
        ("subscriptions/listen", {"notifications": []}),
        ("subscriptions/listen", {"notifications": {"toolsListChanged": "maybe"}}),
        ("subscriptions/listen", {"notifications": {"toolsListChanged": ["a"]}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": [5]}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": "a"}}),
    ],
)
def test_what_the_sdk_refuses_without_a_session_is_not_plain(method, params):
    meta = {PROTOCOL_VERSION_META_KEY: "2026-07-28", CLIENT_CAPABILITIES_META_KEY: {}}
    with pytest.raises(ValidationError):
        methods.validate_client_request(method, "2026-07-28", params | {"_meta": meta})
    assert not is_plain(modern(method, params, meta))


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
