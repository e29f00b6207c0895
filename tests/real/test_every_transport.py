"""Scenarios that are the same over every transport they can happen on; see test_fault_matrix.py for failures."""

import time

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import (
    CallTimeout,
    ConnectionLost,
    MemoryStore,
    NurseryError,
    RestartPolicy,
    open_supervisor,
)
from mcp_nursery.supervisor.errors import Delivery

from ..lab.processes import eventually, lab, outcome_of, status_of, supervised
from ..lab.rigs import ANY, CALL, open_rig
from ..lab.timely import in_time, timely

pytestmark = pytest.mark.slow

SPOKEN = ("stdio", "handshake", "modern", "sse", "ws")
POLICY = RestartPolicy(delays=[0.1] * 300)


@pytest.fixture
def rig_of(remotes, tmp_path):
    return lambda column, **options: open_rig(column, remotes, tmp_path, **options)


@pytest.mark.parametrize("column", [*SPOKEN, "json"])
async def test_a_burst_of_changes_is_one_listing_and_one_swap(rig_of, column):
    """Q24, P2: three tools more, each with a word of it; nobody sees one or two of them."""
    async with rig_of(column) as rig, supervised(rig.spec()) as supervisor, supervisor.events() as events:
        # A stream of changes is acknowledged after the first list, which is looked at once more then.
        before = 2 if column == "modern" else 1
        await eventually(lambda: rig.listed == before)
        await trio.testing.wait_all_tasks_blocked(0.2)
        names = {"alpha", "beta", "gamma"}
        await supervisor.call_tool("grow", {"names": sorted(names)}, server="lab")
        with trio.fail_after(60):
            async for event in events:
                if type(event).__name__ == "ToolsChanged":
                    break
        assert names < {tool.tool for tool in supervisor.tools}
        await trio.testing.wait_all_tasks_blocked(0.3)
        assert rig.listed == before + 1


@pytest.mark.parametrize("column", SPOKEN)
async def test_other_tools_after_a_restart(rig_of, column):
    """Q24, G13: the old ones stay visible until the new ones are there, all at once."""
    async with rig_of(column) as rig, supervised(rig.spec(policy=POLICY)) as supervisor:
        before = {tool.tool for tool in supervisor.tools}
        seen = set()

        async def watch(*, task_status):
            async with supervisor.events() as events:
                task_status.started()
                async for _ in events:
                    seen.add(frozenset(tool.tool for tool in supervisor.tools))

        async with trio.open_nursery() as nursery:
            await nursery.start(watch)
            await rig.changed(supervisor, "novelty")
            await eventually(lambda: "novelty" in {tool.tool for tool in supervisor.tools}, within=60)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert seen <= {frozenset(before), frozenset(before | {"novelty"})}
        assert not (await supervisor.call_tool("novelty", server="lab", when_down="wait")).is_error
        await rig.mend()


@pytest.mark.parametrize("column", [*SPOKEN, "in_process"])
async def test_an_idle_server_is_left_and_found_again(rig_of, column):
    """G8: whatever the connection is; what it was is closed, and the next call has another."""
    async with rig_of(column) as rig, supervised(rig.spec(stop_idle_after=0.3)) as supervisor:
        for incarnation in (2, 3):
            await eventually(lambda: status_of(supervisor).state == "idle")
            assert (await rig.call(supervisor, 0)).incarnation == incarnation


@pytest.mark.parametrize("column", ["handshake", "modern"])
async def test_a_deed_and_a_death(rig_of, column):
    """Q15, R2: the server acts, and dies before it answers; the caller is told, and nobody acts twice."""
    async with rig_of(column) as rig, supervised(rig.spec(policy=POLICY)) as supervisor:
        rig.remote.faults({**CALL, "act": True, "exit": 9})
        with pytest.raises(ConnectionLost) as caught:
            await supervisor.call_tool("commit", server="lab")
        assert caught.value.delivery is Delivery.UNKNOWN
        await trio.to_thread.run_sync(rig.remote.start)
        await supervisor.call_tool("look", server="lab", when_down="wait")
        assert rig.journal.count("commit") == 1


async def test_a_cancel_reaches_a_server_on_a_websocket(rig_of):
    """Q16, Q17: a scope, a deadline; see test_calls.py and test_remote_calls.py for the others."""
    async with rig_of("ws") as rig, supervised(rig.spec()) as supervisor:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rig.call, supervisor, 60)
                await trio.testing.wait_all_tasks_blocked()
                await rig.arrived(supervisor)
                scope.deadline = trio.current_time() + 0.1
        while True:
            with pytest.raises(CallTimeout) as caught:
                await rig.call(supervisor, 60, timeout=0.2)
            if caught.value.delivery is Delivery.UNKNOWN:
                break
        assert (await rig.call(supervisor, 0)).incarnation == 1
        await eventually(lambda: rig.journal.count("cancelled") == 2)


