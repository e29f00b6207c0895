"""A server behind a WebSocket: every way it fails is noticed, told truly and mended, as on the other wires."""

import math
import random
import time

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import CallTimeout, ConnectionLost, RestartPolicy, open_supervisor
from mcp_nursery.supervisor.errors import Delivery
from mcp_nursery.supervisor.status import ServerState

from ..lab.processes import next_state, outcome_of, status_of, supervised
from ..lab.timely import in_time, timely
from ..lab.websockets import at, lab_process

pytestmark = pytest.mark.slow

ONCE = RestartPolicy(delays=[])
BIG = {"text": "x" * (16 << 20)}
"""More than the kernel's buffers hold, so that its write begins and does not end."""


async def test_a_call_and_what_is_shown():
    async with lab_process() as lab, supervised(at(lab.url)) as supervisor:
        result = await supervisor.call_tool("echo", {"text": "ünï"}, server="lab")
        assert (result.full_text, result.incarnation) == ("ünï", 1)
        status = status_of(supervisor)
        assert (status.transport, status.pid, status.tool_count) == ("ws", None, 5)
        assert status.server_info["name"] == "websocket lab"


@timely
async def test_killed_while_idle():
    """L6: noticed within 0.5 s, started again 2 s after that; the next call works."""
    async with (
        lab_process() as lab,
        supervised(at(lab.url, policy=RestartPolicy())) as supervisor,
        supervisor.events() as events,
    ):
        killed = trio.current_time()
        lab.kill()
        lost = await next_state(events, ServerState.WAITING)
        assert lost.error == "the connection ended without a close frame"
        async with lab_process(port=lab.port):
            in_time(trio.current_time() - killed, 2)  # it is there when the supervisor tries again
            restarted = await next_state(events, ServerState.CONNECTING)
            assert restarted.at - killed >= 2
            assert lost.retry_in <= 2
            await next_state(events, ServerState.CONNECTED)
            result = await supervisor.call_tool("echo", {"text": "back"}, server="lab")
            assert (result.full_text, result.incarnation) == ("back", 2)
        in_time(lost.at - killed, 0.5)
        in_time(restarted.at - killed, 2.7)


@timely
async def test_killed_mid_call():
    """Q14, R3: every pending call learns of it in less than 0.1 s."""
    outcomes, done = [], trio.Event()

    async def call(supervisor):
        outcomes.append(await outcome_of(supervisor.call_tool("sleep", {"seconds": 60}, server="lab")))
        if len(outcomes) == 10:
            done.set()

    async with lab_process() as lab, supervised(at(lab.url)) as supervisor, trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(call, supervisor)
        await trio.testing.wait_all_tasks_blocked()
        assert await calls_at(supervisor) == 10
        killed = time.monotonic()
        lab.kill()
        await done.wait()
    assert len(outcomes) == 10
    for error, _ in outcomes:
        assert isinstance(error, ConnectionLost)
        assert error.delivery is Delivery.UNKNOWN
        assert error.incarnation == 1
    in_time(max(at_time for _, at_time in outcomes) - killed, 0.1)


async def calls_at(supervisor):
    """How many calls have come to the server before this one."""
    return int((await supervisor.call_tool("echo", server="lab")).full_text) - 1


async def test_a_side_effect_happens_once(journal):
    """Q15: the server commits and dies; nothing is sent again."""
    async with lab_process(journal=journal.path) as lab, supervised(at(lab.url)) as supervisor:
        with pytest.raises(ConnectionLost) as caught:
            await supervisor.call_tool("commit", server="lab")
        assert caught.value.delivery is Delivery.UNKNOWN
    assert journal.count("commit") == 1


@timely
async def test_frozen():
    """Q32, R4: a call's timeout holds; what was not begun was not sent; the close is bounded."""
    errors = []

    async def call(supervisor, arguments):
        began = trio.current_time()
        with pytest.raises(CallTimeout) as caught:
            await supervisor.call_tool("echo", arguments, server="lab", timeout=0.5)
        errors.append((caught.value.delivery, trio.current_time() - began))

    async with lab_process() as lab:
        async with supervised(at(lab.url), shutdown_timeout=1) as supervisor:
            lab.freeze()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, supervisor, BIG)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(call, supervisor, {"text": "small"})
            left = trio.current_time()
        in_time(trio.current_time() - left, 2.0)
    for _, took in errors:
        assert took >= 0.5
        in_time(took, 2.0)  # to mask the big one takes its time
    assert [delivery for delivery, _ in errors] == [Delivery.UNKNOWN, Delivery.NOT_SENT]


async def test_exits_at_start():
    async with lab_process(exit="yes") as lab, open_supervisor([at(lab.url, policy=ONCE)], gate=10) as supervisor:
        status = status_of(supervisor)
        assert status.state is ServerState.FAILED
        assert status.incarnation == 2  # once more, without the probe
        assert status.error.startswith("url ")


async def test_garbage_is_noise():
    """Q25: text, binary and empty frames that are no JSON."""
    async with lab_process() as lab, supervised(at(lab.url)) as supervisor:
        result = await supervisor.call_tool("babble", {"text": "after all that"}, server="lab")
        assert (result.full_text, result.incarnation) == ("after all that", 1)


async def test_a_thousand_calls_have_one_outcome_each():
    """R6, R10: answered, timed out or cancelled, in any order, and each answer is its own call's."""
    chance = random.Random(7)
    outcomes = {}
    at_once = trio.CapacityLimiter(200)

    async def call(supervisor, number):
        name, arguments = "echo", {"text": str(number)}
        if chance.random() < 0.5:
            name, arguments = "sleep", {"seconds": chance.random() * 0.05, "text": str(number)}
        timeout = chance.choice([None, None, chance.random() * 0.05])
        async with at_once:
            with trio.move_on_after(chance.choice([math.inf, math.inf, chance.random() * 0.05])) as scope:
                try:
                    outcome = (await supervisor.call_tool(name, arguments, server="lab", timeout=timeout)).full_text
                except CallTimeout:
                    outcome = "timeout"
            if scope.cancelled_caught:
                outcome = "cancelled"
        assert number not in outcomes
        outcomes[number] = outcome

    async with lab_process() as lab, supervised(at(lab.url, breaker=None), within=60) as supervisor:
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(call, supervisor, number)
        assert len(outcomes) == 1000
        assert all(outcome in (str(number), "timeout", "cancelled") for number, outcome in outcomes.items())
        assert set(outcomes.values()) >= {"timeout", "cancelled"}
        assert sum(outcome.isdigit() for outcome in outcomes.values()) > 300
        assert status_of(supervisor).calls.in_flight == 0
        assert (await supervisor.call_tool("echo", {"text": "fine"}, server="lab")).incarnation == 1
