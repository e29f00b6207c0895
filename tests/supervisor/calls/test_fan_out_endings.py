"""How a fan-out ends with its body, its readers and its supervisor, and one to every server that has a tool."""

import json

import pytest
import trio
import trio.testing

from mcp_nursery.actors import fairness
from mcp_nursery.actors.router import RouterActor
from mcp_nursery.supervisor import Call, CallTimeout, ConnectionLost, ServerDown, ServerSpec, open_supervisor
from mcp_nursery.supervisor.calls.fan_out import CallOutcome
from mcp_nursery.supervisor.errors import SupervisorClosed
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.callers import Peer
from ...lab.fan_outs import READ_ONLY, answers, collected, in_flight, lab, napping
from ...lab.specs import hang, spec

# -- broadcast ---------------------------------------------------------------------------------------------------------


async def heard_by(servers: dict[str, ScriptedServer]) -> list[str]:
    await trio.testing.wait_all_tasks_blocked()
    return [name for name, one in servers.items() for _ in one.calls]


async def test_broadcast(autojump_clock):
    """Every server that has the tool hears it once, whatever its public name is, and no other."""
    servers = {
        "a": lab(),
        "b": ScriptedServer(tools={"hang": hang}),
        "c": lab(),
        "stopped": lab(),
        "a server whose tools have hashes in their names, as its own is long": lab(),
    }
    async with open_supervisor([spec(one, name) for name, one in servers.items()]) as supervisor:
        await supervisor.stop_server("stopped")
        async with supervisor.broadcast("nap", {"for": 2}) as outcomes:
            seen = [outcome async for outcome in outcomes]
        assert trio.current_time() == 2
        assert await heard_by(servers) == ["a", "c", list(servers)[-1]]
        assert sorted(outcome.result.server for outcome in seen) == ["a", list(servers)[-1], "c"]
        assert {(outcome.call.name, outcome.call.arguments["for"]) for outcome in seen} == {("nap", 2)}


async def test_broadcast_options(autojump_clock):
    servers = {name: lab() for name in ("a", "b", "c")}
    async with open_supervisor([spec(one, name) for name, one in servers.items()]) as supervisor:
        async with supervisor.broadcast("nap", until="first") as outcomes:
            assert len([outcome async for outcome in outcomes]) == 1
        async with supervisor.broadcast("hang", timeout=2) as outcomes:
            errors = [outcome.error async for outcome in outcomes]
        assert [type(error) for error in errors] == [CallTimeout] * 3
        assert trio.current_time() == 3
        async with supervisor.broadcast("knit") as outcomes:
            assert [outcome async for outcome in outcomes] == []


async def test_broadcast_to_a_server_that_is_down(autojump_clock):
    """It is known to have the tool: its outcome is an error."""
    servers = {"frail": lab(Life(dies_after=1)), "good": lab()}
    async with open_supervisor([spec(one, name) for name, one in servers.items()]) as supervisor:
        await trio.sleep(2)
        async with supervisor.broadcast("nap") as outcomes:
            seen = [(outcome.call.server, type(outcome.error)) async for outcome in outcomes]
    assert seen == [("frail", ServerDown), ("good", type(None))]


# -- endings -----------------------------------------------------------------------------------------------------------


