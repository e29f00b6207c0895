"""What a server may answer, and what a caller makes of it."""

import json
import math
import re
from collections import UserDict
from functools import partial

import pytest
import trio
from attrs import frozen
from mcp_types import CallToolResult
from pydantic import BaseModel

from mcp_nursery.actors.errors import InvalidArguments, InvalidResult, ServerError, UnknownTool
from mcp_nursery.supervisor import Approval, Call, ServerSpec, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.testing import Refusal, ScriptedServer

from ...lab.callers import TEXT, Peer, S
from ...lab.specs import spec


async def test_a_json_rpc_error(autojump_clock):
    """R2: an answer, and no result: code, words and data as sent."""
    error = {"code": -32602, "message": "bad\narguments", "data": {"field": "n"}}
    peer = Peer(lambda peer, message: peer.send(id=message["id"], error=error))
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        with pytest.raises(ServerError) as caught:
            await supervisor.call_tool("mcp_peer_work", {"n": 1})
        assert (caught.value.code, caught.value.message, caught.value.data) == (
            -32602,
            "bad\narguments",
            {"field": "n"},
        )
        assert (caught.value.delivery, caught.value.incarnation) == ("answered", 1)
        assert str(caught.value) == "peer: work: error -32602: bad arguments"
        assert supervisor.status()[0].calls.failed == 1


async def test_a_result_that_is_none(autojump_clock):
    """R2: `InvalidResult`: the server answered, so it is never sent again."""
    peer = Peer(lambda peer, message: peer.answer(message, {"content": [TEXT["content"][0]] * 10_001}))
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        with pytest.raises(InvalidResult) as caught:
            await supervisor.call_tool("mcp_peer_work", resend="always")
        assert (caught.value.delivery, caught.value.server, caught.value.tool) == ("answered", "peer", "work")
        assert [message["method"] for message in peer.received].count("tools/call") == 1
        assert supervisor.status()[0].state is S.CONNECTED


SAID = TEXT["content"]
HOLOGRAM = {"type": "hologram", "data": "x" * 2000}
BESIDE = f"[block 2 of this result cannot be read: {json.dumps(HOLOGRAM)[:1000]}…]"
HALF_READ = [
    ({}, "[all of this result cannot be read: {}]", False),
    ({"isError": True}, '[all of this result cannot be read: {"isError": true}]', True),
    ({"structuredContent": {"n": 1}}, '{"n": 1}', False),
    (
        {"content": None, "structuredContent": {"n": 1}},
        '{"n": 1}',
        False,
    ),
    ({"content": "text"}, "['content' of this result cannot be read: \"text\"]", False),
    ({"content": [*SAID, HOLOGRAM]}, f"done\n{BESIDE}", False),
    ({"content": [5, *SAID]}, "[block 1 of this result cannot be read: 5]\ndone", False),
    (
        {"content": [{**SAID[0], "annotations": 5}]},
        'done\n[a part of block 1 of this result cannot be read: {"type": "text", "annotations": 5}]',
        False,
    ),
    ({"isError": None, "content": SAID}, "done", False),
    ({"isError": "maybe", "_meta": 5, "content": SAID}, "done", True),
    ({"content": [*SAID * 600, HOLOGRAM]}, "done\n" * 600 + BESIDE.replace("2", "601", 1), False),
]
"""Results, the text of what can be read and of what cannot, and whether they are errors."""


@pytest.mark.parametrize(("result", "text", "is_error"), HALF_READ)
async def test_what_can_be_read_of_a_result_is_given(autojump_clock, result, text, is_error):
    """The tool has run: its answer is not lost for its shape."""
    peer = Peer(lambda peer, message: peer.answer(message, result))
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        given = await supervisor.call_tool("mcp_peer_work")
    assert (given.full_text.split("\n['")[0] if "_meta" in result else given.full_text) == text
    assert given.is_error is is_error
    assert ("'_meta' of this result cannot be read: 5" in given.full_text) is ("_meta" in result)


