"""G11 with real servers: what hangs, or says 500, is called no more, and one call finds out that it is well again."""

from collections import Counter

import pytest
import trio

from mcp_nursery.actors.errors import ConnectionLost
from mcp_nursery.supervisor import Call, open_supervisor
from mcp_nursery.supervisor.events import BreakerChanged
from mcp_nursery.supervisor.spec import CircuitBreaker

from ..lab.processes import outcome_of, status_of
from ..lab.rigs import open_rig
from .fault_matrix import COLUMNS

pytestmark = pytest.mark.slow

SOON = CircuitBreaker(failures=3, open_for=1)
LATER = CircuitBreaker(failures=3, open_for=300)


def opened(rig):
    return open_supervisor([rig.spec(breaker=LATER, liveness=None)], gate=30)


async def next_breaker(events, state):
    async for event in events:
        if isinstance(event, BreakerChanged) and event.state == state:
            return


async def fifty(rig, supervisor, seconds, timeout):
    """How fifty callers fare who come at the same time."""
    outcomes = Counter()

    async def caller():
        outcome, _ = await outcome_of(rig.call(supervisor, seconds, timeout=timeout))
        outcomes[type(outcome).__name__] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(caller)
    return outcomes


@pytest.mark.parametrize("column", COLUMNS)
async def test_a_hung_server(column, remotes, tmp_path):
    """Fifty callers and one probe, twice: while it hangs still, and when it is well again."""
    with trio.fail_after(60):
        async with open_rig(column, remotes, tmp_path) as rig:
            spec = rig.spec(breaker=SOON, liveness=None)
            async with open_supervisor([spec], gate=30) as supervisor, supervisor.events() as events:
                await rig.frozen(supervisor)
                outcomes = await supervisor.gather([Call(rig.slow, {"seconds": 60}, server="lab", timeout=1)] * 20)
                assert Counter(type(one).__name__ for one in outcomes) == {"CallTimeout": 20}
                await next_breaker(events, "open")

                outcomes = await fifty(rig, supervisor, 60, 30)
                assert outcomes == {"BreakerOpen": 50}

                await trio.sleep(status_of(supervisor).breaker.retry_in)
                assert await fifty(rig, supervisor, 60, 1) == {"BreakerOpen": 49, "CallTimeout": 1}
                assert status_of(supervisor).breaker.failures == 4

                await rig.mend()
                await trio.sleep(status_of(supervisor).breaker.retry_in)
                outcomes = await fifty(rig, supervisor, 0, 30)
                assert outcomes == {"BreakerOpen": 49, "ToolResult": 1}
                assert await fifty(rig, supervisor, 0, 30) == {"ToolResult": 50}
                assert status_of(supervisor).incarnation == 1


@pytest.mark.parametrize("status", [500, 503])
@pytest.mark.parametrize("column", ["handshake", "modern", "sse"])
async def test_a_server_of_errors(column, status, remotes, tmp_path):
    """HTTP statuses of 500 and more open it; the server hears nothing then, until it is reconnected."""
    with trio.fail_after(60):
        async with open_rig(column, remotes, tmp_path) as rig, opened(rig) as supervisor:
            rig.remote.faults({"method": "tools/call", "times": 1000, "status": status})
            outcomes = [await outcome_of(rig.call(supervisor, 0)) for _ in range(3)]
            assert [(type(one).__name__, one.code) for one, _ in outcomes] == [("ServerError", status)] * 3
            asked = rig.journal.count("POST_tools/call")
            assert await fifty(rig, supervisor, 0, 30) == {"BreakerOpen": 50}
            assert rig.journal.count("POST_tools/call") == asked

            await rig.mend()
            await supervisor.reconnect("lab")
            assert await fifty(rig, supervisor, 0, 30) == {"ToolResult": 50}


@pytest.mark.parametrize("status", [400, 404, 429])
async def test_a_server_that_refuses(status, remotes, tmp_path):
    """What blames the call opens nothing."""
    async with open_rig("modern", remotes, tmp_path) as rig, opened(rig) as supervisor:
        rig.remote.faults({"method": "tools/call", "times": 1000, "status": status})
        outcomes = [await outcome_of(rig.call(supervisor, 0)) for _ in range(6)]
        assert [(type(one).__name__, one.code) for one, _ in outcomes] == [("ServerError", status)] * 6


async def test_exchanges_that_break(remotes, tmp_path):
    """Each of these calls is lost, and the connection goes on."""
    fault = {"status": 200, "type": "application/json", "cut": 9, "body": "{"}
    async with open_rig("modern", remotes, tmp_path) as rig, opened(rig) as supervisor:
        rig.remote.faults({"method": "tools/call", "times": 1000, **fault})
        outcomes = [await outcome_of(rig.call(supervisor, 0)) for _ in range(4)]
        assert [type(one).__name__ for one, _ in outcomes] == [*["ConnectionLost"] * 3, "BreakerOpen"]
        assert status_of(supervisor).state == "connected"


async def test_a_call_that_finds_it_open_when_it_is_sent_again_raises_what_became_of_it(remotes, tmp_path):
    """R2: whether its server has acted counts for more than that nobody asks that any more."""
    fault = {"status": 200, "type": "application/json", "cut": 9, "body": "{"}
    async with open_rig("modern", remotes, tmp_path) as rig:
        spec = rig.spec(breaker=CircuitBreaker(failures=1, open_for=300), liveness=None)
        async with open_supervisor([spec], gate=30) as supervisor:
            rig.remote.faults({"method": "tools/call", "times": 1000, **fault})
            with pytest.raises(ConnectionLost) as caught:
                await supervisor.call_tool(rig.slow, {"seconds": 0}, server="lab", resend="always")
            assert caught.value.delivery == "unknown"
            assert status_of(supervisor).breaker.state == "open"
            assert rig.journal.count("POST_tools/call") == 1
