"""What the log says of servers that come, go and give up."""

import logging

import pytest
import trio

from mcp_nursery.supervisor import MemoryStore, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.events import StateChanged
from mcp_nursery.supervisor.log_limits import WITHIN
from mcp_nursery.supervisor.logs import LINES_PER_MINUTE, TransitionLog
from mcp_nursery.supervisor.status import ServerState
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ..lab.specs import nothing

LOG = "mcp_nursery.supervisor.transition_log"


def told(caplog) -> list[tuple[str, str]]:
    return [(each.levelname, each.getMessage()) for each in caplog.records if each.name == LOG]


def spec(server, delays=(2,), **options) -> ServerSpec:
    return ServerSpec("lab", server.transport, policy=RestartPolicy(delays=delays), **options)


async def test_a_server_that_dies_and_gives_up(autojump_clock, caplog):
    """A loss and the end of a ladder are warnings; every other change of the state is there to be read."""
    caplog.set_level(logging.INFO, LOG)
    server = ScriptedServer(Life(dies_after=3), Life(refuses="down"))
    async with open_supervisor([spec(server)], state=MemoryStore()) as supervisor:
        await trio.sleep(10)
        await supervisor.stop_server("lab")
    assert told(caplog) == [
        ("INFO", "lab: connecting -> connected: version 1, 1 tool, in 0 s"),
        ("WARNING", "lab: connected -> waiting: exited with code 1; start 2 of 2 in 2 s"),
        ("INFO", "lab: waiting -> connecting"),
        ("WARNING", "lab: connecting -> failed: down"),
        ("INFO", "lab: failed -> stopped"),
    ]


def test_the_wait_is_told_in_tenths_of_a_second(caplog):
    """The clock has moved on between the loss and its line."""
    lost = StateChanged(
        "lab", 1, ServerState.CONNECTED, ServerState.WAITING, "gone", 2, 4, retry_in=1.9994, pid=None, at=0.0
    )
    TransitionLog().record_transition(lost)
    assert told(caplog) == [("WARNING", "lab: connected -> waiting: gone; start 2 of 4 in 2 s")]


async def test_what_came_and_how_long_it_took(autojump_clock, caplog):
    """Each connect by itself: its version in letters that are safe in a log, its tools as offered, its seconds."""
    caplog.set_level(logging.INFO, LOG)
    tools = {"one": nothing, "two": nothing, "three": nothing}
    server = ScriptedServer(Life(connects_after=1.25, dies_after=2), Life(connects_after=0.5), tools=tools)
    server.info = {"name": "lab", "version": "2.1\n" + "9" * 100}
    async with open_supervisor([spec(server, deny=["two"])], state=MemoryStore(), gate=2):
        del server.tools["three"]
        server.info = {"name": "lab"}
        await trio.sleep(5)
    connects = [line for _, line in told(caplog) if "connected:" in line]
    assert connects == [
        f"lab: connecting -> connected: version 2.1_{'9' * 36}, 2 tools, in 1.25 s",
        "lab: connecting -> connected: 1 tool, in 0.5 s",
    ]


async def test_who_ends_a_server_is_not_warned(autojump_clock, caplog):
    """Stopping, idleness and the end of the block are nobody's loss; nor is a server that was never there."""
    caplog.set_level(logging.INFO, LOG)
    server = ScriptedServer(Life(refuses="not yet"), Life(), Life())
    async with open_supervisor([spec(server, lazy=True, stop_idle_after=5)], state=MemoryStore()) as supervisor:
        await supervisor.list_tools()
        await trio.sleep(30)
        await supervisor.call_tool("mcp_lab_echo")
        await supervisor.remove_server("lab")
    levels = {level for level, _ in told(caplog)}
    assert levels == {"INFO"}
    assert ("INFO", "lab: connecting -> waiting: not yet; start 2 of 2 in 2 s") in told(caplog)


@pytest.mark.slow
async def test_a_server_that_comes_and_goes_without_end(autojump_clock, caplog):
    """Q7: so many lines a minute and no more; how many were left out is told."""
    caplog.set_level(logging.INFO, LOG)
    server = ScriptedServer(*[Life(dies_after=0.25)] * 400, Life())
    async with open_supervisor([spec(server, delays=(0.25,) * 500)], state=MemoryStore()) as supervisor:
        for minute in range(1, 4):
            await trio.sleep(WITHIN)
            assert len(told(caplog)) <= LINES_PER_MINUTE * (minute + 1)
        await supervisor.stop_server("lab")
    assert len(server.starts) > 300
    assert "changes before it are left out)" in caplog.text


@pytest.mark.parametrize("calls", [100])
async def test_who_calls_a_dead_server_adds_no_line(autojump_clock, caplog, calls):
    """Q7."""
    caplog.set_level(logging.INFO, LOG)
    async with open_supervisor([spec(ScriptedServer(Life(dies_after=1), Life(refuses="down")))]) as supervisor:
        await trio.sleep(10)
        before = len(told(caplog))
        for _ in range(calls):
            with pytest.raises(Exception, match="down"):
                await supervisor.call_tool("mcp_lab_echo")
        assert len(told(caplog)) == before


async def test_no_secret_and_no_line_break(autojump_clock, caplog):
    """L17: what a server says at its end has passed the redactor."""
    caplog.set_level(logging.DEBUG, "mcp_nursery")
    key = "ghp_" + "a1B2" * 9
    async with open_supervisor([spec(ScriptedServer(Life(refuses=f"no\nentry with {key}")), ())], state=MemoryStore()):
        await trio.sleep(1)
    (line,) = [said for level, said in told(caplog) if level == "WARNING"]
    assert "[REDACTED:" in line
    assert key not in caplog.text
    assert "\n" not in line
