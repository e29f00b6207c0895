"""Many calls at once: which outcomes come, when, in which order, and what becomes of the calls nobody waits for."""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from mcp_nursery.actors import turns
from mcp_nursery.actors.mailbox import Mailbox
from mcp_nursery.actors.messages import CallTool, Owner
from mcp_nursery.actors.outcomes import Unrouted
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.router import RouterActor
from mcp_nursery.supervisor import (
    Call,
    CallTimeout,
    ConnectionLost,
    NurseryError,
    ServerBusy,
    ServerDown,
    ServerError,
    ServerSpec,
    Supervisor,
    ToolResult,
    UnknownTool,
    open_supervisor,
)
from mcp_nursery.supervisor.calls.fan_out import CallOutcome, FanOut
from mcp_nursery.supervisor.errors import InvalidArguments, SupervisorClosed, UnknownServer
from mcp_nursery.supervisor.status import CallCounts
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ..specs import spec
from .test_calls import TEXT, Peer, hang, nap, ticking

READ_ONLY = {"readOnlyHint": True}


async def fail(arguments: dict[str, Any]) -> object:
    await nap(arguments)
    raise RuntimeError("it broke")


def lab(*lives: Life) -> ScriptedServer:
    return ScriptedServer(*lives, tools={"nap": nap, "hang": hang, "fail": fail})


def napping(server: str, seconds: float, **options: Any) -> Call:
    return Call("nap", {"for": seconds}, server=server, **options)


async def collected(supervisor: Supervisor, calls: Sequence[Call], **options: Any) -> list[CallOutcome]:
    with trio.fail_after(1000):
        async with supervisor.fan_out(calls, **options) as outcomes:
            return [outcome async for outcome in outcomes]


async def timed(supervisor: Supervisor, calls: Sequence[Call], **options: Any) -> list[tuple[float, int]]:
    """When each outcome came, and whose it was."""
    with trio.fail_after(1000):
        async with supervisor.fan_out(calls, **options) as outcomes:
            return [(trio.current_time(), outcome.index) async for outcome in outcomes]


def answers(outcomes: Sequence[CallOutcome]) -> list[ToolResult | NurseryError | None]:
    return [one.result or one.error for one in sorted(outcomes, key=lambda one: one.index)]


def in_flight(supervisor: Supervisor) -> int:
    return supervisor.statistics().calls.in_flight


# -- outcomes -----------------------------------------------------------------------------------------------------


async def test_outcomes_come_as_they_finish(autojump_clock):
    calls = [napping("a", 3), napping("b", 1), napping("a", 2)]
    seen = []
    async with open_supervisor([spec(lab(), "a"), spec(lab(), "b")]) as supervisor:
        await trio.sleep(10)
        async with supervisor.fan_out(calls) as outcomes:
            async for outcome in outcomes:
                assert outcome.call is calls[outcome.index]
                assert (outcome.ok, outcome.error) == (True, None)
                assert outcome.result.full_text == "rested"
                assert outcome.result.duration == outcome.duration
                seen.append((trio.current_time(), outcome.index, outcome.result.server, outcome.duration))
    assert seen == [(11, 1, "b", 1), (12, 2, "a", 2), (13, 0, "a", 3)]


@pytest.mark.parametrize(
    ("until", "read", "met"),
    [
        ("all", 4, True),
        ("first", 4, True),
        (2, 4, True),
        (3, 4, False),
        ("all", 2, False),
        (2, 2, False),
    ],
)
async def test_whether_until_is_met(autojump_clock, until, read, met):
    """Of three calls one fails. What nobody has read does not count, nor what is read until the iteration ends."""
    calls = [napping("a", 1), napping("nobody", 2), napping("a", 3)]
    async with open_supervisor([spec(lab(), "a")]) as supervisor, supervisor.fan_out(calls, until=until) as outcomes:
        for _ in range(read):
            await anext(outcomes, None)
        assert outcomes.until_met is met


