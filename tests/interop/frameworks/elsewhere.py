"""A supervisor with the server of these tests, in this loop and in a thread of its own."""

import asyncio
import sys
from contextlib import asynccontextmanager
from functools import partial

import pytest

from mcp_nursery.supervisor import Approval, RestartPolicy, ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.portal import open_supervisor_thread
from mcp_nursery.supervisor.pytest_plugin import Faults

from ...lab import PROGRAMS
from ...lab.processes import next_state

ALLOWED = {"approval_rules": ApprovalRules(allowed=["*"])}
"""Options of a supervisor that asks nobody."""
SOON = RestartPolicy(delays=[1.0] * 20)
"""Long enough for a framework, on a busy machine, to call a server that has just died."""


def agent(**settings):
    """The spec of the server of these tests."""
    command = StdioTransport(sys.executable, args=["-I", "-S", str(PROGRAMS / "nursery_agent.py")])
    return ServerSpec("agent", command, **{"policy": SOON, **settings})


async def kill(supervisor, server="agent"):
    """Kill a server, and wait until its end is noticed."""
    async with supervisor.events() as events:
        Faults().kill(supervisor, server)
        await next_state(events, "waiting", server)


async def learned(supervisor, name):
    """Wait until there is a tool of this name."""
    toolset = supervisor.as_toolset()
    tools = toolset.tools
    while name not in {tool.name for tool in tools}:
        tools = await toolset.changed(tools)


class Agent:
    """A supervisor, of this loop or of a thread, and what is done to its one server."""

    def __init__(self, supervisor):
        self.list_tools, self.as_toolset = supervisor.list_tools, supervisor.as_toolset
        self.list_prompts, self.get_prompt = supervisor.list_prompts, supervisor.get_prompt
        self.wait_connected = partial(supervisor.wait_connected, "agent")
        self.kill, self.learned = partial(kill, supervisor), partial(learned, supervisor)


@asynccontextmanager
async def supervised_elsewhere(*, lazy=False, **options):
    async with open_supervisor_thread([agent(lazy=lazy)], **options) as supervisor:
        if not lazy:
            await supervisor.wait_connected("agent")
        yield Agent(supervisor)


async def cancelled_while_asked(begin):
    """Begin a run of an agent, and cancel it while `approve` is asked: the tools whose question was taken back."""
    asking, ended = asyncio.Event(), []

    async def approve(request):
        asking.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(request.tool.name)

    async with asyncio.timeout(60), supervised_elsewhere(approve=approve) as supervisor:
        task = asyncio.create_task(begin(supervisor))
        await asking.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    return ended


def approving():
    """What was asked, and an `approve` that allows it."""
    asked = []

    async def approve(request):
        asked.append((request.tool.name, dict(request.arguments)))
        return Approval.ALLOW

    return asked, approve


@asynccontextmanager
async def supervised_here(**options):
    async with open_supervisor([agent()], **options) as supervisor:
        await supervisor.wait_connected("agent")
        yield Agent(supervisor)