@pytest.mark.parametrize("modern", [True, False], ids=["newer client", "older client"])
@pytest.mark.parametrize("result", [each for each, *_ in HALF_READ])
async def test_a_client_of_the_gateway_can_read_it_too(autojump_clock, result, modern):
    """But for a block of an unknown type, which is theirs to know."""
    peer = Peer(lambda peer, message: peer.answer(message, result))
    async with open_supervisor([ServerSpec("peer", peer)], callbacks=gateway_callbacks()) as supervisor:
        await supervisor.list_tools()
        own = await supervisor.call_tool("mcp_peer_work")
        async with open_gateway(supervisor) as gateway:
            said = await called(gateway, "mcp_peer_work", modern=modern)
    if HOLOGRAM in list(result.get("content") or ()):
        assert said["content"] == result["content"]
    else:
        read = CallToolResult.model_validate(said, by_name=False)
        assert (read.content, read.is_error) == (own.content, own.is_error)


async def called(gateway, tool, *, modern, arguments=None):
    """The answer to a call of a client of the gateway."""
    envelope = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{key}": value for key, value in envelope.items()} if modern else {}
    async with trio.open_nursery() as nursery:
        session = None if modern else ClientSession(print, nursery, None)
        request = ClientRequest(
            1, "tools/call", {"name": tool, "arguments": arguments}, meta, None, principal="ann", session=session
        )
        return await gateway.answer(request, gateway.view(None), "2026-07-28" if modern else "2025-11-25")


