"""What a server may answer, and what a caller makes of it."""

import re

import pytest
import trio

from mcp_nursery.actors.errors import InvalidArguments, InvalidResult, ServerError, UnknownTool
from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks
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


@pytest.mark.parametrize(
    "result",
    [
        {"content": "text"},
        {"content": [{"type": "text"}]},
        {"content": [{"type": "hologram"}]},
        {"isError": "maybe", **TEXT},
    ],
)
async def test_a_result_that_is_none(autojump_clock, result):
    """R2: `InvalidResult`: the server answered, so it is never sent again."""
    peer = Peer(lambda peer, message: peer.answer(message, result))
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        with pytest.raises(InvalidResult) as caught:
            await supervisor.call_tool("mcp_peer_work", resend="always")
        assert (caught.value.delivery, caught.value.server, caught.value.tool) == ("answered", "peer", "work")
        assert [message["method"] for message in peer.received].count("tools/call") == 1
        assert supervisor.status()[0].state is S.CONNECTED


@pytest.mark.parametrize(
    ("schema", "structured", "problem"),
    [
        ({"type": "object", "required": ["n"]}, {"n": 1}, None),
        ({"type": "object", "required": ["n"]}, {"m": 1}, "does not fit"),
        ({"type": "object"}, None, "returned no structured content"),
        ({"type": "object", "$ref": "http://example.com/schema"}, {"n": 1}, "does not fit|not fetched"),
        ({"type": "object", "$ref": "file:///etc/passwd"}, {"n": 1}, "does not fit|not fetched"),
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
