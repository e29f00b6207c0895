"""The facts of a call that a framework hands to its program."""

from typing import Any

import pytest

from mcp_nursery.supervisor import ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.integrations.offered import OfferedTools, ToolSupervisor, facts_of
from mcp_nursery.supervisor.testing import ScriptedServer

ALLOWED = ApprovalRules(allowed=["*"])
UNASKED = {"server": None, "tool": None, "incarnation": None, "is_error": True, "structured": None}


async def echo(arguments: Any) -> str:
    return "hi"


def lab() -> ServerSpec:
    return ServerSpec("lab", ScriptedServer(tools={"echo": echo}).transport)


def offered_by(supervisor: ToolSupervisor) -> OfferedTools:
    return supervisor.as_toolset()


async def test_the_facts_of_an_answer(autojump_clock: Any) -> None:
    """A `Supervisor` has what frameworks need, by its type too."""
    async with open_supervisor([lab()], approval_rules=ALLOWED) as supervisor:
        await supervisor.list_tools()
        facts = facts_of(await offered_by(supervisor).run("mcp_lab_echo"))
    assert isinstance(supervisor, Supervisor)
    assert facts == {
        "server": "lab",
        "tool": "echo",
        "incarnation": 1,
        "is_error": False,
        "error": None,
        "delivery": "answered",
        "structured": None,
    }


@pytest.mark.parametrize(("name", "error"), [("mcp_lab_echo", "NotApproved"), ("nonsense", "UnknownTool")])
async def test_what_was_refused_was_not_sent(name: str, error: str, autojump_clock: Any) -> None:
    async with open_supervisor([lab()]) as supervisor:
        await supervisor.list_tools()
        facts = facts_of(await supervisor.as_toolset().run(name))
    assert facts == {**UNASKED, "error": error, "delivery": "not_sent"}


async def test_of_a_block_that_was_left_nobody_knows(autojump_clock: Any) -> None:
    """The call may have been on its way then."""
    async with open_supervisor([lab()], approval_rules=ALLOWED) as supervisor:
        toolset = supervisor.as_toolset()
    assert facts_of(await toolset.run("mcp_lab_echo")) == {
        **UNASKED,
        "error": "SupervisorClosed",
        "delivery": "unknown",
    }
