"""What the tests of fan-out share."""

from collections.abc import Sequence
from typing import Any

import trio
import trio.testing

from mcp_nursery.supervisor import Call, NurseryError, Supervisor, ToolResult
from mcp_nursery.supervisor.calls.fan_out import CallOutcome
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from .callers import nap
from .specs import hang

READ_ONLY = {"readOnlyHint": True}


async def fail(arguments: dict[str, Any]) -> object:
    await nap(arguments)
    raise RuntimeError("it broke")


def lab(*lives: Life) -> ScriptedServer:
    return ScriptedServer(*lives, tools={"nap": nap, "hang": hang, "fail": fail})


def napping(server: str, seconds: float, **options: Any) -> Call:
    return Call("nap", {"for": seconds}, server=server, **options)


async def collected(supervisor: Supervisor, calls: Sequence[Call], **options: Any) -> list[CallOutcome]:
    with trio.fail_after(1000):
        async with supervisor.fan_out(calls, **options) as outcomes:
            return [outcome async for outcome in outcomes]


async def timed(supervisor: Supervisor, calls: Sequence[Call], **options: Any) -> list[tuple[float, int]]:
    """When each outcome came, and whose it was."""
    with trio.fail_after(1000):
        async with supervisor.fan_out(calls, **options) as outcomes:
            return [(trio.current_time(), outcome.index) async for outcome in outcomes]


def answers(outcomes: Sequence[CallOutcome]) -> list[ToolResult | NurseryError | None]:
    return [one.result or one.error for one in sorted(outcomes, key=lambda one: one.index)]


def in_flight(supervisor: Supervisor) -> int:
    return supervisor.statistics().calls.in_flight
