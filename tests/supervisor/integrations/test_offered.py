"""The facts of a call that a framework hands to its program."""

import asyncio
from typing import Any

import pytest
import trio
from attrs import evolve

from mcp_nursery.supervisor import ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.integrations import offered
from mcp_nursery.supervisor.integrations.offered import (
    FIRST_WAIT,
    NEXT_WAIT,
    ListedTools,
    OfferedTools,
    ToolSupervisor,
    facts_of,
)
from mcp_nursery.supervisor.portal import open_supervisor_thread
from mcp_nursery.supervisor.testing import Life, ScriptedServer
from mcp_nursery.supervisor.tools.tool import as_available, prepare_for_models

from ...lab.tasks import WORKING, TaskServer, done

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


async def test_an_agent_gets_the_result_of_a_task(autojump_clock: Any) -> None:
    """R12."""
    server = TaskServer(WORKING, done("at last"))
    async with open_supervisor([ServerSpec("lab", server.transport)], approval_rules=ALLOWED) as supervisor:
        await supervisor.list_tools()
        outcome = await offered_by(supervisor).run("mcp_lab_work")
    assert "at last" in outcome.text
    assert facts_of(outcome)["delivery"] == "answered"


async def test_schemas_for_models_are_made_in_turns_and_once(autojump_clock: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(offered, "_SLICE_SECONDS", -1)
    schema = {"anyOf": [{"$ref": "#/$defs/A"}] * 9, "$defs": {"A": {"properties": {f"p{n}": {} for n in range(500)}}}}
    server = ScriptedServer(tools={"echo": echo}, declared={"echo": {"inputSchema": schema}})
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with open_supervisor([ServerSpec("lab", server.transport)]) as supervisor, trio.open_nursery() as nursery:
        listed = ListedTools(supervisor, False, FIRST_WAIT)
        nursery.start_soon(count)
        (tool,) = await listed.now()
        nursery.cancel_scope.cancel()
    assert turns > 500
    copies = [evolve(tool, name="other"), as_available(tool, available=False)]
    assert list(prepare_for_models(copies)) == []
    assert [len(each.as_openai()["function"]["parameters"]["properties"]) for each in copies] == [500, 500]


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


async def test_a_server_that_hangs_at_its_start_holds_up_an_agent_for_a_bounded_time(autojump_clock: Any) -> None:
    mute = ServerSpec("mute", ScriptedServer(Life(mute=True)).transport)
    async with open_supervisor([lab(), mute], gate=0) as supervisor:
        listed = ListedTools(supervisor, False, FIRST_WAIT)
        took: list[float] = []
        for _ in range(2):
            begun = trio.current_time()
            assert [tool.name for tool in await listed.now()] == ["mcp_lab_echo"]
            took.append(trio.current_time() - begun)
    assert took == pytest.approx([FIRST_WAIT, NEXT_WAIT])


async def test_a_list_that_may_be_old_holds_up_no_step(autojump_clock: Any) -> None:
    """It is fetched at most once a second, and is there when it was."""
    server = ScriptedServer(tools={"echo": echo})
    async with open_supervisor([ServerSpec("lab", server.transport)], approval_rules=ALLOWED) as supervisor:
        listed = ListedTools(supervisor, False, FIRST_WAIT)
        await listed.now()
        begun = trio.current_time()
        for _ in range(3):
            await listed.offered.run("mcp_lab_echo")
            await listed.now()
        assert trio.current_time() - begun <= 3 * NEXT_WAIT
        server.tools["more"] = echo
        await trio.sleep(2)
        await listed.now()
        assert [tool.name for tool in await listed.now()] == ["mcp_lab_echo", "mcp_lab_more"]


def test_the_supervisor_of_plain_code_serves_a_loop() -> None:
    with open_supervisor_thread([lab()], approval_rules=ALLOWED) as supervisor:

        async def main() -> str:
            listed = ListedTools(supervisor, False, FIRST_WAIT)
            assert [tool.name for tool in await listed.now()] == ["mcp_lab_echo"]
            return (await listed.offered.run("mcp_lab_echo")).text

        for _ in range(2):  # each in a loop of its own
            assert "hi" in asyncio.run(main())
            assert "hi" in trio.run(main)


@pytest.mark.parametrize(("hold", "error", "took"), [(20, None, 1.5), (1, "ServerDown", 1), (0, "ServerDown", 0)])
async def test_a_call_is_held_while_its_server_restarts(
    hold: float, error: str | None, took: float, autojump_clock: Any
) -> None:
    """W13. Its program is told of that as of any progress."""
    told: list[Any] = []

    async def on_progress(*progress: Any) -> None:
        told.append(progress)

    server = ScriptedServer(Life(dies_after=1), Life(), tools={"echo": echo})
    async with open_supervisor([ServerSpec("lab", server.transport)], approval_rules=ALLOWED) as supervisor:
        listed = ListedTools(supervisor, False, FIRST_WAIT, hold)
        await listed.now()
        await trio.sleep(1.5)
        begun = trio.current_time()
        facts = facts_of(await listed.run("mcp_lab_echo", {}, timeout=None, on_progress=on_progress))
    assert (facts["error"], trio.current_time() - begun) == (error, took)
    assert told == ([("mcp_lab_echo", -3, None, "restarting, attempt 2 of 4")] if hold else [])
