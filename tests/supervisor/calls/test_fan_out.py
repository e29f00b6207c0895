"""Many calls at once: which outcomes come, when, in which order, and what becomes of the calls nobody waits for."""

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import (
    Call,
    CallTimeout,
    ConnectionLost,
    ServerDown,
    ServerError,
    ServerSpec,
    ToolResult,
    UnknownTool,
    open_supervisor,
)
from mcp_nursery.supervisor.calls.fan_out import CallOutcome, FanOut
from mcp_nursery.supervisor.errors import InvalidArguments, UnknownServer
from mcp_nursery.supervisor.status import CallCounts
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ...lab.callers import Peer
from ...lab.fan_outs import READ_ONLY, answers, collected, in_flight, lab, napping, timed
from ...lab.specs import spec

# -- outcomes ----------------------------------------------------------------------------------------------------------


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


async def test_thousands_of_calls_begin_in_turns(autojump_clock):
    """However many one host makes, other tasks run in between."""
    seen = [0]

    async def watch() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            seen.append(in_flight(supervisor))

    mute = ServerSpec("mute", Peer(lambda peer, message: None), mailbox_size=3_000, max_in_flight=3_000)
    async with open_supervisor([mute]) as supervisor, trio.open_nursery() as nursery:
        await supervisor.list_tools()
        nursery.start_soon(watch)
        async with supervisor.fan_out([Call("work", server="mute", timeout=1)] * 3_000):
            nursery.cancel_scope.cancel()
            assert in_flight(supervisor) == 3_000
            assert max(after - before for before, after in pairwise([*seen, 3_000])) < 1_000, "a few turns"


async def test_an_error_that_is_an_outcome_keeps_nothing_of_its_call(autojump_clock):
    async with open_supervisor([spec(lab())]) as supervisor:
        outcomes = await collected(supervisor, [Call("mcp_lab_hang", timeout=1), Call("mcp_lab_knit")])
    outcomes.sort(key=lambda outcome: outcome.index)  # both come after 1 s: a name is looked for once more
    assert [type(outcome.error) for outcome in outcomes] == [CallTimeout, UnknownTool]
    assert [outcome.error.__traceback__ for outcome in outcomes] == [None, None]


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


# -- until -------------------------------------------------------------------------------------------------------------


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


# -- leaving early -----------------------------------------------------------------------------------------------------


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


# -- nobody delays another ---------------------------------------------------------------------------------------------


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


# -- counts ------------------------------------------------------------------------------------------------------------


async def test_counts(autojump_clock):
    calls = [Call("mcp_lab_nap"), Call("mcp_lab_fail"), Call("mcp_lab_hang", timeout=2), Call("mcp_lab_knit")]
    async with open_supervisor([spec(lab())]) as supervisor:
        async with supervisor.fan_out(calls) as outcomes:
            assert supervisor.status()[0].calls == CallCounts(in_flight=3)
            assert len([outcome async for outcome in outcomes]) == 4
            assert supervisor.status()[0].calls == CallCounts(in_flight=0, done=2, failed=1)
        assert supervisor.status()[0].calls == CallCounts(in_flight=0, done=2, failed=1)