@pytest.mark.parametrize(
    ("schema", "structured", "problem"),
    [
        ({"type": "object", "required": ["n"]}, {"n": 1}, None),
        ({"type": "object", "required": ["n"]}, {"m": 1}, "does not fit"),
        ({"type": "object"}, None, "returned no structured content"),
    ],
)
async def test_the_output_schema(autojump_clock, schema, structured, problem):
    """T19: what the tool promises is checked; nothing is fetched for it."""
    result = dict(TEXT) if structured is None else {**TEXT, "structuredContent": structured}
    peer = Peer(lambda peer, message: peer.answer(message, result))
    peer.tools[0]["outputSchema"] = schema
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        if problem is None:
            assert (await supervisor.call_tool("mcp_peer_work")).structured == structured
        else:
            with pytest.raises(InvalidResult, match=problem):
                await supervisor.call_tool("mcp_peer_work")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$ref": "http://example.com/schema"}, "not fetched"),
        ({"$ref": "file:///etc/passwd"}, "not fetched"),
        ({"properties": {"n": {"$ref": "#/$defs/missing"}}}, "does not exist"),
        ({"$schema": "http://example.com/own"}, "Unknown meta-schema"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "Unknown meta-schema"),
        ({"properties": {"n": {"type": "string", "required": True}}}, "at /properties/n/required: true is not"),
        ({"properties": {"n": {"minimum": 0, "exclusiveMinimum": True}}}, "exclusiveMinimum: true is not"),
        ({"properties": {"n": {"type": "array", "items": None}}}, "null is not"),
        ({"properties": {"n": {"type": "strnig"}}}, "strnig"),
    ],
)
@pytest.mark.parametrize("structured", [{"n": 5}, None])
async def test_an_output_schema_that_cannot_be_compiled_is_none(autojump_clock, caplog, schema, why, structured):
    """T19: the tool has run: its answer is not lost for its definition."""
    result = dict(TEXT) if structured is None else {**TEXT, "structuredContent": structured}
    peer = Peer(lambda peer, message: peer.answer(message, result))
    peer.tools[0]["outputSchema"] = {"type": "object", **schema}
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        for _ in range(2):
            assert (await supervisor.call_tool("mcp_peer_work")).structured == structured
        assert supervisor.statistics().by_server["peer"].unchecked == 2
        (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
        assert re.search(
            f"output schema of the tool 'work' counts as not declared: it cannot be compiled.*{why}",
            record.getMessage(),
        )
        assert why in str(supervisor.tool("mcp_peer_work").output_schema_problem)


async def test_the_problem_of_an_output_schema_is_seen_on_its_tool(autojump_clock):
    peer = Peer(lambda peer, message: None, tools=["plain", "sound", "complex"])
    peer.tools[1]["outputSchema"] = {"type": "object"}
    peer.tools[2]["outputSchema"] = {"type": "object", "properties": {"n": {"pattern": "(?=a)b"}}}
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        problems = {tool.tool: tool.output_schema_problem for tool in supervisor.tools}
    assert problems == {"plain": None, "sound": None, "complex": "it is too complex"}


async def test_results_that_are_taken_unchecked_are_counted(autojump_clock):
    """A pattern of 1 MB took 7 s to compile, in which nobody else had a turn."""
    result = {**TEXT, "structuredContent": {"n": 5}}
    peer = Peer(lambda peer, message: peer.answer(message, result))
    peer.tools[0]["outputSchema"] = {"type": "object", "properties": {"n": {"pattern": "a?" * 500_000}}}
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        for _ in range(2):
            assert (await supervisor.call_tool("mcp_peer_work")).structured == {"n": 5}
        assert supervisor.statistics().by_server["peer"].unchecked == 2


async def test_what_is_sent(autojump_clock):
    """T15: arguments and `_meta` as given; none where there are none."""
    peer = Peer(lambda peer, message: peer.answer(message, dict(TEXT)))
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        await supervisor.call_tool("mcp_peer_work")
        await supervisor.call_tool("mcp_peer_work", {"a": [1, None, "é", 2**70]}, meta={"mine": 1})
    first, second = (message["params"] for message in peer.received[-2:])
    assert first == {"name": "work"}
    assert (second["arguments"], second["_meta"]) == ({"a": [1, None, "é", 2**70]}, {"mine": 1})


@pytest.mark.parametrize("arguments", [[1], "text", 5, {"f": object()}, {"f": {1, 2}.__iter__}])
async def test_arguments_that_are_no_object(autojump_clock, arguments):
    """T15: a clear error before anything is sent."""
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        with pytest.raises(InvalidArguments, match="arguments"):
            await supervisor.call_tool("mcp_lab_echo", arguments)
        assert server.calls == []


NAN, INF = math.nan, math.inf


@frozen
class Point:
    x: float


class Reading(BaseModel):
    at: float


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"a": NAN}, "NaN"),
        ({"a": [None, {"b": (1, -INF)}]}, "-Infinity"),
        ({"a": {1.5, INF}}, "Infinity"),
        ({"a": Reading(at=NAN)}, "NaN"),
        ({NAN: 1}, "NaN"),
        ({"a": [{INF: 1}]}, "Infinity"),
        ({"a": 2**70, NAN: 1}, "NaN"),
        (UserDict({"a": {"b": NAN}}), "NaN"),
    ],
)
async def test_numbers_that_json_has_not_are_refused(autojump_clock, arguments, named):
    """A server got null in their place, after somebody had agreed to infinity."""
    server, asked = ScriptedServer(), []

    async def approve(request):
        asked.append(request)
        return Approval.ALLOW

    async with open_supervisor([spec(server)], gate=10, approve=approve) as supervisor:
        problem = f"cannot be sent as JSON: {named} is no JSON number"
        for call in (partial(supervisor.call_tool, "mcp_lab_echo"), supervisor.tool("mcp_lab_echo")):
            with pytest.raises(InvalidArguments, match=problem):
                await call(arguments)
        assert problem in str(await supervisor.gather([Call("mcp_lab_echo", arguments)]))
        assert problem in (await supervisor.as_toolset().run("mcp_lab_echo", arguments)).text
        assert await supervisor.call_tool("mcp_lab_echo", {"a": None, "NaN": "Infinity", "b": [None]})
    assert asked == []
    assert len(server.calls) == 1


@pytest.mark.parametrize("rules", [None, ApprovalRules(allowed=["*"])])
async def test_a_client_of_the_gateway_is_refused_them_too(autojump_clock, rules):
    """A gateway passed on null for 1e999."""
    server, asked = ScriptedServer(), []

    async def approve(request):
        asked.append(request)
        return Approval.ALLOW

    host = {"approve": approve, "approval_rules": rules, "callbacks": gateway_callbacks()}
    async with open_supervisor([spec(server)], gate=10, **host) as supervisor, open_gateway(supervisor) as gateway:
        said = await called(gateway, "mcp_lab_echo", modern=True, arguments={"a": [INF]})
    assert said["isError"]
    assert "cannot be sent as JSON: Infinity is no JSON number" in said["content"][0]["text"]
    assert (asked, server.calls) == ([], [])


