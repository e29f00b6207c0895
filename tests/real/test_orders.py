"""Orders from any task, in any order, at any moment; and nothing to do is nothing done."""

import time

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import ConnectionLost, ServerDown, open_supervisor
from mcp_nursery.supervisor.status import ServerState

from ..lab.processes import eventually, is_alive, lab, next_state, outcome_of, status_of, supervised
from ..lab.timely import in_time, timely


async def test_servers_stop_in_any_order(journal):
    """Q30: each from a task of its own, out of the order they were started in; the rest work on."""
    names = ["a", "b", "c", "d", "e"]
    async with supervised(*(lab(name) for name in names)) as supervisor:
        pids = {status.name: status.pid for status in supervisor.status()}
        async with trio.open_nursery() as nursery:
            for name in ("c", "a"):
                nursery.start_soon(supervisor.stop_server, name)
        for name in ("b", "d", "e"):
            assert (await supervisor.call_tool("echo", {"text": name}, server=name)).full_text == name
        await supervisor.remove_server("e")
        await supervisor.stop_server("b")
        assert [name for name, pid in pids.items() if is_alive(pid)] == ["d"]
        await supervisor.start_server("c")
        await supervisor.wait_connected("c")
        assert (await supervisor.call_tool("echo", {"text": "c"}, server="c")).full_text == "c"
        states = {status.name: status.state for status in supervisor.status()}
        stopped, connected = ServerState.STOPPED, ServerState.CONNECTED
        assert states == {"a": stopped, "b": stopped, "c": connected, "d": connected}


@pytest.mark.parametrize("flags", [{"mute": "yes"}, {"probe": "silent"}], ids=["mute", "silent at the probe"])
@timely
async def test_a_stop_in_the_middle_of_a_handshake(flags, journal):
    """Q30, L9: from another task; no error, no restart, and whoever waited for it is told."""
    outcomes = []
    journal.clear()

    async def wait(supervisor):
        outcomes.append((await outcome_of(supervisor.wait_connected("lab")))[0])

    began = time.monotonic()
    with trio.fail_after(60):
        async with open_supervisor([lab(journal=journal, flags=flags)], gate=0) as supervisor:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, supervisor)
                await eventually(lambda: journal.count("start"))
                pid = status_of(supervisor).pid
                in_time(time.monotonic() - began, 1)  # then it is initialized without an answer to the probe
                await supervisor.stop_server("lab")
            assert status_of(supervisor).state is ServerState.STOPPED
            assert pid is not None
            assert not is_alive(pid)
    assert [type(outcome) for outcome in outcomes] == [ServerDown]
    assert journal.count("start") == 1


async def test_a_stop_in_the_middle_of_a_call(journal):
    """Q30, L9: the caller is told that the server may have acted; nothing is restarted."""
    outcomes = []

    async def call(supervisor):
        outcomes.append((await outcome_of(supervisor.call_tool("sleep", {"seconds": 60}, server="lab")))[0])

    async with supervised(lab(journal=journal)) as supervisor:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, supervisor)
            await trio.testing.wait_all_tasks_blocked()
            await supervisor.stop_server("lab")
        assert [type(outcome) for outcome in outcomes] == [ConnectionLost]
        assert outcomes[0].delivery == "unknown"
        with pytest.raises(ServerDown):
            await supervisor.call_tool("echo", server="lab")
    assert journal.count("start") == 1


async def test_orders_that_cross_each_other(journal):
    """Q30, L8: fifty reconnects are one start; a stop after them has the last word."""
    async with supervised(lab(journal=journal)) as supervisor:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(supervisor.reconnect, "lab")
        assert journal.count("start") == 2
        async with trio.open_nursery() as nursery, supervisor.events() as events:
            nursery.start_soon(outcome_of, supervisor.reconnect("lab"))
            await next_state(events, ServerState.CONNECTING)
            nursery.start_soon(supervisor.stop_server, "lab")
        assert status_of(supervisor).state is ServerState.STOPPED


@pytest.mark.slow
async def test_idle_servers_cost_nothing():
    """Q30: less than 0.1 s of processor time in a second for five of them."""
    async with supervised(*(lab(f"s{number}") for number in range(5))) as supervisor:
        await trio.testing.wait_all_tasks_blocked()
        used = time.process_time()
        await trio.sleep(1)  # the time is what is measured
        assert time.process_time() - used < 0.1
        assert all(status.state is ServerState.CONNECTED for status in supervisor.status())


@pytest.mark.slow
async def test_servers_that_were_lost_cost_nothing_either():
    """Q30: while one waits for its restart, another has failed and a third was stopped."""
    specs = [lab("waits", policy=None), lab("fails", policy=None, restart="temporary"), lab("stops", policy=None)]
    async with supervised(*specs) as supervisor:
        for name in ("waits", "fails"):
            with pytest.raises(ConnectionLost):
                await supervisor.call_tool("crash", server=name)
        await supervisor.stop_server("stops")
        used = time.process_time()
        await trio.sleep(1)  # the time is what is measured
        assert time.process_time() - used < 0.1
        states = [status.state for status in supervisor.status()]
        assert states == [ServerState.WAITING, ServerState.FAILED, ServerState.STOPPED]
