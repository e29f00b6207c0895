"""`tools/call` beside the session: what leaves equals what the session would send; what comes back is judged."""

import json
import logging
import socket
from contextlib import suppress

import orjson
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from mcp.client import ClientSession
from mcp_types import CallToolResult, DiscoverResult, Implementation, InitializeResult, TextContent, Tool

from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.endpoint import Endpoint
from mcp_nursery.actors.jsonrpc.stream_carrier import StreamCarrier
from mcp_nursery.actors.pieces import at_once
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.session.base import BadResult, InputWanted
from mcp_nursery.actors.session.requests import MOST_BLOCKS, PreparedTool, PreparedTools
from mcp_nursery.actors.session.session import client_info

from ...lab.sessions import HANDSHAKE, MODERN, discovery, greeting
from ...lab.tool_requests import params_of
from ...lab.wire_peer import Peer

STAMP = "io.modelcontextprotocol/"


class Recorder:
    """A dispatcher that keeps what the session hands it, and answers nothing of interest."""

    def __init__(self):
        self.sent = []

    async def run(self, on_request, on_notify, on_notify_intercept=None, *, task_status=trio.TASK_STATUS_IGNORED):
        task_status.started()
        await trio.sleep_forever()

    async def send_raw_request(self, method, params, opts=None):
        self.sent.append({"jsonrpc": "2.0", "id": len(self.sent) + 1, "method": method, "params": params})
        if method == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
            return {"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        return {"content": [], "resultType": "complete"}

    async def notify(self, method, params, opts=None):
        pass


def adopted(version):
    if version == MODERN:
        return DiscoverResult.model_validate(discovery())
    return InitializeResult.model_validate(greeting(version))


NAMES = ["plain", "with space", 'quo"ted', "ünï/côdé", "new\nline"]
CALLS = [
    (None, {}),
    ({}, {}),
    ({"a": 1, "b": [1.5, True, {"c": "ü"}]}, {}),
    ({"big": 2**70}, {}),
    ({"a": 1}, {"mine": {"x": 1}}),
    (None, {"progressToken": 3, "traceparent": "00-1-2-01"}),
    ({}, {f"{STAMP}protocolVersion": "1999-01-01", f"{STAMP}clientInfo": {"name": "forged"}}),
]


@pytest.mark.parametrize("version", ["2024-11-05", HANDSHAKE, MODERN])
async def test_a_frame_equals_what_the_session_would_send(version):
    recorder, endpoint = Recorder(), Endpoint(StreamCarrier(Peer()))
    async with ClientSession(dispatcher=recorder, client_info=Implementation.model_validate(client_info())) as session:
        session.adopt(adopted(version))
        await session.list_tools()
        endpoint._prepared("tools/list", recorder.sent[-1]["params"], 1, ReplySlot())
        stamp = endpoint.stamp
        for name in NAMES:
            tool = PreparedTool(Tool(name=name, input_schema={}), protocol_version=version, stamp=stamp)
            for arguments, meta in CALLS:
                await session.call_tool(name, arguments, meta=dict(meta) or None)
                wanted = recorder.sent[-1]
                frame = tool.frame(
                    wanted["id"], params_of(name, None if arguments is None else codec.encode(arguments)), meta
                )
                assert json.loads(frame) == wanted
                assert b"\n" not in frame
    assert bool(stamp) is (version == MODERN)


@given(
    st.text(st.characters(codec="utf-8"), min_size=1),
    st.one_of(st.none(), st.dictionaries(st.text(), st.integers() | st.text() | st.none())),
    st.dictionaries(st.text(), st.integers() | st.text()),
    st.one_of(st.integers(0), st.text()),
)
def test_a_frame_is_one_line_of_json_whatever_is_in_it(name, arguments, meta, request_id):
    stamp = {f"{STAMP}protocolVersion": MODERN}
    tool = PreparedTool(Tool(name=name, input_schema={}), protocol_version=MODERN, stamp=stamp)
    frame = tool.frame(request_id, params_of(name, None if arguments is None else codec.encode(arguments)), meta)
    message = json.loads(frame)
    params = message.pop("params")
    assert message == {"jsonrpc": "2.0", "id": request_id, "method": "tools/call"}
    assert params.pop("_meta") == {**meta, **stamp}
    assert params == ({"name": name} if arguments is None else {"name": name, "arguments": arguments})
    assert b"\n" not in frame


def test_the_callers_meta_cannot_forge_the_stamp():
    stamp = {f"{STAMP}protocolVersion": MODERN, f"{STAMP}clientInfo": {"name": "us"}, f"{STAMP}clientCapabilities": {}}
    forged = dict.fromkeys(stamp, "forged") | {"mine": 1}
    tool = PreparedTool(Tool(name="t", input_schema={}), protocol_version=MODERN, stamp=stamp)
    assert json.loads(tool.frame(1, b"{}", forged))["params"]["_meta"] == {**stamp, "mine": 1}
    assert forged[f"{STAMP}protocolVersion"] == "forged"  # and is left as it was


# results


def prepared(schema=None, version=MODERN):
    definition = Tool(name="t", input_schema={}, output_schema=schema)
    return PreparedTool(definition, protocol_version=version, stamp={})


def bad(raw, schema=None, version=MODERN):
    """The words of the refusal: one line."""
    with pytest.raises(BadResult) as caught:
        at_once(prepared(schema, version).result(raw))
    words = str(caught.value)
    assert "\n" not in words
    return words


def test_more_blocks_than_can_be_looked_at_in_time():
    """Q31: ten thousand are taken, of any more none."""
    blocks = [{"type": "text", "text": "x"}] * MOST_BLOCKS
    assert len(at_once(prepared().result({"content": blocks, "resultType": "complete"})).content) == MOST_BLOCKS
    assert bad({"content": [*blocks, blocks[0]]}) == "more than 10000 content blocks"


def test_a_good_result_is_typed():
    raw = {"content": [{"type": "text", "text": "hi"}], "_meta": {"a": 1}, "resultType": "complete"}
    result = at_once(prepared().result(raw))
    assert isinstance(result, CallToolResult)
    assert result.content == [TextContent(type="text", text="hi")]
    assert (result.meta, result.is_error) == ({"a": 1}, False)


@pytest.mark.parametrize("version", [HANDSHAKE, MODERN])
def test_a_result_needs_no_kind(version):
    assert at_once(prepared(version=version).result({"content": []})).content == []


@pytest.mark.parametrize("kind", ["complete", "input_required", "task", 5, None])
def test_before_2026_there_is_no_kind_and_the_key_is_dropped(kind):
    raw = {"content": [], "resultType": kind}
    assert at_once(prepared(version=HANDSHAKE).result(raw)).content == []
    assert "resultType" not in raw


@pytest.mark.parametrize("kind", ["task", "Complete", "", None, 5, {"a": "b"}, ["complete"], "x" * 500, "two\nlines"])
def test_an_unknown_kind_is_refused_even_with_content(kind):
    assert "unknown resultType" in bad({"content": [], "resultType": kind})


def test_a_server_that_asks_for_input_is_told_apart():
    """R9: what it asks is typed, whatever else the result holds."""
    form = {"method": "elicitation/create", "params": {"message": "who?", "requestedSchema": {}}}
    raw = {"content": [], "resultType": "input_required", "inputRequests": {"q": form}, "requestState": "s"}
    with pytest.raises(InputWanted) as caught:
        at_once(prepared(version=MODERN).result(raw))
    assert caught.value.wanted.input_requests["q"].params.message == "who?"
    assert caught.value.wanted.request_state == "s"


@pytest.mark.parametrize("more", [{}, {"inputRequests": {}}, {"inputRequests": {"q": 5}}, {"requestState": 5}])
def test_a_question_that_asks_nothing_is_refused(more):
    """R9: the protocol wants questions, or a state, or both."""
    assert "not a request for input" in bad({"resultType": "input_required", **more})


@pytest.mark.parametrize(
    ("raw", "where"),
    [
        ({}, "[all "),
        ({"content": "text"}, "['content' "),
        ({"content": [{"type": "text"}]}, "[block 1 "),
        ({"content": [{"type": "hologram"}]}, "[block 1 "),
        ({"content": [5]}, "[block 1 "),
        ({"content": [], "isError": "perhaps"}, "['isError' "),
        ({"content": [], "_meta": 5}, "['_meta' "),
    ],
)
@pytest.mark.parametrize("version", [HANDSHAKE, MODERN])
def test_malformed_content_says_where(raw, where, version):
    (block,) = at_once(prepared(version=version).result(dict(raw))).content
    assert block.text.startswith(f"{where}of this result cannot be read: ")


# output schemas

SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


def structured(value, **more):
    return {"content": [], "structuredContent": value, **more}


def test_structured_content_that_fits_passes_and_the_schema_is_compiled_once():
    tool = prepared(SUM)
    for number in (1, 2):
        assert at_once(tool.result(structured({"sum": number}))).structured_content == {"sum": number}
    compiled = tool._output_schema._validator
    with pytest.raises(BadResult):
        at_once(tool.result(structured({"sum": "three"})))
    at_once(tool.result(structured({"sum": 3})))
    assert tool._output_schema._validator is compiled is not None


@pytest.mark.parametrize("value", [{}, {"sum": "1"}, {"sum": 1.5}, [], None, "text", {"sum": "x" * 10_000}])
def test_structured_content_that_does_not_fit_is_refused(value):
    assert "does not fit the output schema" in bad(structured(value), SUM)


def test_missing_structured_content_is_refused():
    assert "no structured content" in bad({"content": []}, SUM)


@pytest.mark.parametrize("raw", [{"content": []}, structured({"sum": "no"})])
def test_an_error_result_is_not_held_to_the_schema(raw):
    assert at_once(prepared(SUM).result({**raw, "isError": True})).is_error


def test_without_a_schema_anything_structured_passes():
    assert at_once(prepared().result(structured([1, {"a": None}]))).structured_content == [1, {"a": None}]


def test_a_schema_may_refer_to_itself():
    schema = {"$defs": {"n": {"type": "integer"}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}}
    assert at_once(prepared(schema).result(structured({"a": 1})))
    assert "does not fit" in bad(structured({"a": "x"}), schema)


def test_formats_are_no_promises():
    schema = {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}}
    assert at_once(prepared(schema).result(structured({"at": "noonish"})))


