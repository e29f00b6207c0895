"""Tools with pages, and those for pages alone, which no model is offered or can call. Virtual time."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.supervisor import MemoryStore, NotApproved, UnknownTool, open_supervisor
from mcp_nursery.supervisor.approval import Approval, ApprovalRules, ToolUI
from mcp_nursery.supervisor.cli import tools as command_line
from mcp_nursery.supervisor.gateway.upstream import ask_client
from mcp_nursery.supervisor.integrations.offered import FIRST_WAIT, ListedTools
from mcp_nursery.supervisor.portal import open_supervisor_thread
from mcp_nursery.supervisor.testing import ScriptedServer
from mcp_nursery.supervisor.toolset import ToolForms

from ..lab.specs import nothing, spec

PAGE = "ui://board.html"
SHOWN = {"_meta": {"ui": {"resourceUri": PAGE}}}
FOR_APPS = {"_meta": {"ui": {"resourceUri": PAGE, "visibility": ["app"]}, "anthropic/alwaysLoad": True}}
FORMS = [name for name in dir(ToolForms) if name.startswith("as_")]
ALLOWED = ApprovalRules(allowed=["*"])


async def page(arguments):
    await trio.lowlevel.checkpoint()
    return "<button>"


def board():
    tools = dict.fromkeys(["show", "refresh", "count"], nothing)
    return ScriptedServer(tools=tools, declared={"show": SHOWN, "refresh": FOR_APPS}, resources={PAGE: page})


@asynccontextmanager
async def opened(server, **options):
    options = {"gate": 10, "approval_rules": ALLOWED} | options
    async with open_supervisor([spec(server)], **options) as supervisor:
        yield supervisor


async def test_a_tool_says_which_page_it_has_and_for_whom_it_is(autojump_clock):
    async with opened(board()) as supervisor:
        show, refresh, count = (supervisor.tool(name, server="lab") for name in ("show", "refresh", "count"))
        assert show.ui == ToolUI(PAGE)
        assert refresh.ui == ToolUI(PAGE, frozenset(["app"]))
        assert count.ui is None
        assert [tool.for_models for tool in (show, refresh, count)] == [True, False, True]
        read = await supervisor.read_resource(show.ui.resource_uri, server=show.server)
        assert read.contents[0].text == "<button>"
        assert (await supervisor.call_tool(refresh.name)).text


@pytest.mark.parametrize("search", [False, True])
async def test_no_form_for_a_model_has_what_is_for_pages_alone(search, autojump_clock):
    async with opened(board()) as supervisor:
        toolset = supervisor.as_toolset(search=search)
        listed = ListedTools(supervisor, search, FIRST_WAIT)
        offers = [getattr(toolset, form)() for form in FORMS]
        offers += [[tool.name for tool in tools] for tools in (toolset.tools, await listed.now())]
        offers += [[tool.name for tool in await supervisor.find_tools("refresh show count")]]
        assert len(FORMS) >= 4
        for offer in offers:
            assert "refresh" not in json.dumps(offer)
            assert search or "mcp_lab_show" in json.dumps(offer)
        assert "refresh" not in await supervisor.as_toolset(search=True).call("find_tools", {"query": "refresh"})
        assert "mcp_lab_refresh" in {tool.name for tool in supervisor.tools}


def test_nor_has_one_in_another_thread():
    async def of_a_loop(there):
        return there.as_toolset().tools

    with open_supervisor_thread([spec(board())], approval_rules=ALLOWED) as supervisor:
        supervisor.wait_connected("lab")
        toolset, there = supervisor.as_toolset(), supervisor.awaitable()
        names = {tool.name for tool in supervisor.tools}
        assert names - {tool.name for tool in toolset.tools} == {"mcp_lab_refresh"}
        assert {tool.name for tool in asyncio.run(of_a_loop(there))} == {tool.name for tool in toolset.tools}
        assert "refresh" not in json.dumps([getattr(toolset, form)() for form in FORMS])
        assert isinstance(toolset.run("mcp_lab_refresh").error, UnknownTool)
        assert not supervisor.for_models("lab", "refresh")


async def test_a_model_that_guesses_the_name_gets_the_answer_of_an_unknown_one(autojump_clock):
    server, without = board(), board()
    without.tools = {"show": nothing, "count": nothing}
    async with opened(server) as supervisor, opened(without) as other:
        wish = {"name": "mcp_lab_refresh"}
        for search in (False, True):
            toolset, unknowing = supervisor.as_toolset(search=search), other.as_toolset(search=search)
            for name in ("mcp_lab_refresh", "mcp_lab_refres", "refresh"):
                assert await toolset.call(name) == await unknowing.call(name)
        assert await toolset.call("call_tool", wish) == await unknowing.call("call_tool", wish)
        outcome = await supervisor.as_toolset(search=True).run("call_tool", wish)
        assert isinstance(outcome.error, UnknownTool)
        with pytest.raises(UnknownTool):
            await supervisor.tool("mcp_lab_refresh")()
        assert server.calls == []


async def test_nor_is_a_model_told_of_one_that_is_held_back(autojump_clock):
    server = board()
    async with opened(server, pins="block", state=MemoryStore()) as supervisor:
        server.declared = server.declared | {"refresh": FOR_APPS | {"description": "otherwise"}}
        await supervisor.list_tools(refresh=True)
        with pytest.raises(NotApproved):
            await supervisor.call_tool("mcp_lab_refresh")
        outcome = await supervisor.as_toolset().run("mcp_lab_refresh")
        assert isinstance(outcome.error, UnknownTool)


async def test_a_tool_that_becomes_one_for_pages_alone_is_no_model_s_any_more(autojump_clock):
    server = board()
    async with opened(server) as supervisor:
        toolset = supervisor.as_toolset()
        (before,) = (tool for tool in toolset.tools if tool.tool == "show")
        server.declared = server.declared | {"show": FOR_APPS}
        await supervisor.list_tools(refresh=True)
        assert "show" not in {tool.tool for tool in toolset.tools}
        with pytest.raises(UnknownTool):
            await before()
        assert [change.fields for change in supervisor.definition_changes] == [("ui", "alwaysLoad")]
        server.declared = {}
        await supervisor.list_tools(refresh=True)
        assert {tool.tool for tool in toolset.tools} >= {"show", "refresh"}


async def test_a_borrower_s_model_is_offered_none_either(autojump_clock):
    async with (
        opened(board()) as lender,
        open_supervisor(borrow=lender, servers=["lab"], template="{tool}", approval_rules=ALLOWED) as supervisor,
    ):
        assert {"refresh", "show"} <= {tool.name for tool in supervisor.tools}
        assert "refresh" not in {tool.name for tool in supervisor.as_toolset().tools}
        assert isinstance((await supervisor.as_toolset().run("refresh")).error, UnknownTool)


async def test_whoever_is_asked_sees_that_a_tool_has_a_page(autojump_clock):
    """In each question of ours: of the library, the gateway and the command line."""
    asked = []

    async def approve(request):
        await trio.lowlevel.checkpoint()
        asked.append(request)
        return Approval.ALLOW

    odd = {"_meta": {"ui": {"resourceUri": "ui://a\u202e\n\x1b[2J", "visibility": ["app"]}}}
    server = board()
    server.declared = server.declared | {"count": {"_meta": {"ui": {"resourceUri": PAGE, "visibility": ["model"]}}}}
    async with opened(server, approval_rules=None, approve=approve) as supervisor:
        for name in ("mcp_lab_show", "mcp_lab_count"):
            await supervisor.as_toolset().run(name)
        assert [request.tool.ui.resource_uri for request in asked] == [PAGE, PAGE]
        shown = [ask_client.question(request).splitlines()[3] for request in asked]
        assert shown == ["page: shows ui://board.html", "page: shows ui://board.html, for models alone"]
        tools = [request.tool for request in asked]
        said = command_line._question(tools, {}).splitlines()
        assert said[3:5] == [f"page:      {line.removeprefix('page: ')}" for line in shown]
        server.declared = {"show": odd}
        await supervisor.list_tools(refresh=True)
        tool = supervisor.tool("mcp_lab_show")
        assert command_line._question([tool], {}).splitlines()[2] == (
            "page:      shows ui://a\\u202e\\n\\u001b[2J, for pages alone"
        )
        assert command_line._described(tool).endswith(", for pages alone) show")
        assert command_line._described(supervisor.tool("mcp_lab_count")) == "count"