async def test_the_duration_does_not_count_the_readers_time(autojump_clock):
    async with open_supervisor([spec(lab())]) as supervisor:
        async with supervisor.fan_out([napping("lab", 1), napping("lab", 2)]) as outcomes:
            await trio.sleep(5)
            durations = [outcome.duration async for outcome in outcomes]
        assert (durations, trio.current_time()) == ([1, 2], 5)


async def test_errors_are_in_place(autojump_clock):
    async def die(arguments) -> object:
        dying.crash(7)
        return "never"

    dying = ScriptedServer(tools={"die": die})
    rude = Peer(lambda peer, message: peer.send(id=message["id"], error={"code": -5, "message": "no"}))
    specs = [
        spec(lab()),
        spec(dying, "dying"),
        spec(ScriptedServer(Life(refuses="no luck", usable=False)), "down"),
        ServerSpec("rude", rude),
    ]
    calls = [
        Call("mcp_lab_knit"),
        Call("nap", server="lap"),
        Call("nap", server="down"),
        Call("mcp_lab_nap", [1]),  # type: ignore[arg-type]
        Call("mcp_lab_hang", timeout=2),
        Call("mcp_dying_die"),
        Call("mcp_rude_work"),
        Call("mcp_lab_fail"),
        Call("mcp_lab_nap"),
    ]
    async with open_supervisor(specs) as supervisor:
        gathered = await supervisor.gather(calls)
        assert trio.current_time() == 2
        assert in_flight(supervisor) == 0
    kinds = [UnknownTool, UnknownServer, ServerDown, InvalidArguments, CallTimeout, ConnectionLost, ServerError]
    assert [type(one) for one in gathered] == [*kinds, ToolResult, ToolResult]
    assert [getattr(one, "delivery", None) for one in gathered[2:7]] == [
        "not_sent",
        None,
        "unknown",
        "unknown",
        "answered",
    ]
    assert gathered[5].exit_code == 7
    assert (gathered[6].code, gathered[6].message) == (-5, "no")
    assert [(one.is_error, one.full_text) for one in gathered[7:]] == [(True, "it broke"), (False, "rested")]


async def test_an_error_of_the_tool_is_a_result_and_no_success(autojump_clock):
    async with open_supervisor([spec(lab())]) as supervisor:
        [outcome] = await collected(supervisor, [Call("mcp_lab_fail")])
    assert (outcome.result.is_error, outcome.error, outcome.ok) == (True, None, False)


async def test_an_error_is_no_success(autojump_clock):
    async with open_supervisor([spec(lab())]) as supervisor:
        [outcome] = await collected(supervisor, [Call("mcp_lab_knit")])
    assert (outcome.result, outcome.ok, outcome.index, outcome.duration) == (None, False, 0, 0)


async def test_gather_keeps_the_order(autojump_clock):
    async with open_supervisor([spec(lab())]) as supervisor:
        first, second, third = await supervisor.gather(
            [napping("lab", 3), Call("mcp_lab_hang", timeout=1), napping("lab", 2)]
        )
        assert trio.current_time() == 3
    assert isinstance(second, CallTimeout)
    assert [first.duration, third.duration] == [3, 2]


@pytest.mark.parametrize("until", ["all", "first", 3])
async def test_no_calls(autojump_clock, until):
    async with open_supervisor([spec(lab())]) as supervisor:
        assert await collected(supervisor, [], until=until) == []
        assert await supervisor.gather([]) == []
        assert trio.current_time() == 0