async def test_the_bodys_exception_comes_out_bare(autojump_clock):
    server = lab(Life(), Life(connects_after=5))
    async with open_supervisor([spec(server), spec(lab(Life(connects_after=9)), "late")], gate=0) as supervisor:
        await supervisor.wait_connected("lab")
        error = ValueError("the body's")

        async def body() -> None:
            async with supervisor.fan_out([Call("mcp_lab_hang"), Call("nap", server="late")]):
                await trio.sleep(1)
                raise error

        with pytest.raises(ValueError, match="the body's") as caught:
            await body()
        assert caught.value is error
        assert (trio.current_time(), in_flight(supervisor)) == (1, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert len(server.cancelled) == 1


async def test_a_cancelled_body(autojump_clock):
    server = lab()
    async with open_supervisor([spec(server)]) as supervisor:
        calls = [Call("mcp_lab_hang", timeout=50), Call("mcp_lab_hang", idle_timeout=50), Call("mcp_lab_nap")]
        with trio.move_on_after(2) as scope:
            await supervisor.gather(calls)
        assert scope.cancelled_caught
        assert (trio.current_time(), in_flight(supervisor)) == (2, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert len(server.cancelled) == 2


async def test_an_exception_while_the_body_is_cancelled_is_not_lost(autojump_clock):
    async with open_supervisor([spec(lab())]) as supervisor:

        async def body() -> None:
            async with supervisor.fan_out([Call("mcp_lab_hang", idle_timeout=50)]) as outcomes:
                try:
                    await anext(outcomes)
                finally:
                    raise ValueError("in cleaning up")

        with trio.move_on_after(1), pytest.raises(ValueError, match="in cleaning up"):
            await body()
        assert in_flight(supervisor) == 0


async def test_a_cancelled_reader_loses_no_outcome(autojump_clock):
    async with (
        open_supervisor([spec(lab())]) as supervisor,
        supervisor.fan_out([napping("lab", n) for n in (1, 2, 3)]) as outcomes,
    ):
        with trio.move_on_after(0.5):
            await anext(outcomes)
        assert [(trio.current_time(), one.index) async for one in outcomes] == [(1, 0), (2, 1), (3, 2)]


async def test_a_reader_cancelled_while_it_looks_at_a_large_result_loses_no_outcome(autojump_clock, monkeypatch):
    """The next reader gets it, ahead of those that came later."""
    monkeypatch.setattr(fairness, "_SLICE_SECONDS", 0)
    large = {"content": [{"type": "text", "text": "a word " * 100_000}]}
    peer = Peer(lambda peer, message: peer.answer(message, large))
    async with (
        open_supervisor([ServerSpec("lab", peer)]) as supervisor,
        supervisor.fan_out([Call("mcp_lab_work")] * 3) as outcomes,
    ):
        await trio.testing.wait_all_tasks_blocked()
        assert len(outcomes._sending.arrived) == 3
        async with trio.open_nursery() as nursery:
            nursery.start_soon(anext, outcomes)
            while len(outcomes._sending.arrived) == 3:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        with trio.fail_after(1000):
            assert [(one.index, one.ok) async for one in outcomes] == [(0, True), (1, True), (2, True)]


async def test_the_supervisor_closes_during_a_fan_out(autojump_clock):
    """Every call gets its outcome, and none of them is sent anywhere again."""
    server = ScriptedServer(tools={"look": hang}, annotations={"look": READ_ONLY})
    late = lab(Life(connects_after=9))
    outcomes: list[CallOutcome] = []

    async with (
        trio.open_nursery() as nursery,
        open_supervisor([spec(server, max_in_flight=2), spec(late, "late")], gate=0) as supervisor,
    ):
        await supervisor.wait_connected("lab")

        async def host() -> None:
            calls = [*[Call("mcp_lab_look")] * 3, Call("mcp_lab_look", idle_timeout=99), Call("nap", server="late")]
            outcomes.extend(await collected(supervisor, calls))

        nursery.start_soon(host)
        await trio.sleep(1)
    assert sorted(one.index for one in outcomes) == [0, 1, 2, 3, 4]
    assert {one.duration for one in outcomes} == {1}
    kinds = [type(one) for one in answers(outcomes)]
    assert kinds == [ConnectionLost] * 4 + [SupervisorClosed]
    assert in_flight(supervisor) == 0
    assert len(server.calls) == 2
    with pytest.raises(SupervisorClosed):
        supervisor.fan_out([])


async def test_the_supervisor_closes_before_a_fan_out_is_entered(autojump_clock):
    async with open_supervisor([spec(lab())]) as supervisor:
        late = supervisor.fan_out([Call("mcp_lab_nap"), Call("mcp_lab_nap", idle_timeout=1)])
    async with late as outcomes:
        assert [type(one.error) async for one in outcomes] == [SupervisorClosed] * 2


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_router_that_has_ended_is_the_outcome_of_each_call(autojump_clock, monkeypatch, limit):
    """As it is when it ends with calls in its mailbox: nothing is raised, and nothing in a group."""
    ended = RouterActor()
    with trio.CancelScope() as scope:
        scope.cancel()
        await ended.run()
    async with open_supervisor([spec(lab())]) as supervisor:
        monkeypatch.setattr(supervisor._servers, "router", ended)
        outcomes = await collected(supervisor, [napping("lab", 1)] * 3, limit=limit)
        assert [type(one.error) for one in outcomes] == [SupervisorClosed] * 3
        assert in_flight(supervisor) == 0


async def test_two_fan_outs_at_once(autojump_clock):
    servers = [ScriptedServer() for _ in range(3)]
    async with open_supervisor([spec(one, f"s{n}") for n, one in enumerate(servers)]) as supervisor:
        texts: dict[str, list[object]] = {}

        async def host(name: str) -> None:
            calls = [Call("echo", {"who": name, "n": n}, server=f"s{n % 3}") for n in range(30)]
            texts[name] = [json.loads(result.full_text) for result in await supervisor.gather(calls)]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(host, "ann")
            nursery.start_soon(host, "bob")
        assert texts == {name: [{"who": name, "n": n} for n in range(30)] for name in ("ann", "bob")}


async def test_one_fan_out_left_and_another_not(autojump_clock):
    server = lab()
    async with open_supervisor([spec(server)]) as supervisor:
        async with supervisor.fan_out([Call("mcp_lab_nap")] * 3) as kept:
            async with supervisor.fan_out([Call("mcp_lab_nap")] * 2):
                await trio.testing.wait_all_tasks_blocked()
            assert [(one.duration, one.ok) async for one in kept] == [(1, True)] * 3
        assert len(server.cancelled) == 2
