"""A server that is lost, or stopped, at every scheduler step of a call that it asks about: the call has one outcome, at
once, nothing is repeated, and no callback is left."""

import pytest
import trio

from mcp_nursery.actors.errors import CallError
from mcp_nursery.supervisor import ConnectionLost, ServerDown, Supervisor, ToolResult, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks

from ..lab.scheduler import SCHEDULES, AtStep, sweep
from ..lab.world import all_tasks
from .test_cancellation import TOKEN, User, lab, lab_spec, steadily

pytestmark = pytest.mark.slow


async def play(tool: str, end: str, step: int) -> bool:
    """One run with the server ended at that step; False if the call was over before."""
    server, user, tasks = lab(), User(), all_tasks()
    async with (
        trio.open_nursery() as hosts,
        open_supervisor([lab_spec(server)], callbacks=Callbacks(elicit=user.elicit)) as supervisor,
    ):
        await supervisor.wait_connected("lab")
        acts = {"crash": server.crash, "stop": lambda: hosts.start_soon(supervisor.stop_server, "lab")}
        ended: list[float] = []
        with AtStep(step, lambda: (ended.append(trio.current_time()), acts[end]())):
            outcome = await called(supervisor, tool)
        if not ended:
            assert isinstance(outcome, ToolResult)
            return False
        judge(outcome, ended[0], heard=len(server.calls))
        await trio.testing.wait_all_tasks_blocked()
        assert user.thinking == 0
        assert supervisor.statistics().calls.in_flight == 0
    assert len(server.calls) <= 2
    assert server.most_alive == 1
    await trio.testing.wait_all_tasks_blocked()
    assert all_tasks() == tasks
    return True


async def called(supervisor: Supervisor, tool: str) -> ToolResult | CallError:
    try:
        return await supervisor.call_tool(tool, TOKEN, server="lab")
    except CallError as error:
        return error


def judge(outcome: ToolResult | CallError, ended: float, heard: int) -> None:
    if isinstance(outcome, ToolResult):
        return  # its answer was on the way
    assert trio.current_time() == ended
    assert isinstance(outcome, (ConnectionLost, ServerDown))
    if heard:
        assert outcome.delivery == "unknown"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("end", ["crash", "stop"])
@pytest.mark.parametrize("tool", ["ask", "enter"])
def test_the_server_ends_at_every_step(tool: str, end: str, schedule: int) -> None:
    """R2, R3, R9, Q15."""
    assert sweep(lambda step: steadily(schedule, play, tool, end, step)) > 10