# -- until --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("until", "seen", "told"),
    [
        ("all", [(1, 0), (2, 1), (3, 2), (4, 3)], 0),
        ("first", [(1, 0), (2, 1)], 2),
        (1, [(1, 0), (2, 1)], 2),
        (2, [(1, 0), (2, 1), (3, 2)], 1),
        (3, [(1, 0), (2, 1), (3, 2), (4, 3)], 0),
        (4, [(1, 0), (2, 1), (3, 2), (4, 3)], 0),
        (99, [(1, 0), (2, 1), (3, 2), (4, 3)], 0),
    ],
)
async def test_until(autojump_clock, until, seen, told):
    """Only successes count; a quorum that is never reached ends with the last outcome."""
    servers = [lab() for _ in range(4)]
    calls = [Call("fail", {"for": 1}, server="s0"), *(napping(f"s{n}", n + 1) for n in (1, 2, 3))]
    async with open_supervisor([spec(one, f"s{n}") for n, one in enumerate(servers)]) as supervisor:
        assert await timed(supervisor, calls, until=until) == seen
        assert in_flight(supervisor) == 0
        await trio.testing.wait_all_tasks_blocked()
        assert [len(one.cancelled) for one in servers] == [0] * (4 - told) + [1] * told


async def test_the_servers_are_told_at_the_quorum_and_not_at_the_end_of_the_block(autojump_clock):
    server = lab()
    async with (
        open_supervisor([spec(server)]) as supervisor,
        supervisor.fan_out([napping("lab", 1), napping("lab", 9)], until="first") as outcomes,
    ):
        assert [outcome.index async for outcome in outcomes] == [0]
        await trio.sleep(1)
        assert len(server.cancelled) == 1
        assert [outcome async for outcome in outcomes] == []


@pytest.mark.parametrize("until", [0, -1, "last"])
async def test_an_until_that_makes_no_sense(autojump_clock, until):
    server = lab()
    async with open_supervisor([spec(server)]) as supervisor:
        with pytest.raises(ValueError, match="until"):
            await collected(supervisor, [Call("mcp_lab_nap")], until=until)
        assert server.calls == []


# -- leaving early ------------------------------------------------------------------------------------------------


