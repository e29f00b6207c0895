"""The options that all integrations have, and how they hand on what a server declares."""

import asyncio
import json
import pkgutil
from contextlib import asynccontextmanager

import pytest
from inspect_ai.tool import ToolDef, ToolError
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic_ai import RunContext, RunUsage, ToolFailed
from pydantic_ai.models.test import TestModel

from mcp_nursery.supervisor import integrations
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.integrations.inspect_ai import mcp_nursery_tools
from mcp_nursery.supervisor.integrations.langchain import supervised_tools
from mcp_nursery.supervisor.integrations.openai_agents import SupervisedMCPServer
from mcp_nursery.supervisor.integrations.pydantic_ai import SupervisedToolset
from mcp_nursery.supervisor.portal import open_supervisor_thread
from mcp_nursery.supervisor.testing import ScriptedServer

from ...lab.specs import nothing, spec
from .elsewhere import ALLOWED, supervised_elsewhere

pytestmark = pytest.mark.slow


async def of_pydantic_ai(supervisor, **options):
    toolset, context = (
        SupervisedToolset(supervisor, **options),
        RunContext(deps=None, model=TestModel(), usage=RunUsage()),
    )
    tools = await toolset.get_tools(context)

    async def call(name):
        with pytest.raises(ToolFailed) as failed:
            await toolset.call_tool(name, {}, context, tools[name])
        return failed.value.message

    return set(tools), call


async def of_inspect_ai(supervisor, **options):
    tools = {ToolDef(tool).name: tool for tool in await mcp_nursery_tools(supervisor, **options).tools()}

    async def call(name):
        with pytest.raises(ToolError) as failed:
            await tools[name]()
        return failed.value.message

    return set(tools), call


async def of_langchain(supervisor, **options):
    tools = {tool.name: tool for tool in await supervised_tools(supervisor, **options)}
    return set(tools), lambda name: tools[name].ainvoke({})


async def of_openai_agents(supervisor, **options):
    server = SupervisedMCPServer(supervisor, **options)

    async def call(name):
        result = await server.call_tool(name, {})
        assert result.is_error
        return result.content[0].text

    return {tool.name for tool in await server.list_tools()}, call


INTEGRATIONS = [of_pydantic_ai, of_inspect_ai, of_langchain, of_openai_agents]


@pytest.fixture(params=INTEGRATIONS)
def integration(request):
    return request.param


@asynccontextmanager
async def supervised(**options):
    allowed = ApprovalRules(allowed=["*"])
    async with asyncio.timeout(60), supervised_elsewhere(approval_rules=allowed, **options) as supervisor:
        yield supervisor


def test_a_lazy_server_is_started_for_its_tools(integration):
    async def main():
        async with supervised(lazy=True) as supervisor:
            return await integration(supervisor)

    names, _ = asyncio.run(main())
    assert "mcp_agent_pid" in names


def test_a_timeout_ends_a_call(integration):
    async def main():
        async with supervised() as supervisor:
            _, call = await integration(supervisor, timeout=0.1)
            return await call("mcp_agent_stall")

    assert "CallTimeout" in asyncio.run(main())


def test_a_model_may_search_instead(integration):
    async def main():
        async with supervised() as supervisor:
            return await integration(supervisor, search=True)

    names, _ = asyncio.run(main())
    assert names == {"find_tools", "call_tool"}


def test_every_integration_is_tried_here():
    modules = {f"of_{module.name}" for module in pkgutil.iter_modules(integrations.__path__)}
    assert {each.__name__ for each in INTEGRATIONS} == modules - {"of_offered"}


def test_no_agent_is_offered_a_tool_for_pages_alone(integration):
    for_pages = {"_meta": {"ui": {"resourceUri": "ui://board.html", "visibility": ["app"]}}}
    server = ScriptedServer(tools=dict.fromkeys(["show", "refresh"], nothing), declared={"refresh": for_pages})

    async def main():
        async with asyncio.timeout(60), open_supervisor_thread([spec(server)], **ALLOWED) as supervisor:
            await supervisor.wait_connected("lab")
            assert {tool.tool for tool in supervisor.tools} == {"show", "refresh"}
            return await integration(supervisor)

    names, _ = asyncio.run(main())
    assert names == {"mcp_lab_show"}


def test_a_schema_that_apis_refuse_costs_no_tool():
    """LangChain's own conversion raises for it, whichever tool it is of."""

    async def main():
        async with supervised() as supervisor:
            context = RunContext(deps=None, model=TestModel(), usage=RunUsage())
            tools = {tool.name: tool for tool in await supervised_tools(supervisor)}
            in_langchain = {
                name: convert_to_openai_tool(tool)["function"]["parameters"] for name, tool in tools.items()
            }
            in_pydantic_ai = await SupervisedToolset(supervisor).get_tools(context)
            in_agents = {tool.name: tool.input_schema for tool in await SupervisedMCPServer(supervisor).list_tools()}
            assert in_langchain.keys() == in_pydantic_ai.keys() == in_agents.keys()
            schema = in_langchain["mcp_agent_refused"]
            assert schema["properties"] == {
                "_filter": {"type": "string", "description": "$filter"},
                "list": {"type": "array", "items": {}},
                "of": {},
            }
            assert schema == in_agents["mcp_agent_refused"]
            assert schema == in_pydantic_ai["mcp_agent_refused"].tool_def.parameters_json_schema
            said = await tools["mcp_agent_refused"].ainvoke({"_filter": "name eq 'x'", "list": [1]})
            assert json.loads(said.splitlines()[1]) == {"$filter": "name eq 'x'", "list": [1]}

    asyncio.run(main())


def test_what_a_server_declares_is_handed_on():
    async def main():
        async with supervised() as supervisor:
            context = RunContext(deps=None, model=TestModel(), usage=RunUsage())
            in_pydantic_ai = (await SupervisedToolset(supervisor).get_tools(context))["mcp_agent_weather"].tool_def
            assert in_pydantic_ai.return_schema["properties"] == {"degrees": {"type": "number"}}
            server = SupervisedMCPServer(supervisor)
            in_agents = {tool.name: tool for tool in await server.list_tools()}
            assert in_agents["mcp_agent_weather"].output_schema == in_pydantic_ai.return_schema
            result = await server.call_tool("mcp_agent_meta", {}, meta={"example.org/run": 7})
            assert json.loads(result.content[0].text.splitlines()[1])["example.org/run"] == 7
            for parallel in (True, False):
                tools = await mcp_nursery_tools(supervisor, parallel=parallel).tools()
                in_inspect = {ToolDef(tool).name: ToolDef(tool) for tool in tools}
                assert in_inspect["mcp_agent_echo"].parameters.required == ["text"]
                assert in_inspect["mcp_agent_echo"].parallel is parallel

    asyncio.run(main())