async def test_what_is_agreed_to_is_what_is_sent(autojump_clock):
    """Whoever has the arguments, too, may change them while somebody looks at them."""
    given = {"paths": ["a"], "at": Reading(at=1), "by": {5: (1, 2)}}
    server, asked = ScriptedServer(), []

    async def approve(request):
        asked.append(json.loads(json.dumps(request.arguments)))
        request.arguments["paths"].append("b")
        given["paths"].append("c")
        await trio.sleep(1)
        return Approval.ALLOW

    async with open_supervisor([spec(server)], gate=10, approve=approve) as supervisor:
        await supervisor.tool("mcp_lab_echo")(given)
    assert (
        asked
        == [arguments for *_, arguments in server.calls]
        == [{"paths": ["a"], "at": {"at": 1}, "by": {"5": [1, 2]}}]
    )


@pytest.mark.parametrize("name", [None, 5, [], b"mcp_lab_echo", {}])
@pytest.mark.parametrize("where", [None, "lab"])
async def test_a_name_that_is_no_text(autojump_clock, name, where):
    async with open_supervisor([spec(ScriptedServer())]) as supervisor:
        with pytest.raises(UnknownTool, match=re.escape(repr(name))):
            await supervisor.call_tool(name, server=where)


@pytest.mark.parametrize(
    ("message", "data", "kept", "given"),
    [
        ("x" * 100_000, {"a": ["y" * 99_000]}, "x" * 100_000, {"a": ["y" * 99_000]}),
        ("x" * 10**6, "y" * 10**6, "x" * 90_000 + "… (1000000 characters)", "<more than 100000 characters>"),
        ("", [[]] * 10**5, "", "<more than 100000 characters>"),
        ("", {"k" * 10**5: 1}, "", "<more than 100000 characters>"),
    ],
)
async def test_an_error_without_end_is_cut(autojump_clock, message, data, kept, given):
    """T9: to look for secrets in all that a server sends would hold up everybody else."""

    async def refuse(_arguments):
        raise Refusal(-1, message, data)

    async with open_supervisor([ServerSpec("lab", ScriptedServer(tools={"t": refuse}).transport)]) as supervisor:
        with pytest.raises(ServerError) as caught:
            await supervisor.call_tool("mcp_lab_t")
    assert (caught.value.message, caught.value.data) == (kept, given)


async def test_a_secret_that_is_cut_apart_does_not_get_through(autojump_clock):
    """T9."""
    key = "ghp_Zx9Cv8Bn7Mq6We5Rt4Yu3Io2Pa1Sd0Fg9Hj8"

    async def refuse(_arguments):
        whole = f"{key} " * 1000  # what is taken out is shorter than what was there
        raise Refusal(-1, whole + " " * (100_000 - 10 - len(whole)) + key)

    async with open_supervisor([ServerSpec("lab", ScriptedServer(tools={"t": refuse}).transport)]) as supervisor:
        with pytest.raises(ServerError) as caught:
            await supervisor.call_tool("mcp_lab_t")
    assert "ghp_" not in caught.value.message


async def test_what_waits_is_in_the_figures_by_its_kind(autojump_clock):
    """By what it keeps: 12 kB of empty lists keep 20 times as much as they take on the wire."""
    lists = [[]] * 4_000

    async def think(message):
        await trio.sleep_forever()

    def ask(peer, message):
        for number in range(3):
            params = {"messages": [], "maxTokens": 1, "metadata": {"lists": lists}}
            peer.send(id=f"q{number}", method="sampling/createMessage", params=params)

    peer = Peer(ask)
    async with (
        open_supervisor([ServerSpec("peer", peer)], callbacks=Callbacks(sample=think)) as supervisor,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(supervisor.call_tool, "mcp_peer_work")
        await trio.sleep(1)
        kept = supervisor.statistics().by_server["peer"].kept
        assert kept.keys() == {"questions"}
        assert 3 * 64 * 4_000 < kept["questions"] < 4 * 64 * 4_000
        nursery.cancel_scope.cancel()
    assert supervisor.statistics().by_server["peer"].kept == {}