async def test_leaving_the_block_cancels_the_rest(autojump_clock):
    """Servers hear of calls that were sent, and of no others."""
    ids: list[list[int]] = [[], []]
    told: list[list[int]] = [[], []]

    def peer(n: int) -> Peer:
        def handle(peer: Peer, message: dict[str, Any]) -> None:
            if message["method"] == "tools/call":
                ids[n].append(message["id"])
            else:
                told[n].append(message["params"]["requestId"])

        return Peer(handle)

    specs = [ServerSpec("a", peer(0), max_in_flight=2), ServerSpec("b", peer(1))]
    async with open_supervisor([*specs, spec(lab())]) as supervisor:
        calls = [*(Call("mcp_a_work"),) * 5, *(Call("mcp_b_work"),) * 3, napping("lab", 1)]
        async with supervisor.fan_out(calls) as outcomes:
            async for outcome in outcomes:
                assert outcome.index == 8
                break
            assert supervisor.statistics().calls == CallCounts(in_flight=8, done=1)
        assert (trio.current_time(), in_flight(supervisor)) == (1, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert [len(one) for one in ids] == [2, 3]
        assert [sorted(one) for one in told] == ids


async def test_leaving_at_once(autojump_clock):
    """What the router has not handed on yet reaches nobody."""
    server = lab()
    async with open_supervisor([spec(server)]) as supervisor:
        async with supervisor.fan_out([Call("mcp_lab_hang", on_progress=unwanted), Call("mcp_lab_hang")]):
            pass
        await trio.testing.wait_all_tasks_blocked()
        assert len(server.calls) == len(server.cancelled)
        assert in_flight(supervisor) == 0


async def unwanted(progress, total, message) -> None:
    raise AssertionError("nobody reports")


async def test_outcomes_that_nobody_read(autojump_clock):
    """They are counted as what they were; the server that has answered is not told."""
    server = lab()
    async with open_supervisor([spec(server)]) as supervisor:
        async with supervisor.fan_out([Call("mcp_lab_nap"), Call("mcp_lab_nap"), Call("mcp_lab_hang")]):
            await trio.sleep(2)
        assert supervisor.status()[0].calls == CallCounts(in_flight=0, done=2, failed=1)
        await trio.testing.wait_all_tasks_blocked()
        assert len(server.cancelled) == 1


async def test_the_end_of_the_block_is_the_end_of_the_iteration(autojump_clock):
    async with open_supervisor([spec(lab())]) as supervisor:
        calls = [Call("mcp_lab_nap"), Call("mcp_lab_hang", idle_timeout=9)]
        async with supervisor.fan_out(calls) as outcomes:
            await trio.sleep(2)
        assert [outcome async for outcome in outcomes] == []


async def test_the_end_of_the_block_lets_another_tasks_reader_go(autojump_clock):
    async with open_supervisor([spec(lab())]) as supervisor, trio.open_nursery() as nursery:
        seen: list[list[CallOutcome]] = []

        async def read(outcomes: FanOut) -> None:
            seen.append([outcome async for outcome in outcomes])

        with trio.fail_after(60):
            async with supervisor.fan_out([Call("mcp_lab_hang")]) as outcomes:
                nursery.start_soon(read, outcomes)
                await trio.sleep(1)
            await trio.testing.wait_all_tasks_blocked()
    assert seen == [[]]


@pytest.mark.parametrize(("until", "expected"), [("all", 5), (3, 3)])
async def test_two_readers_share_the_outcomes(autojump_clock, until, expected):
    async with open_supervisor([spec(lab())]) as supervisor:
        seen: list[int] = []

        async def read(outcomes: FanOut) -> None:
            async for outcome in outcomes:
                seen.append(outcome.index)
                await trio.lowlevel.checkpoint()

        with trio.fail_after(60):
            calls = [napping("lab", n) for n in range(5)]
            async with supervisor.fan_out(calls, until=until) as outcomes, trio.open_nursery() as nursery:
                nursery.start_soon(read, outcomes)
                nursery.start_soon(read, outcomes)
    assert seen == list(range(expected))


# -- nobody delays another ----------------------------------------------------------------------------------------


async def test_slow_and_dead_servers_delay_nobody(autojump_clock):
    specs = [
        spec(lab(), "slow"),
        spec(lab(Life(deaf_after=2)), "deaf"),
        spec(lab(Life(dies_after=3)), "dead"),
        spec(lab(), "good"),
    ]
    calls = [
        napping("slow", 40),
        Call("mcp_deaf_nap", timeout=20),
        Call("mcp_dead_hang"),
        Call("mcp_good_nap"),
        napping("good", 5),
    ]
    async with open_supervisor(specs) as supervisor:
        assert await timed(supervisor, calls) == [(1, 3), (3, 2), (5, 4), (20, 1), (40, 0)]


async def test_calls_that_wait_for_their_server(autojump_clock):
    """A lazy one is started, one that is connecting is awaited; the others go on meanwhile."""
    lazy, late = lab(Life(connects_after=2)), lab(Life(connects_after=4))
    specs = [spec(lazy, "lazy", lazy=True), spec(late, "late"), spec(lab(), "good")]
    calls = [
        Call("mcp_late_nap"),
        Call("nap", server="late", timeout=3),
        Call("nap", server="late", when_down="fail"),
        Call("nap", server="lazy"),
        Call("nap", server="good"),
    ]
    async with open_supervisor(specs, gate=0.5) as supervisor:
        await supervisor.wait_connected("good")
        outcomes = await collected(supervisor, calls)
        assert lazy.starts == [0.5]
        assert in_flight(supervisor) == 0
    ended = [(outcome.duration, outcome.index) for outcome in outcomes]
    assert sorted(ended) == [(0, 2), (1, 4), (3, 1), (3, 3), (4.5, 0)]
    assert [duration for duration, _ in ended] == [0, 1, 3, 3, 4.5]
    kinds = [type(one) for one in answers(outcomes)]
    assert kinds == [ToolResult, CallTimeout, ServerDown, ToolResult, ToolResult]


async def test_leaving_while_a_call_waits_for_its_server(autojump_clock):
    late = lab(Life(connects_after=4))
    async with open_supervisor([spec(late, "late")], gate=0) as supervisor:
        async with supervisor.fan_out([Call("nap", server="late")]):
            await trio.sleep(1)
        assert (trio.current_time(), in_flight(supervisor)) == (1, 0)
        await trio.sleep(10)
        assert late.calls == []


async def work_after_a_loss(server: ScriptedServer, arguments: dict[str, Any]) -> object:
    if len(server.starts) == 1:
        await trio.sleep_forever()
    return "done"


def test_a_lost_call_is_sent_again():
    """If it is read-only: the same rule as for one call; others come and go meanwhile."""

    async def main():
        frail = ScriptedServer(Life(dies_after=1), Life(), annotations={"look": READ_ONLY})
        frail.tools = {"look": partial(work_after_a_loss, frail), "write": partial(work_after_a_loss, frail)}
        calls = [Call("mcp_frail_look"), Call("mcp_frail_write"), napping("lab", 2), napping("lab", 5)]
        async with open_supervisor([spec(frail, "frail"), spec(lab())]) as supervisor:
            outcomes = await collected(supervisor, calls)
            assert in_flight(supervisor) == 0
        assert [(one.duration, one.index) for one in outcomes] == [(1, 1), (2, 2), (3, 0), (5, 3)]
        look, write, *_ = answers(outcomes)
        assert (look.full_text, look.incarnation, look.duration) == ("done", 2, 3)
        assert (write.incarnation, write.delivery) == (1, "unknown")
        assert sorted((life, name) for life, name, _ in frail.calls) == [(1, "look"), (1, "write"), (2, "look")]

    run_virtual(main)


async def test_a_lost_call_is_sent_again_though_nobody_reads(autojump_clock):
    """R2: sending again is not put off until the outcome is asked for."""
    server = lab(Life(dies_after=1), Life())
    async with open_supervisor([spec(server)]) as supervisor:
        async with supervisor.fan_out([napping("lab", 2, resend="always")]) as outcomes:
            await trio.sleep(100)
            assert [outcome.duration async for outcome in outcomes] == [5]
        assert trio.current_time() == 100


# -- a limit ------------------------------------------------------------------------------------------------------


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
        with pytest.raises(ValueError, match=f"limit is a number of calls >= 1, not {limit}"):
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


# -- time ---------------------------------------------------------------------------------------------------------


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


# -- broadcast ----------------------------------------------------------------------------------------------------


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


# -- limits -------------------------------------------------------------------------------------------------------


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


# -- counts -------------------------------------------------------------------------------------------------------


async def test_counts(autojump_clock):
    calls = [Call("mcp_lab_nap"), Call("mcp_lab_fail"), Call("mcp_lab_hang", timeout=2), Call("mcp_lab_knit")]
    async with open_supervisor([spec(lab())]) as supervisor:
        async with supervisor.fan_out(calls) as outcomes:
            assert supervisor.status()[0].calls == CallCounts(in_flight=3)
            assert len([outcome async for outcome in outcomes]) == 4
            assert supervisor.status()[0].calls == CallCounts(in_flight=0, done=2, failed=1)
        assert supervisor.status()[0].calls == CallCounts(in_flight=0, done=2, failed=1)


# -- endings ------------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(turns, "_SLICE", 0)
    large = {"content": [{"type": "text", "text": "a word " * 10_000}]}
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


# -- one message --------------------------------------------------------------------------------------------------


def bulk(count: int) -> list[CallTool]:
    return [CallTool(server="lab", tool="nap", arguments=None, meta={}, slot=ReplySlot()) for _ in range(count)]


async def test_a_bulk_is_one_message():
    """An abandoned call in it is not handed on; the others are, in their order."""
    router, owner = RouterActor(), Owner(1, Mailbox(9), Mailbox(math.inf))
    router.swap({"lab": SimpleNamespace(owner=owner, own={"nap"})})
    calls = bulk(3)
    await router.submit(calls)
    assert router.statistics().waiting == 1
    calls[1].slot.abandon()
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
