"""How many calls one server may have at once, and what they cost."""

import gc
import json
import tracemalloc
from collections import Counter
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from mcp_nursery.actors.errors import ServerBusy
from mcp_nursery.supervisor import NurseryError, ServerSpec, open_supervisor
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.callers import Peer, nap, nothing, outcome_of
from ...lab.specs import hang, spec


async def test_in_flight_and_mailbox(autojump_clock):
    """R10: so many in flight, so many waiting, then `ServerBusy`; nothing of it was sent."""
    server = ScriptedServer(tools={"hang": hang, "echo": nothing})
    async with open_supervisor([spec(server, max_in_flight=3, mailbox_size=2)]) as supervisor:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(supervisor.call_tool, "mcp_lab_hang")
                await trio.testing.wait_all_tasks_blocked()
            assert len(server.calls) == 3
            for _ in range(3):
                with pytest.raises(ServerBusy) as caught:
                    await supervisor.call_tool("mcp_lab_echo")
                assert (caught.value.delivery, caught.value.server, caught.value.tool) == ("not_sent", "lab", "echo")
            assert supervisor.status()[0].calls.in_flight == 5
            nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert (await supervisor.call_tool("mcp_lab_echo")).full_text == "done"


async def test_the_default_limits(autojump_clock):
    """R10: 256 and 256."""
    server = ScriptedServer(tools={"hang": hang})
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:
        for _ in range(512):
            nursery.start_soon(supervisor.call_tool, "mcp_lab_hang")
            await trio.testing.wait_all_tasks_blocked()
        assert len(server.calls) == 256
        with pytest.raises(ServerBusy):
            await supervisor.call_tool("mcp_lab_hang")
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [False, True], ids=["quiet", "lazy"])
async def test_a_thousand_callers_in_one_tick(autojump_clock, lazy):
    """R10: 1000 callers of 10 idle servers all get through; each server was started once."""
    servers = [ScriptedServer() for _ in range(10)]
    done = 0
    async with open_supervisor([spec(one, f"s{n}", lazy=lazy) for n, one in enumerate(servers)]) as supervisor:

        async def call(n: int):
            nonlocal done
            result = await supervisor.call_tool("echo", {"n": n}, server=f"s{n % 10}")
            assert json.loads(result.full_text) == {"n": n}
            done += 1

        async with trio.open_nursery() as nursery:
            for n in range(1000):
                nursery.start_soon(call, n)
        assert supervisor.statistics().calls.done == done == 1000
        assert [len(one.starts) for one in servers] == [1] * 10


async def test_a_quiet_server_takes_what_it_has_room_for_in_one_tick(autojump_clock):
    """R10: 512 callers of one quiet server in one tick fit: 256 in flight and 256 that wait."""
    outcomes: Counter[str] = Counter()
    async with open_supervisor([spec(ScriptedServer(tools={"nap": nap}))]) as supervisor:

        async def call():
            outcome = await outcome_of(partial(supervisor.call_tool, "mcp_lab_nap"))
            outcomes[type(outcome).__name__] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(512):
                nursery.start_soon(call)
    assert outcomes == {"ToolResult": 512}


async def test_a_stalled_server_stalls_nobody_else(autojump_clock):
    """R10, Q19: 1000 calls of a stalled server: what is too much is busy at once; another is as fast as before."""
    stalled, good = ScriptedServer(Life(deaf_after=2)), ScriptedServer(tools={"nap": nap})
    outcomes: Counter[tuple[float, str]] = Counter()
    async with open_supervisor([spec(stalled, "stalled"), spec(good, "good")]) as supervisor:

        async def call():
            outcome = await outcome_of(partial(supervisor.call_tool, "mcp_stalled_echo", timeout=50))
            outcomes[trio.current_time(), type(outcome).__name__] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(call)
            await trio.sleep(1)
            for _ in range(5):
                assert (await supervisor.call_tool("mcp_good_nap")).duration == 1
        assert outcomes.keys() == {(0, "ServerBusy"), (50, "CallTimeout")}
        assert outcomes[0, "ServerBusy"] >= 1000 - 512
        assert good.cancelled == []
        assert len(good.calls) == 5


async def test_no_head_of_line(autojump_clock):
    """Q19: five calls of half a second take half a second."""
    async with open_supervisor([spec(ScriptedServer(tools={"nap": nap}))]) as supervisor:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(supervisor.call_tool, "mcp_lab_nap", {"for": 0.5})
        assert trio.current_time() == 0.5


@pytest.mark.slow
async def test_nothing_of_a_call_is_kept_by_an_idle_server():
    """Q31: what a caller has let go of is gone, however large it was: arguments, frame and result."""
    large = "x" * (8 << 20)

    def answer(peer: Peer, message: dict[str, Any]) -> None:
        peer.received.clear()
        peer.answer(message, {"content": [{"type": "text", "text": large}]})

    async with open_supervisor([ServerSpec("peer", Peer(answer))]) as supervisor:
        await supervisor.call_tool("mcp_peer_work", {"size": large}, timeout=30)
        gc.collect()
        tracemalloc.start()
        try:
            await supervisor.call_tool("mcp_peer_work", {"size": large}, timeout=30)
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 1 << 20
        finally:
            tracemalloc.stop()


async def test_calls_that_fail_at_once_hold_up_nobody(autojump_clock):
    """R4: a host that tries again without a pause leaves everybody else their turns."""
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with open_supervisor([spec(ScriptedServer(tools={"echo": nothing}))]) as supervisor:
        await supervisor.stop_server("lab")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            for name in ("mcp_lab_echo", "mcp_lab_nothing") * 10:
                with pytest.raises(NurseryError):
                    await supervisor.call_tool(name, when_down="fail")
            nursery.cancel_scope.cancel()
    assert turns >= 19
