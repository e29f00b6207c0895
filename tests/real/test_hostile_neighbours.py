"""Q38: what one server sends stops nobody else, and costs it at most the call that it answers."""

import sys
from pathlib import Path

import pytest
import trio

from mcp_nursery.supervisor import (
    Call,
    CallTimeout,
    ConnectionLost,
    InvalidResult,
    MemoryStore,
    RestartPolicy,
    ServerError,
    ServerSpec,
    StdioTransport,
    open_supervisor,
)
from mcp_nursery.supervisor.errors import UnknownResource

from ..attack.figures import Turns

pytestmark = pytest.mark.slow

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


def peer(name, script, *arguments, **more):
    return ServerSpec(name, StdioTransport(sys.executable, ["-I", "-S", str(PEERS / script), *arguments]), **more)


def bad(size=1024, tools=1, **more):
    return peer("bad", "hostile_server.py", str(size), str(tools), **more)


async def attack(supervisor, kind, tool="attack", timeout=60):
    return await supervisor.call_tool(tool, {"attack": kind}, server="bad", timeout=timeout)


@pytest.mark.parametrize(
    ("kind", "length"),
    [
        ("escapes", 524288),
        ("half characters", 174762),
        ("bytes that are not UTF-8", 1 << 20),
        ("commas in a text", 1 << 20),
        ("structure in a text", None),
        ("[[]] below the budget", None),
        ("long integers", None),
        ("9,999 blocks", None),
        ("20,000 logs in one frame", None),
    ],
)
async def test_what_is_large_and_allowed_arrives(kind, length):
    async with open_supervisor([bad()], gate=30, state=MemoryStore()) as supervisor:
        result = await attack(supervisor, kind)
        assert not result.is_error
        assert length is None or len(result.full_text) == length
        async with supervisor.fan_out([Call("attack", {"attack": kind}, server="bad")]) as outcomes:
            async for outcome in outcomes:
                assert outcome.result is not None
                assert outcome.result.full_text == result.full_text


@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [
        ("an error with a million {}", InvalidResult, r"a message of 2\.9 MiB with more than 250000 JSON values"),
        ("{} without end", InvalidResult, r"a message of 1\.0 MiB with more than 250000 JSON values"),
        ("an error with {} below the budget", ServerError, "error 1: no"),
        ("an error with a long message", ServerError, r"token=\[REDACTED:secret\]"),
        ("an error with long data", ServerError, "error 1: no"),
    ],
)
async def test_what_is_refused_costs_its_call_alone(kind, error, told):
    async with open_supervisor([bad()], gate=30, state=MemoryStore()) as supervisor:
        with pytest.raises(error, match=told):
            await attack(supervisor, kind)
        assert (await attack(supervisor, "none")).incarnation == 1


async def test_an_answer_of_nobody_ends_the_wait():
    """A caller without a time limit would wait for ever."""
    async with open_supervisor([bad()], gate=30, state=MemoryStore()) as supervisor:
        with trio.fail_after(60), pytest.raises(ConnectionLost, match="10000 JSON values"):
            await attack(supervisor, "an answer of no id", timeout=None)


async def test_a_deadline_holds_whatever_comes():
    """One line of 32 MiB: a call with two seconds returned after eleven, and another server's call timed out."""
    calm = peer("calm", "echo_server.py")
    async with open_supervisor([bad(32 << 10), calm], gate=30, state=MemoryStore()) as supervisor:
        began = trio.current_time()
        with pytest.raises(CallTimeout):
            await attack(supervisor, "half characters", timeout=0.5)
        assert trio.current_time() - began < 4
        said = await supervisor.call_tool("echo", {"text": "well"}, server="calm", timeout=4)
        assert said.structured == {"result": "well"}


async def test_a_pattern_that_is_not_linear_is_not_tried():
    """24 seconds, and no time limit held."""
    async with open_supervisor([bad()], gate=30, state=MemoryStore()) as supervisor:
        began = trio.current_time()
        result = await attack(supervisor, "a pattern that is not linear", tool="pattern")
        assert len(result.structured["a"]) == 160_000
        assert trio.current_time() - began < 10


@pytest.mark.parametrize("declared", ["20 schemas of 60 kB for a model", "4,400 templates of 64 expressions"])
async def test_what_is_declared_is_worked_off_in_turns(declared):
    """One of these schemas stopped the loop for 12 s, and templates for 2 s at each read."""
    server = peer("bad", "hostile_server.py", "1", "1", declared)
    async with open_supervisor([server], gate=30, state=MemoryStore()) as supervisor:
        toolset, turns = supervisor.as_toolset(search=True), Turns()
        turns.before_task_step(trio.lowlevel.current_task())
        trio.lowlevel.add_instrument(turns)
        found = await toolset.run("find_tools", {"query": "sprawling", "limit": 20})
        with pytest.raises(UnknownResource):
            await supervisor.read_resource(f"x:{'b-' * 80}")
        trio.lowlevel.remove_instrument(turns)
    assert not found.is_error
    assert turns.cpu < 0.3  # of it a whole collection of garbage takes a tenth


async def test_definitions_beyond_the_budget_are_that_servers_failure():
    once = RestartPolicy(delays=())
    specs = [bad(tools=500, max_kept_bytes=100_000, policy=once), peer("calm", "echo_server.py")]
    async with open_supervisor(specs, gate=30, state=MemoryStore()) as supervisor:
        failed, calm = supervisor.status()
        assert (failed.state, calm.state) == ("failed", "connected")
        assert "its tool definitions exceed 100000 bytes, the limit for one server" in failed.error


async def test_the_budget_of_values_is_the_servers_own():
    async with open_supervisor([bad(max_message_values=10)], gate=30, state=MemoryStore()) as supervisor:
        with pytest.raises(InvalidResult, match="more than 10 JSON values"):
            await attack(supervisor, "9,999 blocks")
