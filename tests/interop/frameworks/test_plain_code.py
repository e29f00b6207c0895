"""Frameworks behind plain calls: the supervisor of a `with` block serves the loop that each runs for itself."""

import asyncio
import gc

import pytest
from agents import Agent as OpenAIAgent
from agents import RunConfig, Runner
from inspect_ai import Task
from inspect_ai import eval as inspect_eval
from inspect_ai.dataset import Sample
from inspect_ai.solver import generate, use_tools
from langchain_core.messages import ToolCall
from pydantic_ai import Agent

from mcp_nursery.supervisor.integrations.inspect_ai import mcp_nursery_tools
from mcp_nursery.supervisor.integrations.langchain import supervised_tools
from mcp_nursery.supervisor.integrations.openai_agents import SupervisedMCPServer
from mcp_nursery.supervisor.integrations.pydantic_ai import SupervisedToolset
from mcp_nursery.supervisor.portal import open_supervisor_thread

from . import test_inspect_ai, test_openai_agents, test_pydantic_ai
from .elsewhere import ALLOWED, agent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
]


@pytest.fixture
def supervisor():
    loop = asyncio.new_event_loop()  # `run_sync` leaves the loop that it finds, or makes, for its next one
    asyncio.set_event_loop(loop)
    try:
        with open_supervisor_thread([agent()], **ALLOWED) as supervisor:
            yield supervisor
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    gc.collect()  # what else frameworks leave open is found here, and no test of others warned of it


def test_run_sync_of_pydantic_ai(supervisor):
    model = test_pydantic_ai.asks_for(("pid", {}))
    (part,) = test_pydantic_ai.returns(
        Agent(model, toolsets=[SupervisedToolset(supervisor)]).run_sync("go").all_messages()
    )
    assert part.outcome == "success"


def test_run_sync_of_openai_agents(supervisor):
    model = test_openai_agents.Scripted(("pid", {}))
    one = OpenAIAgent("agent", model=model, mcp_servers=[SupervisedMCPServer(supervisor)])
    result = Runner.run_sync(one, "go", run_config=RunConfig(tracing_disabled=True))
    assert result.final_output == "done"
    assert len(test_openai_agents.returns(result)) == 1


def test_a_tool_of_langchain(supervisor):
    async def main():
        tools = {tool.name: tool for tool in await supervised_tools(supervisor)}
        return await tools["mcp_agent_pid"].ainvoke(ToolCall(name="mcp_agent_pid", args={}, id="1", type="tool_call"))

    assert asyncio.run(main()).status == "success"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_eval_of_inspect_ai(supervisor, backend, tmp_path, monkeypatch):
    monkeypatch.setenv("INSPECT_LOG_DIR", str(tmp_path))
    monkeypatch.setenv("INSPECT_ASYNC_BACKEND", backend)
    model, _ = test_inspect_ai.asks_for(("mcp_agent_pid", {}))
    task = Task([Sample("go")], solver=[use_tools(mcp_nursery_tools(supervisor)), generate()])
    (log,) = inspect_eval(task, model=model, ctl_server=False, display="none")
    assert log.status == "success"
    assert log.samples[0].output.completion == "done"
