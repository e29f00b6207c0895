"""Servers that nobody here wrote, each started at once and after 3 s: connected at the first attempt."""

import pytest
import trio

from mcp_nursery.supervisor import MemoryStore, ServerSpec, StdioTransport, open_supervisor

from . import installing
from .slow_starters import SLOW_STARTERS

pytestmark = pytest.mark.interop

DELAYS = (0, 3)
LATER = 'sleep "$1"; shift; exec "$@"'


@pytest.fixture(scope="module")
def slow_commands(place):
    """The command of each; skips where one cannot be installed, fails where it must."""
    with installing.needed_by_test("one of them"):
        return {starter.name: starter.command(place) for starter in SLOW_STARTERS}


def specs_of(starter, command):
    """It, once for every delay. A time of their own: 22 interpreters start on two cores."""
    for delay in DELAYS:
        transport = StdioTransport("sh", ["-c", LATER, "sh", str(delay), *command])
        yield ServerSpec(f"{starter.name}-{delay}", transport, connect_timeout=60)


async def use(supervisor, starter, delay, place, statuses):
    server = f"{starter.name}-{delay}"
    statuses[server] = await supervisor.wait_connected(server)
    assert starter.tool in {tool.tool for tool in supervisor.tools if tool.server == server}
    if starter.arguments is None:
        assert await supervisor.list_tools(server, refresh=True)
    else:
        result = await supervisor.call_tool(starter.tool, starter.arguments(place), server=server, timeout=60)
        assert starter.answer in result.full_text


@pytest.mark.night
async def test_started_late(slow_commands, place):
    """Q35, P7: connected, listed and answering, in the same era whenever it came."""
    specs = [spec for starter in SLOW_STARTERS for spec in specs_of(starter, slow_commands[starter.name])]
    statuses = {}
    with trio.fail_after(150):
        async with (
            open_supervisor(specs, state=MemoryStore(), roots=[place]) as supervisor,
            trio.open_nursery() as nursery,
        ):
            for starter in SLOW_STARTERS:
                for delay in DELAYS:
                    nursery.start_soon(use, supervisor, starter, delay, place, statuses)
    assert (
        {status.attempt for status in statuses.values()} == {status.incarnation for status in statuses.values()} == {1}
    )
    for starter in SLOW_STARTERS:
        versions = {statuses[f"{starter.name}-{delay}"].protocol_version for delay in DELAYS}
        assert len(versions) == 1, (starter.name, versions)
