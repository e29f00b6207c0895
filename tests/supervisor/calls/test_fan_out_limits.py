"""Many calls at once: how many may be under way, for how long, and what they cost."""

import json
import math
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from mcp_nursery.actors.mailbox import Mailbox
from mcp_nursery.actors.messages import Owner, Request
from mcp_nursery.actors.outcomes import Unrouted
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.router import RouterActor
from mcp_nursery.supervisor import (
    Call,
    CallTimeout,
    ServerBusy,
    ServerDown,
    ServerSpec,
    ToolResult,
    UnknownTool,
    open_supervisor,
)
from mcp_nursery.supervisor.status import CallCounts
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.callers import TEXT, Peer, ticking
from ...lab.fan_outs import READ_ONLY, answers, collected, in_flight, lab, napping, timed
from ...lab.specs import hang, spec
from ...lab.tool_requests import tool_request

# -- a limit -----------------------------------------------------------------------------------------------------------


async def test_a_limit_holds_calls_back_until_others_have_finished(autojump_clock):
    calls = [napping("lab", seconds) for seconds in (3, 1, 1, 1, 2)]
    async with open_supervisor([spec(lab())]) as supervisor:
        assert sorted(await timed(supervisor, calls, limit=2)) == [(1, 1), (2, 2), (3, 0), (3, 3), (5, 4)]


async def test_a_limited_fan_out_goes_on_though_nobody_reads(autojump_clock):
    server = lab()
    calls = [napping("lab", 1) for _ in range(10)]
    async with open_supervisor([spec(server)]) as supervisor, supervisor.fan_out(calls, limit=3) as outcomes:
        await trio.sleep(0.5)
        assert len(server.calls) == 3
        await trio.sleep(4)
        assert len(server.calls) == 10
        assert [one.duration async for one in outcomes] == [1] * 10


async def test_a_calls_time_begins_when_it_does(autojump_clock):
    """R4: a call that is held back loses nothing of its timeout."""
    calls = [napping("lab", 4), Call("mcp_lab_hang", timeout=2), napping("lab", 1, timeout=1.5)]
    async with open_supervisor([spec(lab())]) as supervisor:
        assert await timed(supervisor, calls, limit=1) == [(4, 0), (6, 1), (7, 2)]


async def test_calls_in_tasks_and_calls_that_cannot_be_made_count_too(autojump_clock):
    async def ignore(*report) -> None:
        pass

    calls = [
        napping("lab", 2, on_progress=ignore),
        *[Call("mcp_lab_knit")] * 50,
        napping("lab", 2),
        Call("nap", server="lap"),
        napping("lab", 1),
    ]
    async with open_supervisor([spec(lab())]) as supervisor:
        async with supervisor.fan_out(calls, limit=1) as outcomes:
            seen = [(trio.current_time(), outcome.index, outcome.ok) async for outcome in outcomes]
        assert in_flight(supervisor) == 0
    refused = [(2, index, False) for index in range(1, 51)]
    assert seen == [(2, 0, True), *refused, (4, 51, True), (4, 52, False), (5, 53, True)]


async def test_leaving_a_limited_fan_out_begins_nothing_more(autojump_clock):
    server = lab()
    async with open_supervisor([spec(server)]) as supervisor:
        async with supervisor.fan_out([napping("lab", 1) for _ in range(10)], limit=2) as outcomes:
            first = await anext(outcomes)
        assert first.ok
        await trio.sleep(50)
        assert supervisor.status()[0].calls.in_flight == 0
        assert supervisor.status()[0].calls.done + supervisor.status()[0].calls.failed <= 4


@pytest.mark.parametrize("attempt", range(20))
async def test_a_dead_server_stops_no_limited_fan_out(autojump_clock, attempt):
    """Whether a refused call is over before the next is waited for is up to the schedule: hence many attempts."""
    calls = [napping(name, 1, timeout=5) for name in ("dead", *"abcdefghi")]
    async with open_supervisor([spec(lab(), name) for name in ("dead", *"abcdefghi")]) as supervisor:
        await supervisor.stop_server("dead")
        with trio.fail_after(50):
            dead, *alive = await supervisor.gather(calls, limit=1)
        assert isinstance(dead, (ServerDown, UnknownTool))
        assert [one.full_text for one in alive] == ["rested"] * 9


