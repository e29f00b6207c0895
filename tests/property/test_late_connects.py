"""The time to connect is over at every step of a start: the server is started again, whatever was under way."""

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import MemoryStore, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ..lab.scheduler import AtStep
from .test_cancellation import steadily

CONNECT = 1.0
"""Seconds to connect."""


async def start(step: int) -> bool:
    """One start whose time is over at that step; whether it was connected before."""
    server = ScriptedServer(Life(connects_after=0.5))
    spec = ServerSpec("lab", server.transport, connect_timeout=CONNECT, policy=RestartPolicy(delays=[0.5] * 5))
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    with AtStep(step, lambda: clock.jump(CONNECT)) as at_step:
        async with open_supervisor([spec], state=MemoryStore(), gate=0) as supervisor:
            assert await connected(supervisor), supervisor.status()[0]
    return not at_step.acted


async def connected(supervisor) -> bool:
    """Whether it comes to that, through the pause before a restart as well."""
    for _ in range(20):
        if supervisor.status()[0].state == "connected":
            return True
        await trio.sleep(0.5)
    return False


@pytest.mark.slow
def test_the_time_to_connect_is_over_at_any_step():
    """L4: told so in the step in which it had connected, its keeper was to start it again at the end of time."""
    step, is_over = 0, False
    while not is_over:
        is_over = steadily(0, start, step)
        step += 1
    assert step > 20