@pytest.fixture
def secret(tmp_path):
    """A schema that nothing fits, in a file: were it read, the result would be refused."""
    file = tmp_path / "schema.json"
    file.write_text("false")
    return file.as_uri()


def test_a_reference_to_a_file_is_never_read(secret):
    for schema in ({"$ref": secret}, {"type": "object", "properties": {"a": {"$ref": secret}}}):
        tool = prepared(schema)
        assert at_once(tool.result(structured({"a": 1}))).structured_content == {"a": 1}
        assert "retrieving it failed" in at_once(tool._output_schema.problem())


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_reference_to_the_network_is_never_fetched(keyword, scheme, monkeypatch):
    touched = []
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0)
    with server:
        uri = f"{scheme}://127.0.0.1:{server.getsockname()[1]}/schema.json"
        for schema in (
            {keyword: uri},
            {"type": "object", "properties": {"a": {keyword: uri}}},
            {"$id": uri, keyword: "x.json"},
        ):
            at_once(prepared(schema).result(structured({"a": 1})))
        with pytest.raises(BlockingIOError):
            touched.append(server.accept())
    assert touched == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "#/nowhere"},
        {"$ref": "other.json"},
        {"$schema": "http://example.invalid/made-up"},
        {"enum": ["text", "\ud800"]},
    ],
)
def test_a_schema_that_is_none_refuses_no_result(schema, caplog):
    tool = prepared(schema)
    for raw in (structured("text"), {"content": []}):
        assert at_once(tool.result(raw)).content == []
    assert len(caplog.records) == 1