async def test_until_ends_a_limited_fan_out(autojump_clock):
    async with open_supervisor([spec(lab())]) as supervisor:
        outcomes = await collected(supervisor, [napping("lab", 1) for _ in range(10)], limit=2, until=3)
        assert len(outcomes) == 3
        assert trio.current_time() == 2


async def test_gather_and_broadcast_take_a_limit(autojump_clock):
    async with open_supervisor([spec(lab(), name) for name in "abc"]) as supervisor:
        assert all(one.full_text == "rested" for one in await supervisor.gather([napping("a", 1)] * 3, limit=1))
        assert trio.current_time() == 3
        async with supervisor.broadcast("nap", {"for": 1}, limit=1) as outcomes:
            assert [outcome.result.server async for outcome in outcomes] == ["a", "b", "c"]
        assert trio.current_time() == 6


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_that_lets_nothing_through_is_refused(limit):
    async with open_supervisor([]) as supervisor:
        with pytest.raises(ValueError, match=f"limit must be a number of calls >= 1, not {limit}"):
            await collected(supervisor, [], limit=limit)


async def test_the_timeout_includes_what_was_lost(autojump_clock):
    frail = ScriptedServer(Life(dies_after=1), Life(), annotations={"look": READ_ONLY})
    frail.tools = {"look": hang}
    async with open_supervisor([spec(frail)]) as supervisor:
        [error] = await supervisor.gather([Call("mcp_lab_look", timeout=4)])
        assert (trio.current_time(), len(frail.calls)) == (4, 2)
    assert isinstance(error, CallTimeout)
    assert (error.timeout, error.delivery, error.incarnation) == (4, "unknown", 2)


async def test_leaving_while_a_call_is_about_to_be_sent_again(autojump_clock):
    frail = ScriptedServer(Life(dies_after=1), Life(), annotations={"look": READ_ONLY}, tools={"look": hang})
    async with open_supervisor([spec(frail)]) as supervisor:
        with trio.move_on_after(2):
            await supervisor.gather([Call("mcp_lab_look")])
        assert supervisor.status()[0].calls == CallCounts(in_flight=0, failed=1)
        await trio.sleep(10)
        assert len(frail.calls) == 1


# -- time --------------------------------------------------------------------------------------------------------------


async def test_each_call_has_its_own_timeout(autojump_clock):
    server = lab()
    limits = [3, 1, 2.5, math.inf, 1]
    calls = [Call("mcp_lab_hang", timeout=limit) for limit in limits[:3]]
    calls += [napping("lab", 4, timeout=math.inf), napping("lab", 0.5, timeout=1)]
    async with open_supervisor([spec(server)]) as supervisor:
        outcomes = await collected(supervisor, calls)
        assert [(one.duration, one.index) for one in outcomes] == [(0.5, 4), (1, 1), (2.5, 2), (3, 0), (4, 3)]
        late = [outcome.error for outcome in outcomes if outcome.error is not None]
        assert all(isinstance(error, CallTimeout) for error in late)
        assert [error.timeout for error in late] == [1, 2.5, 3]
        assert {error.delivery for error in late} == {"unknown"}
        assert len(server.cancelled) == 3
        assert supervisor.status()[0].calls == CallCounts(in_flight=0, done=2, failed=3)


async def test_calls_on_the_wire_cost_no_task_and_neither_do_their_timeouts(autojump_clock):
    specs = [ServerSpec(f"p{n}", Peer(lambda peer, message: None)) for n in range(3)]
    calls = [Call("work", server=f"p{n % 3}", timeout=n + 1) for n in range(30)]
    async with open_supervisor(specs) as supervisor:
        before = trio.lowlevel.current_statistics().tasks_living
        async with supervisor.fan_out([Call(one.name, server=one.server) for one in calls]):
            await trio.testing.wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().tasks_living == before
        async with supervisor.fan_out(calls) as outcomes:
            await trio.testing.wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().tasks_living == before
            assert [(trio.current_time(), one.index) async for one in outcomes] == [(n + 1, n) for n in range(30)]