PROBES = {
    "mute": {"hang": 3600, "status": 200},
    "a page of HTML": {"status": 400},
    "not allowed": {"status": 405},
    "broken": {"status": 500},
    "an error that means something else": {"status": 200, "code": -32000, "message": "not yet"},
    "a session is missing": {"status": 400, "code": -32600, "message": "Bad Request: Missing session ID"},
    "no JSON": {"status": 200, "type": "application/json", "body": "no JSON"},
}


@pytest.mark.parametrize("answer", PROBES.values(), ids=PROBES)
@timely
async def test_every_way_to_meet_the_probe_over_http(rig_of, answer):
    """Q23: connected by `initialize` in the first attempt, and never asked again; see test_probes.py for stdio."""
    async with rig_of("handshake") as rig:
        rig.journal.clear()
        rig.remote.faults({"method": "server/discover", "times": 1000, **answer})
        began = time.monotonic()
        async with supervised(rig.spec(policy=RestartPolicy(delays=[])), state=MemoryStore()) as supervisor:
            in_time(time.monotonic() - began, 3)
            assert (status_of(supervisor).protocol_version, status_of(supervisor).attempt) == ("2025-11-25", 1)
            await supervisor.reconnect("lab")
        assert rig.journal.count("POST_server/discover") == 1


async def test_a_mute_probe_on_a_websocket(rig_of):
    """Q23."""
    async with rig_of("ws") as rig:
        await rig.restarted(probe="silent")
        async with supervised(rig.spec(policy=RestartPolicy(delays=[]))) as supervisor:
            assert status_of(supervisor).protocol_version == "2025-11-25"
            await supervisor.reconnect("lab")
        assert rig.journal.count("discover") == 1


@pytest.mark.parametrize("column", ["stdio", "handshake"])
@timely
async def test_a_deadline_is_kept_although_the_teardown_takes_its_time(rig_of, column):
    """Q13: the old connection takes seconds to close; who waits for the next one has 1 s."""
    ended = {}

    async def with_deadline(supervisor):
        with trio.move_on_after(1):
            await supervisor.call_tool("echo", server="lab", when_down="wait")
        ended["deadline"] = time.monotonic()

    async def with_timeout(supervisor):
        outcome, ended["timeout"] = await outcome_of(
            supervisor.call_tool("commit", server="lab", when_down="wait", timeout=1)
        )
        assert (type(outcome), outcome.delivery) == (CallTimeout, Delivery.NOT_SENT)

    async with rig_of(column) as rig:
        if column == "stdio":
            await rig.slow_to_close()
        async with supervised(rig.spec(), shutdown_timeout=4) as supervisor, trio.open_nursery() as nursery:
            if column != "stdio":
                await rig.slow_to_close()
            nursery.start_soon(outcome_of, supervisor.reconnect("lab"))
            await eventually(lambda: status_of(supervisor).state == "connecting")
            began = time.monotonic()
            async with trio.open_nursery() as callers:
                callers.start_soon(with_deadline, supervisor)
                callers.start_soon(with_timeout, supervisor)
            state = status_of(supervisor).state
            for way in ("deadline", "timeout"):
                assert ended[way] - began >= 1
                in_time(ended[way] - began, 1.3)
            assert state == "connecting"


async def test_three_failures_at_once_are_three_servers_affairs(remotes, rig_of):
    """Q4: a bad binary, a 401 and a kill mid-run in one supervisor: the others see no exception and no cancel."""
    remote = remotes("modern")
    remote.reset()
    results = []

    async def work(supervisor):
        for step in range(20):
            result = await supervisor.call_tool("sleep", {"seconds": 0.05, "label": str(step)}, server="good")
            results.append((result.full_text, result.incarnation))

    async with rig_of("stdio") as rig, rig_of("ws") as bad:
        await bad.refuses(None)
        remote.faults({**ANY, "status": 401})
        specs = [rig.spec(policy=POLICY), remote.spec("refusing"), lab("good"), lab("other")]
        specs += [bad.spec("gone", policy=POLICY)]
        with trio.fail_after(60):
            async with open_supervisor(specs) as supervisor, trio.open_nursery() as nursery:
                for name in ("lab", "good", "other"):
                    await supervisor.wait_connected(name)
                nursery.start_soon(work, supervisor)
                nursery.start_soon(outcome_of, rig.call(supervisor, 60))
                await trio.testing.wait_all_tasks_blocked()
                await rig.killed(supervisor)
                await supervisor.wait_connected("lab")
                with pytest.raises(NurseryError):
                    await supervisor.wait_connected("refusing")
            assert results == [(str(step), 1) for step in range(20)]