def test_judging_says_nothing_in_the_log(caplog):
    with caplog.at_level(logging.DEBUG):
        bad(structured({"password": "hunter2"}), SUM)
    assert caplog.records == []


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_any_result_is_a_result_or_a_bad_one(value):
    for raw in ({"content": value}, {"content": [value]}, structured(value), {"resultType": value}):
        with suppress(BadResult):
            assert isinstance(at_once(prepared(SUM).result(orjson.loads(json.dumps(raw)))), CallToolResult)


@pytest.mark.parametrize(("levels", "fits"), [(198, True), (199, False), (900, False)])
@pytest.mark.parametrize("where", ["structuredContent", "_meta"])
def test_a_result_that_is_nested_too_deep_is_a_bad_one(where, levels, fits):
    """It could be neither rendered nor written out by its caller."""
    value = {}
    for _ in range(levels):
        value = {"a": value}
    prepared = PreparedTool(Tool(name="t", input_schema={}), protocol_version=HANDSHAKE, stamp={})
    raw = {"content": [], where: value}
    if fits:
        at_once(prepared.result(raw)).model_dump_json()
    else:
        with pytest.raises(BadResult, match="nested deeper than 200 levels"):
            at_once(prepared.result(raw))


def test_a_tool_is_prepared_once_and_only_when_it_is_called(monkeypatch):
    """A list of ten thousand leaves ten thousand objects fewer to the garbage collector."""
    made = []
    monkeypatch.setattr(PreparedTool, "__init__", lambda self, definition, **_: made.append(definition.name))
    listed = [Tool(name=f"tool_{at}", input_schema={"type": "object"}) for at in range(100)]
    tools = PreparedTools(listed, protocol_version=MODERN, stamp={})
    assert made == []
    assert tools.get("tool_7") is tools.get("tool_7") is not None
    assert tools.get("tool_100") is None
    assert made == ["tool_7"]