async def test_the_servers_timeout_is_the_default(autojump_clock):
    calls = [Call("mcp_lab_hang"), Call("mcp_lab_hang", timeout=1), napping("lab", 5, timeout=math.inf)]
    async with open_supervisor([spec(lab(), call_timeout=3)]) as supervisor:
        outcomes = await collected(supervisor, calls)
    assert [(one.duration, one.index) for one in outcomes] == [(1, 1), (3, 0), (5, 2)]


async def test_no_time_at_all(autojump_clock):
    """As with one call: nothing is sent."""
    server = lab()
    async with open_supervisor([spec(server)]) as supervisor:
        [error] = await supervisor.gather([Call("mcp_lab_nap", timeout=0)])
        assert (trio.current_time(), server.calls) == (0, [])
    assert isinstance(error, CallTimeout)
    assert error.delivery == "not_sent"


@pytest.mark.parametrize("name", ["mcp_lab_nap", "mcp_lab_knit"])
async def test_a_bad_timeout(autojump_clock, name):
    """It is the host's mistake, not an outcome: raised bare, before anything is sent."""
    server = lab()
    async with open_supervisor([spec(server)]) as supervisor:
        with pytest.raises(ValueError, match="-1"):
            await supervisor.gather([Call("mcp_lab_nap"), Call(name, timeout=-1)])
        await trio.testing.wait_all_tasks_blocked()
        assert (server.calls, in_flight(supervisor)) == ([], 0)


async def test_progress_and_idle_timeouts(autojump_clock):
    reports: list[tuple[float, float]] = []

    async def note(progress, total, message) -> None:
        reports.append((trio.current_time(), progress))

    specs = [
        ServerSpec("works", ticking([1, 2], end=3)),
        ServerSpec("stalls", ticking([1, 2], end=None)),
        spec(lab()),
    ]
    calls = [
        Call("mcp_works_work", on_progress=note),
        Call("mcp_stalls_work", idle_timeout=4),
        Call("mcp_works_work", idle_timeout=2),
        Call("mcp_stalls_work", on_progress=unwanted_after(2), timeout=5),
        Call("mcp_lab_nap"),
    ]
    async with open_supervisor(specs) as supervisor:
        outcomes = await collected(supervisor, calls)
        assert in_flight(supervisor) == 0
    assert [one.duration for one in sorted(outcomes, key=lambda one: one.index)] == [3, 6, 3, 5, 1]
    assert reports == [(1, 0), (2, 1)]
    assert [type(one) for one in answers(outcomes)] == [ToolResult, CallTimeout, ToolResult, CallTimeout, ToolResult]
    assert "no progress for 4 s" in str(answers(outcomes)[1])


def unwanted_after(count: int) -> Callable[..., Any]:
    left = [None] * count

    async def note(progress, total, message) -> None:
        left.pop()

    return note


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_thousand_calls_of_twenty_servers(autojump_clock):
    servers = [ScriptedServer() for _ in range(20)]
    async with open_supervisor([spec(one, f"s{n}") for n, one in enumerate(servers)]) as supervisor:
        calls = [Call("echo", {"n": n}, server=f"s{n % 20}") for n in range(1000)]
        results = await supervisor.gather(calls)
        assert trio.current_time() == 0
        assert [json.loads(result.full_text) for result in results] == [{"n": n} for n in range(1000)]
        assert supervisor.statistics().calls == CallCounts(in_flight=0, done=1000)
        assert [len(one.calls) for one in servers] == [50] * 20


@pytest.mark.parametrize("calls", [256, 257, 384, 512])
async def test_one_server_takes_what_it_has_room_for(autojump_clock, calls):
    """256 in flight and 256 that wait."""
    async with open_supervisor([spec(lab())]) as supervisor:
        results = await supervisor.gather([Call("mcp_lab_nap")] * calls)
    assert Counter(type(one) for one in results) == {ToolResult: calls}


