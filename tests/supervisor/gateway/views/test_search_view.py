"""What a client of the gateway sees that has two tools in place of all. Virtual time."""

import json
from functools import partial

import pytest
import trio

from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.gateway import Access, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.testing import ScriptedServer

from ....lab.gateway_clients import as_read
from ....lab.specs import nothing, spec

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def echo(arguments):
    await trio.lowlevel.checkpoint()
    return json.dumps(arguments)


def server(**more):
    return ScriptedServer(tools={"send_mail": echo, "read_mail": echo}, declared={"send_mail": {"inputSchema": NUMBER}})


async def unheard(method, params):
    raise AssertionError


async def asked(gateway, method, params=None, *, server=None, nursery=None):
    session = None if nursery is None else ClientSession(print, nursery, server)
    incoming = ClientRequest(1, method, params or {}, {}, unheard, principal="a client", session=session)
    version = "2025-11-25"
    return as_read(await gateway.answer(incoming, gateway.view(server), version))


async def called(gateway, name, arguments=None, **more):
    result = await asked(gateway, "tools/call", {"name": name, "arguments": arguments or {}}, **more)
    return result.get("isError", False), result["content"][0]["text"]


async def test_two_tools_find_and_call_all_others(autojump_clock):
    script = server()
    async with (
        open_supervisor([spec(script)], gate=10, template="{server}_{tool}") as supervisor,
        open_gateway(supervisor, search=True) as gateway,
    ):
        for view, prefix in ((None, "lab_"), ("lab", "")):
            listed = (await asked(gateway, "tools/list", server=view))["tools"]
            assert [tool["name"] for tool in listed] == ["call_tool", "find_tools"]
            assert listed[1]["description"].endswith("The servers: lab")
            _, found = await called(gateway, "find_tools", {"query": "send mail", "limit": 1}, server=view)
            tool = json.loads(found)
            assert (tool["name"], tool["input_schema"]) == (f"{prefix}send_mail", NUMBER)
            wish = {"name": tool["name"], "arguments": {"n": 1}}
            assert await called(gateway, "call_tool", wish, server=view) == (False, '{"n": 1}')
            assert await called(gateway, tool["name"], {"n": 1}, server=view) == (False, '{"n": 1}')
            assert await called(gateway, "call_tool", {"name": f"{prefix}read_mail"}, server=view) == (False, "{}")
            failed, text = await called(gateway, "call_tool", {"name": f"{prefix}send_mial"}, server=view)
            assert failed
            assert f"did you mean '{prefix}send_mail'" in text
    assert [call for call in script.calls if call[1] == "send_mail"] == [(1, "send_mail", {"n": 1})] * 4


async def test_names_of_arguments_that_a_model_was_shown_are_the_servers_own_again(autojump_clock):
    """T19: an API refuses names such as `$n`; they are checked, asked about and sent as the server declares them."""
    schema = {"type": "object", "properties": {"$n": {"type": "integer"}}, "required": ["$n"]}
    script = ScriptedServer(tools={"send": echo}, declared={"send": {"inputSchema": schema}})
    async with open_supervisor([spec(script)], gate=10) as supervisor, open_gateway(supervisor, search=True) as gateway:
        _, found = await called(gateway, "find_tools", {"query": "send"})
        assert list(json.loads(found)["input_schema"]["properties"]) == ["_n"]
        wish = {"name": "mcp_lab_send", "arguments": {"_n": 1}}
        assert await called(gateway, "call_tool", wish) == (False, '{"$n": 1}')


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, '"n" is a required property'),
        ({"n": "one"}, 'at /n: "one" is not of type "integer"'),
    ],
)
async def test_arguments_that_do_not_fit_are_not_sent(autojump_clock, given, problem):
    script = server()
    async with open_supervisor([spec(script)], gate=10) as supervisor, open_gateway(supervisor, search=True) as gateway:
        failed, text = await called(gateway, "call_tool", {"name": "mcp_lab_send_mail", "arguments": given})
        assert failed
        assert problem in text
        assert "find_tools shows what send_mail takes" in text
    assert script.calls == []


