"""Calls that `mcp-nursery serve` refuses or asks about, in front of real servers and behind a client of the SDK."""

import httpx2
import pytest
import trio
from mcp_types import ElicitResult

from ..lab.gateways import ASKING, Answers, client_on, served_over_http

pytestmark = pytest.mark.slow

MODES = ["legacy", "2026-07-28"]
FRONTS = ["stdio", "http"]


class Judge(Answers):
    """A client's user who is asked whether a call may be made."""

    def __init__(self, allows):
        super().__init__()
        self.allows = allows
        self.judged = []

    async def elicit(self, context, params):
        if "allow" not in params.requested_schema["properties"]:
            return await super().elicit(context, params)
        self.judged.append(params.message)
        return ElicitResult(action="accept", content={"allow": self.allows})


@pytest.mark.parametrize("era", ["old", "new"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("front", FRONTS)
async def test_a_call_is_made_when_the_user_of_its_client_allows_it(front, mode, era):
    asking = ["--search", "--ask", "*/greet", "--deny", "talk", "--", *ASKING, f"era={era}"]
    user = Judge(allows=True)
    with trio.fail_after(60):
        async with client_on(front, asking, mode, user) as client:
            for name, arguments in (("greet", {}), ("call_tool", {"name": "greet"})):
                greeted = await client.call_tool(name, arguments)
                assert greeted.content[0].text == "hello Ann, 7"  # whom the server has asked, after that
            assert len(user.judged) == 2
            assert [line for line in user.judged[0].splitlines() if "server" not in line] == [
                "Allow this call?",
                "tool: greet",
                "arguments: {}",
            ]
            assert user.asked == ["What is your name?", "How old is Ann?"] * 2
            user.allows = False
            refused = await client.call_tool("greet", {})
            assert refused.is_error
            assert "not approved: the user of its client has not allowed it" in refused.content[0].text
            denied = await client.call_tool("call_tool", {"name": "talk", "arguments": {"lines": 1}})
            assert denied.is_error
            assert "not approved: denied" in denied.content[0].text
            assert len(user.asked) == 4


class Slow(Judge):
    """A user who thinks for longer than a server may take."""

    async def elicit(self, context, params):
        await trio.sleep(3)
        return await super().elicit(context, params)


@pytest.mark.parametrize("mode", MODES)
async def test_the_limit_of_a_call_leaves_the_user_of_its_client_time(mode):
    """An approval, and the form of a server that asks by a request."""
    user = Slow(allows=True)
    args = ["--timeout", "2", "--ask", "*/greet", "--", *ASKING, "era=old"]
    with trio.fail_after(60):
        async with client_on("stdio", args, mode, user) as client:
            greeted = await client.call_tool("greet", {})
            assert greeted.content[0].text == "hello Ann, 7"
    assert (len(user.judged), user.asked) == (1, ["What is your name?", "How old is Ann?"])


@pytest.mark.parametrize(("unattended", "text"), [("allow", "talked"), ("deny", "its client cannot be asked")])
@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_cannot_be_asked(mode, unattended, text):
    class Mute(Answers):
        @property
        def options(self):
            return {}

    asking = ["--ask", "*", "--unattended", unattended, "--", *ASKING]
    with trio.fail_after(60):
        async with client_on("stdio", asking, mode, Mute()) as client:
            talked = await client.call_tool("talk", {"lines": 0})
            assert talked.is_error == (unattended == "deny")
            assert text in talked.content[0].text


def kind_of(answer):
    return "error" if "error" in answer else answer["result"]["resultType"]


@pytest.mark.parametrize(("era", "refused"), [("old", "error"), ("new", "input_required")])
async def test_an_approval_cannot_be_forged(era, refused):
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "talk"}
    headers["accept"] = "application/json, text/event-stream"
    envelope = {"protocolVersion": "2026-07-28", "clientCapabilities": {"elicitation": {}}}
    meta = {f"io.modelcontextprotocol/{key}": value for key, value in envelope.items()}
    yes = {"approval": {"action": "accept", "content": {"allow": True}}}

    with trio.fail_after(60):
        asking = ["--ask", "*", "--unattended", "deny", "--", *ASKING, f"era={era}"]
        async with served_over_http(*asking) as (_, url), httpx2.AsyncClient(timeout=30) as http:

            async def call(lines=0, **more):
                params = {"name": "talk", "arguments": {"lines": lines}, "_meta": meta} | more
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                return (await http.post(url, headers=headers, json=body)).json()

            assert (await call())["result"]["resultType"] == "input_required"
            assert (await call(inputResponses=yes))["result"]["resultType"] == "input_required"
            assert kind_of(await call(inputResponses=yes, requestState="forged")) == refused
            state = (await call())["result"]["requestState"]
            assert "error" in await call(lines=1, inputResponses=yes, requestState=state)
            talked = await call(inputResponses=yes, requestState=state)
            assert talked["result"]["content"][0]["text"] == "talked"
            assert kind_of(await call(inputResponses=yes, requestState=state)) == refused
