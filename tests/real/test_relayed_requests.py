"""Requests on behalf of a client of the host's, to servers of the MCP SDK in processes of their own."""

import sys

import pytest
import trio
from mcp.shared.exceptions import MCPError
from mcp_types import ErrorData

from mcp_nursery.supervisor import ServerError, ServerSpec, StdioTransport
from mcp_nursery.supervisor.callbacks import Callbacks

from ..lab import PROGRAMS
from ..lab.processes import supervised

pytestmark = pytest.mark.slow

ASKING = PROGRAMS / "nursery_asking.py"
CAPABILITIES = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
NAMED = {"action": "accept", "content": {"name": "Ann"}}


async def refuse(message):
    return ErrorData(code=-32603, message="nobody is there")


def asking(era, **settings):
    return ServerSpec("asking", StdioTransport(sys.executable, ["-I", str(ASKING), f"era={era}"]), **settings)


def greet(supervisor, **options):
    return supervisor.request("asking", "tools/call", {"name": "insist", "arguments": {}}, **options)


async def test_a_question_of_a_newer_server_is_the_result():
    async with supervised(asking("new"), callbacks=Callbacks(elicit=refuse)) as supervisor:
        await supervisor.wait_connected("asking")
        call = {"name": "greet", "arguments": {}}
        asked = await supervisor.request("asking", "tools/call", call, meta=CAPABILITIES)
        assert asked.protocol_version == "2026-07-28"
        assert asked.result["resultType"] == "input_required"
        [(key, question)] = asked.result["inputRequests"].items()
        assert question["params"]["message"] == "What is your name?"
        again = call | {"inputResponses": {key: NAMED}, "requestState": asked.result["requestState"]}
        then = await supervisor.request("asking", "tools/call", again, meta=CAPABILITIES)
        [question] = then.result["inputRequests"].values()
        assert question["params"]["message"] == "How old is Ann?"


async def test_a_newer_server_is_told_what_the_client_can_do():
    async with supervised(asking("new"), callbacks=Callbacks(elicit=refuse)) as supervisor:
        await supervisor.wait_connected("asking")
        with pytest.raises(ServerError, match="did not declare the form elicitation capability"):
            await supervisor.request(
                "asking",
                "tools/call",
                {"name": "greet", "arguments": {}},
                meta={"io.modelcontextprotocol/clientCapabilities": {}},
            )


async def test_a_question_of_an_older_server_goes_to_whose_call_it_is():
    asked = []

    async def answer(key, method, params):
        asked.append((method, params["message"]))
        return NAMED

    async with supervised(asking("old"), callbacks=Callbacks(elicit=refuse)) as supervisor:
        await supervisor.wait_connected("asking")
        greeted = await greet(supervisor, on_question=answer, principal="ann")
        assert greeted.protocol_version == "2025-11-25"
        assert greeted.result["content"][0]["text"] == "hello Ann"
    assert asked == [("elicitation/create", "What is your name?")]


async def test_what_a_client_refuses_is_told_to_the_server():
    async def answer(key, method, params):
        raise MCPError(-32021, "the client cannot be asked")

    async with supervised(asking("old"), callbacks=Callbacks(elicit=refuse)) as supervisor:
        await supervisor.wait_connected("asking")
        with pytest.raises(ServerError, match="the client cannot be asked") as caught:  # as this server hands it on
            await greet(supervisor, on_question=answer)
        assert caught.value.code == -32021


async def test_a_question_while_several_have_calls_is_nobodys():
    reached, done = trio.Event(), trio.Event()

    async def slow(key, method, params):
        reached.set()
        await done.wait()
        return NAMED

    async def never(key, method, params):
        raise AssertionError("this is the other's")

    async with supervised(asking("old"), callbacks=Callbacks(elicit=refuse)) as supervisor:
        await supervisor.wait_connected("asking")
        results = {}

        async def first():
            results["ann"] = await greet(supervisor, on_question=slow, principal="ann")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await reached.wait()
            with pytest.raises(ServerError, match="calls of several clients are under way"):
                await greet(supervisor, on_question=never, principal="bob")
            done.set()
        assert results["ann"].result["content"][0]["text"] == "hello Ann"


@pytest.mark.parametrize("era", ["old", "new"])
async def test_what_is_said_of_a_request_comes_before_its_result(era):
    said = []

    async def notice(method, params):
        said.append((method, params["data"]))

    async with supervised(asking(era)) as supervisor:
        await supervisor.wait_connected("asking")
        meta = {"io.modelcontextprotocol/logLevel": "info"}
        call = {"name": "talk", "arguments": {"lines": 3}}
        await supervisor.request("asking", "tools/call", call, meta=meta, on_notice=notice)
    assert [data for _, data in said if data != "noise"] == ["line 0", "line 1", "line 2"]
    assert {method for method, _ in said} == {"notifications/message"}


async def test_any_method_reaches_the_server():
    async with supervised(asking("new")) as supervisor:
        await supervisor.wait_connected("asking")
        listed = await supervisor.request("asking", "tools/list")
        assert {tool["name"] for tool in listed.result["tools"]} >= {"greet", "insist"}
        with pytest.raises(ServerError, match="Method not found"):
            await supervisor.request("asking", "vendor/unknown", {"x": 1})
        hello = supervisor.hello("asking")
        assert "2026-07-28" in hello["supportedVersions"]
        hello.clear()
        assert supervisor.hello("asking")