async def test_beyond_its_room_a_server_is_busy(autojump_clock):
    """The rest, and only the rest, is refused at once; another server's calls are none of it."""
    seen: Counter[tuple[float, str | None, str]] = Counter()
    async with open_supervisor([spec(lab()), spec(lab(), "other")]) as supervisor:
        calls = [*[napping("lab", 3)] * 1000, *[napping("other", 1)] * 100]
        async with supervisor.fan_out(calls) as outcomes:
            async for one in outcomes:
                seen[trio.current_time(), one.call.server, type(one.result or one.error).__name__] += 1
        by_server = {status.name: status.calls for status in supervisor.status()}
    assert seen == {
        (0, "lab", "ServerBusy"): 488,
        (1, "other", "ToolResult"): 100,
        (3, "lab", "ToolResult"): 256,
        (6, "lab", "ToolResult"): 256,
    }
    assert by_server["lab"] == CallCounts(in_flight=0, done=512, failed=488)


async def test_busy_is_not_sent(autojump_clock):
    server = lab()
    async with open_supervisor([spec(server, max_in_flight=1, mailbox_size=1)]) as supervisor:
        results = await supervisor.gather([Call("mcp_lab_nap")] * 9)
    busy = [one for one in results if isinstance(one, ServerBusy)]
    assert {(one.delivery, one.server, one.tool) for one in busy} == {("not_sent", "lab", "nap")}
    assert len(busy) + len(server.calls) == 9


async def test_a_long_run_of_outcomes_leaves_turns_to_others(autojump_clock):
    async with open_supervisor([spec(ScriptedServer(), f"s{n}") for n in range(10)]) as supervisor:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with supervisor.fan_out([Call("echo", server=f"s{n % 10}") for n in range(1000)]) as outcomes:
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(turn)
                assert len([outcome async for outcome in outcomes]) == 1000
                nursery.cancel_scope.cancel()
    assert turns > 20


# -- one message -------------------------------------------------------------------------------------------------------


def bulk(count: int) -> list[Request]:
    return [tool_request(server="lab", tool="nap", arguments=None, meta={}, slot=ReplySlot()) for _ in range(count)]


async def test_a_bulk_is_one_message():
    """An abandoned call in it is not handed on; the others are, in their order."""
    router, owner = RouterActor(), Owner(1, Mailbox(9), Mailbox(math.inf))
    router.swap({"lab": SimpleNamespace(owner=owner, own={"nap"})})
    calls = bulk(3)
    await router.submit(calls)
    assert router.statistics().waiting == 1
    calls[1].slot.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.run)
        await trio.testing.wait_all_tasks_blocked()
        assert owner.mailbox.close() == [calls[0], calls[2]]
        nursery.cancel_scope.cancel()
    assert [call.slot.outcome for call in calls] == [None] * 3


async def test_a_bulk_that_nobody_routes_any_more():
    """However far the router was with it: every call comes back."""
    for steps in range(12):
        router, owner = RouterActor(), Owner(1, Mailbox(math.inf), Mailbox(math.inf))
        router.swap({"lab": SimpleNamespace(owner=owner, own={"nap"})})
        calls = bulk(1000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.run)
            await router.submit(calls)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        handed_on = owner.mailbox.close()
        assert handed_on == calls[: len(handed_on)]
        assert [call.slot.outcome for call in calls[len(handed_on) :]] == [Unrouted()] * (1000 - len(handed_on))


async def test_a_fan_out_is_one_message(autojump_clock):
    peers = [Peer(lambda peer, message: peer.answer(message, dict(TEXT))) for _ in range(2)]
    async with open_supervisor([ServerSpec(f"p{n}", peer) for n, peer in enumerate(peers)]) as supervisor:
        seen: list[int] = []

        class Watch(trio.abc.Instrument):
            def after_task_step(self, task: trio.lowlevel.Task) -> None:
                seen.append(supervisor.statistics().router.waiting)

        watch = Watch()
        trio.lowlevel.add_instrument(watch)
        results = await supervisor.gather([Call("work", server=f"p{n % 2}") for n in range(100)])
        trio.lowlevel.remove_instrument(watch)
        assert {result.full_text for result in results} == {"done"}
        assert max(seen) <= 1


async def test_a_fan_out_that_is_cancelled_before_it_begins_sends_nothing(autojump_clock):
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        await supervisor.wait_connected("lab")
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await supervisor.gather([Call("mcp_lab_echo") for _ in range(3)])
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
    assert server.calls == []
