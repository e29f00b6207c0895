"""The sweep of servers in this process: there are no bytes, so the places are the steps of Trio's scheduler.

A step is one task's turn, of any task. Time is virtual, and the schedule always the same.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing
from attrs import define, frozen
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

from mcp_nursery.supervisor import (
    Call,
    CallError,
    InProcessTransport,
    MemoryStore,
    NurseryError,
    RestartPolicy,
    ServerSpec,
    Supervisor,
    ToolResult,
    open_supervisor,
)
from mcp_nursery.supervisor.errors import Delivery

from ..lab.scheduler import AtStep
from ..lab.world import all_tasks
from ..property.test_cancellation import steadily

TIMEOUT = 1.0
"""Seconds of a call that has a time."""
LASTS = 0.25
"""Seconds that a tool takes once it has acted."""
NEVER = 100.0
"""Seconds after which a call without a time is said to have no outcome."""


@frozen
class Mode:
    """How a call is made."""

    name: str
    tool: str = "once"
    resend: str = "safe"
    most: int = 1
    """Executions that are right."""
    timeout: float | None = None
    in_bulk: bool = False


MODES = [
    Mode("once"),
    Mode("once, timed", timeout=TIMEOUT),
    Mode("never", tool="read", resend="never"),
    Mode("again", tool="read", most=2),
    Mode("always, timed", resend="always", most=2, timeout=TIMEOUT),
    Mode("in bulk", in_bulk=True),
    Mode("in bulk, timed", in_bulk=True, timeout=TIMEOUT),
]


@define(eq=False)
class Scene:
    """One server object, its supervisor, and the call that something happens to."""

    server: "Server"
    supervisor: Supervisor
    scope: trio.CancelScope
    nursery: trio.Nursery

    def cancel(self) -> None:
        self.scope.cancel()

    def expire(self) -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(TIMEOUT)

    def die(self) -> None:
        self.server.death.set()

    def stop(self) -> None:
        self.nursery.start_soon(self._restart)

    async def _restart(self) -> None:
        await self.supervisor.stop_server("peer")
        await self.supervisor.start_server("peer")

    def reconnect(self) -> None:
        self.nursery.start_soon(self.supervisor.reconnect, "peer")


FAULTS: dict[str, Callable[[Scene], None]] = {
    "cancelled": Scene.cancel,
    "expired": Scene.expire,
    "dead": Scene.die,
    "stopped": Scene.stop,
    "reconnected": Scene.reconnect,
}


class Server:
    """Two tools that write into a ledger."""

    def __init__(self) -> None:
        self.ledger = Counter[str]()
        self.death = trio.Event()
        self.object = MCPServer("peer", lifespan=self._lifespan)
        self.object.add_tool(self._act, name="once")
        self.object.add_tool(self._act, name="read", annotations=ToolAnnotations(read_only_hint=True))

    async def _act(self, key: str) -> str:
        self.ledger[key] += 1
        await trio.sleep(LASTS)
        return key

    @asynccontextmanager
    async def _lifespan(self, _server: Any) -> AsyncGenerator[None, None]:
        async with trio.open_nursery() as nursery:
            self.death = trio.Event()
            nursery.start_soon(self._die)
            yield
            nursery.cancel_scope.cancel()

    async def _die(self) -> None:
        await self.death.wait()
        raise RuntimeError("dead")


async def play(fault: str, mode: Mode, step: int) -> tuple[bool, list[str]]:
    """One run: whether the call was over before it came to that step, and what is not as promised."""
    server = Server()
    spec = ServerSpec("peer", InProcessTransport(server.object), policy=RestartPolicy(delays=[0.5] * 100))
    async with trio.open_nursery() as nursery:
        async with open_supervisor([spec], state=MemoryStore()) as supervisor:
            await supervisor.call_tool("once", {"key": "first"}, server="peer")
            await trio.testing.wait_all_tasks_blocked()
            before = len(all_tasks())
            scope = trio.CancelScope()
            at_step = AtStep(step, lambda: FAULTS[fault](scene))
            scene = Scene(server, supervisor, scope, nursery)
            found, outcome = [], None
            began = trio.current_time()
            with at_step, trio.move_on_after(NEVER) as patience, scope:
                outcome = await _call(supervisor, mode)
            if patience.cancelled_caught:
                found.append("no outcome")
            if mode.timeout is not None and trio.current_time() - began > mode.timeout + LASTS:
                found.append(f"an outcome after {trio.current_time() - began:g} s")
            executed = server.ledger["it"]
            found += _judge(outcome, executed, mode)
            await trio.sleep(2)
            if server.ledger["it"] != executed:
                found.append("executed once it was over")
            result = await supervisor.call_tool("once", {"key": "next"}, server="peer", when_down="wait", timeout=NEVER)
            if result.full_text != "next" or server.ledger["next"] != 1:
                found.append(f"the next call came to {result!r}")
            await trio.testing.wait_all_tasks_blocked()
            if len(all_tasks()) > before:
                found.append(f"{len(all_tasks()) - before} more tasks than before")
            if supervisor.status()[0].calls.in_flight:
                found.append("a call is in flight")
        nursery.cancel_scope.cancel()
    return not at_step.acted, found


async def _call(supervisor: Supervisor, mode: Mode) -> Any:
    arguments = {"key": "it"}
    if mode.in_bulk:
        call = Call(mode.tool, arguments, server="peer", timeout=mode.timeout, resend=mode.resend)
        (outcome,) = await supervisor.gather([call])
        return outcome
    try:
        return await supervisor.call_tool(mode.tool, arguments, server="peer", timeout=mode.timeout, resend=mode.resend)
    except NurseryError as error:
        return error


def _judge(outcome: Any, executed: int, mode: Mode) -> Iterator[str]:
    if executed > mode.most:
        yield f"executed {executed} times: {outcome!r}"
    if isinstance(outcome, ToolResult):
        if outcome.full_text != "it" or executed == 0:
            yield f"a result of what was not executed: {outcome.full_text!r}"
    elif isinstance(outcome, CallError):
        if outcome.delivery is Delivery.NOT_SENT and executed:
            yield f"executed {executed} times, and not_sent: {outcome!r}"
    elif outcome is not None:
        yield f"an outcome that is none: {outcome!r}"


def sweep_steps(fault: str, mode: Mode, stride: int, schedule: int = 0) -> tuple[int, list[str]]:
    """Have it happen at every `stride`-th step: how many there were, and what is wrong."""
    problems, step, is_over = [], schedule % stride, False
    while not is_over:
        is_over, found = steadily(schedule, play, fault, mode, step)
        problems += [f"in-process / {fault} / {mode.name} @{step}, schedule {schedule}: {one}" for one in found]
        step += stride
    return step // stride, problems