@pytest.mark.parametrize(
    ("tool", "given", "problem"),
    [
        ("call_tool", {"arguments": {}}, "name must be a text"),
        ("call_tool", {"name": "mcp_lab_read_mail", "arguments": {}, "server": "lab"}, "there is no 'server'"),
        ("find_tools", {"query": " "}, "query must be a text"),
        ("find_tools", {"query": "mail", "limit": 0}, "limit must be an integer from 1 to 20"),
    ],
)
async def test_wishes_that_say_too_little_or_too_much(autojump_clock, tool, given, problem):
    async with (
        open_supervisor([spec(server())], gate=10) as supervisor,
        open_gateway(supervisor, search=True) as gateway,
    ):
        failed, text = await called(gateway, tool, given)
        assert failed
        assert problem in text


async def test_a_schema_that_cannot_be_used_is_left_to_the_server(autojump_clock):
    script = ScriptedServer(
        tools={"send": echo}, declared={"send": {"inputSchema": {"type": "object", "$ref": "#/no"}}}
    )
    async with open_supervisor([spec(script)], gate=10) as supervisor, open_gateway(supervisor, search=True) as gateway:
        assert await called(gateway, "call_tool", {"name": "mcp_lab_send"}) == (False, "{}")


async def test_tools_that_come_and_go_are_no_change_of_the_two(autojump_clock):
    scripts = [server(), server()]
    async with (
        open_supervisor([spec(scripts[0])], gate=10) as supervisor,
        open_gateway(supervisor, search=True) as gateway,
        trio.open_nursery() as nursery,
    ):
        told = []
        for view, allow in ((None, None), ("lab", None), (None, ["lab/*"])):
            tell = partial(lambda to, said: told.append((*to, said.method)), (view, allow))
            gateway.news.enter(ClientSession(tell, nursery, view, Access(allow)))
        scripts[0].tools["forget_mail"] = nothing
        await supervisor.list_tools(refresh=True)
        await trio.sleep(1)
        assert told == []
        _, found = await called(gateway, "find_tools", {"query": "forget", "limit": 1})
        assert json.loads(found)["name"] == "mcp_lab_forget_mail"
        await supervisor.add_server(spec(scripts[1], name="second"))
        await trio.sleep(1)
        assert told == [(None, None, "notifications/tools/list_changed")]
        listed = (await asked(gateway, "tools/list"))["tools"]
        assert listed[1]["description"].endswith("The servers: lab, second")


async def test_a_server_that_is_not_there_yet_is_waited_for_and_then_named(autojump_clock):
    from mcp_nursery.supervisor.testing import Life

    slow = ScriptedServer(Life(connects_after=20), tools={"slow": nothing})
    async with (
        open_supervisor([spec(server()), spec(slow, name="slow")], gate=0) as supervisor,
        open_gateway(supervisor, search=True) as gateway,
    ):
        began = trio.current_time()
        _, found = await called(gateway, "find_tools", {"query": "send mail", "limit": 1})
        assert trio.current_time() - began == 5
        first, last = found.splitlines()
        assert json.loads(first)["name"] == "mcp_lab_send_mail"
        assert last == "not connected: slow (connecting)"


async def test_without_it_all_tools_are_listed(autojump_clock):
    async with open_supervisor([spec(server())], gate=10) as supervisor, open_gateway(supervisor) as gateway:
        listed = (await asked(gateway, "tools/list"))["tools"]
        assert [tool["name"] for tool in listed] == ["mcp_lab_read_mail", "mcp_lab_send_mail"]
        with pytest.raises(JsonRpcError, match="no tool named 'find_tools'"):
            await called(gateway, "find_tools", {"query": "mail"})
