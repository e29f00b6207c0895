"""G12: what is counted of servers, tools and calls. The clock is virtual, so that latencies are known."""

from functools import partial

import pytest
import trio
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.supervisor import Call, RestartPolicy, open_supervisor
from mcp_nursery.supervisor.decisions.statistics import MOST_TOOLS, ServerTally, Tally, latency_of
from mcp_nursery.supervisor.status import CallCounts, FailureCount
from mcp_nursery.supervisor.testing import Life, Refusal, ScriptedServer

from ...lab.specs import hang, nothing, spec, status


async def nap(arguments):
    await trio.sleep(arguments["for"])
    return "rested"


async def refuse(arguments):
    raise Refusal(-32602, "no", None)


async def break_down(arguments):
    raise RuntimeError("isError")


def lab(*lives):
    tools = {"nap": nap, "hang": hang, "refuse": refuse, "break": break_down, "work": nothing}
    return ScriptedServer(*lives, tools=tools, resources={"note://a": nothing})


async def call(supervisor, tool, arguments=None, **options):
    try:
        await supervisor.call_tool(tool, arguments, server="lab", **options)
    except NurseryError as error:
        return error


async def test_every_figure(autojump_clock):
    async with open_supervisor(
        [spec(lab()), spec(lab(), "other"), spec(lab(Life(refuses="no")), "down")]
    ) as supervisor:
        for seconds in (1, 2, 3, 4):
            await call(supervisor, "nap", {"for": seconds})
        await call(supervisor, "break")
        await call(supervisor, "refuse")
        await call(supervisor, "refuse")
        await call(supervisor, "hang", timeout=1)
        with trio.move_on_after(1):
            await call(supervisor, "hang")
        await supervisor.read_resource("note://a", server="lab")
        await supervisor.gather([Call("nap", {"for": 8}, server="other"), Call("nap", {"for": 8}, server="down")])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(call, supervisor, "hang"))
            await trio.testing.wait_all_tasks_blocked()
            seen = supervisor.statistics()
            nursery.cancel_scope.cancel()

        assert (seen.servers, seen.connected, seen.tools, seen.unique_tools) == (3, 2, 10, 5)
        assert seen.calls == CallCounts(in_flight=1, done=7, failed=4)
        assert seen.failures == (
            FailureCount("ServerError", "answered", 2),
            FailureCount("CallTimeout", "unknown", 1),
            FailureCount("Cancelled", "unknown", 1),
        )
        assert list(seen.by_server) == ["lab", "other", "down"]
        assert seen.by_server["other"].latency.p99 == pytest.approx(8, rel=0.032)

        one = seen.by_server["lab"]
        assert one.calls == status(supervisor).calls.__class__(in_flight=1, done=6, failed=4)
        assert (one.tools, one.restarts, one.failures) == (5, 0, seen.failures)
        assert sorted(one.by_tool) == ["break", "hang", "nap", "refuse"], "a resource is no tool"
        nap_ = one.by_tool["nap"]
        assert (nap_.done, nap_.failed, nap_.failures) == (4, 0, ())
        assert (nap_.latency.p50, nap_.latency.p95) == (pytest.approx(2, rel=0.032), pytest.approx(4, rel=0.032))
        assert one.by_tool["break"].done == 1
        assert one.by_tool["refuse"].latency is None
        assert one.by_tool["hang"].failures == (
            FailureCount("CallTimeout", "unknown", 1),
            FailureCount("Cancelled", "unknown", 1),
        )
        down = seen.by_server["down"]
        assert (down.tools, down.last_refresh, down.latency) == (0, None, None)
        assert down.calls == CallCounts()  # of a tool that nobody knows


async def test_without_those_of_each_tool(autojump_clock):
    async with open_supervisor([spec(lab()), spec(lab(), "other")]) as supervisor:
        await call(supervisor, "nap", {"for": 1})
        await call(supervisor, "refuse")
        whole, without = supervisor.statistics(), supervisor.statistics(by_tool=False)
        assert without.by_server["lab"] == evolve(whole.by_server["lab"], by_tool={})
        assert evolve(without, by_server=whole.by_server) == whole


async def test_restarts_and_refreshes(autojump_clock):
    server = lab(Life(dies_after=10), Life(refuses="no"), Life())
    async with open_supervisor([spec(server, policy=RestartPolicy(delays=(2, 3)))]) as supervisor:
        await trio.sleep(5)
        assert supervisor.statistics().last_refresh == 5
        await supervisor.list_tools(refresh=True)
        assert supervisor.statistics().last_refresh == 0
        await trio.sleep_until(16)
        seen = supervisor.statistics()
        assert (seen.restarts, seen.last_refresh) == (2, 1)
        await supervisor.reconnect("lab")
        assert supervisor.statistics().restarts == 2, "a person's start is none"
        assert supervisor.statistics().by_server["lab"].last_refresh == 0


async def test_calls_of_a_fan_out(autojump_clock):
    """What was answered is counted with the time that took, whoever reads it when; what was given up as cancelled."""
    async with open_supervisor([spec(lab())]) as supervisor:
        naps = [Call("nap", {"for": seconds}, server="lab") for seconds in (1, 1, 1, 50)]
        async with supervisor.fan_out([*naps, Call("refuse", server="lab")]) as outcomes:
            await trio.sleep(20)
            async for _ in outcomes:
                break
        seen = supervisor.statistics().by_server["lab"].by_tool
        assert (seen["nap"].done, seen["nap"].failures) == (3, (FailureCount("Cancelled", "unknown", 1),))
        assert seen["nap"].latency.p99 == pytest.approx(1, rel=0.032)
        assert seen["refuse"].failed == 1


async def test_a_server_that_invents_names(autojump_clock):
    """What is kept of it is bounded, and so is what a host that calls unknown tools leaves behind."""
    server = ScriptedServer(tools={f"t{number}": nothing for number in range(MOST_TOOLS + 50)})
    async with open_supervisor([spec(server)]) as supervisor:
        names = [tool.tool for tool in supervisor.tools]
        await supervisor.gather([Call(name, server="lab") for name in names], limit=100)
        for number in range(10):
            await call(supervisor, f"unknown{number}")
        seen = supervisor.statistics()
        assert len(seen.by_server["lab"].by_tool) == MOST_TOOLS
        assert seen.calls == CallCounts(done=MOST_TOOLS + 50)
        assert seen.latency is not None


# -- the histogram ------------------------------------------------------------------------------------------------

seconds = st.floats(1e-6, 1e6) | st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0, 2.0])


@given(st.lists(seconds, min_size=1, max_size=300))
def test_percentiles_are_exact_to_three_percent(taken):
    tally = Tally()
    for each in taken:
        tally.add(each)
    latency = latency_of([tally])
    for hundredths in (50, 95, 99):
        exact = sorted(taken)[-(-len(taken) * hundredths // 100) - 1]
        assert getattr(latency, f"p{hundredths}") == pytest.approx(exact, rel=0.032)


@given(st.lists(st.lists(seconds, max_size=30), min_size=1, max_size=5))
def test_together_they_are_as_one(parts):
    tallies, all_of_them = [Tally() for _ in parts], Tally()
    for tally, part in zip(tallies, parts, strict=True):
        for each in part:
            tally.add(each)
            all_of_them.add(each)
    assert latency_of(tallies) == latency_of([all_of_them])


@pytest.mark.parametrize("taken", [0.0, -1.0, 1e-12, 1e300])
def test_what_no_clock_should_say(taken):
    tally = Tally()
    tally.add(taken)
    assert 0 < latency_of([tally]).p50 < 1.1e6


def test_its_size_is_bounded():
    tally = ServerTally()
    for exponent in range(-2000, 2000):
        tally.of("one").add(2.0 ** (exponent / 40))
        tally.of(f"tool {exponent}").add(1.0)
    assert len(tally.tools["one"].buckets) <= 650
    assert len(tally.tools) == MOST_TOOLS
    assert tally.others.done == 4001 - MOST_TOOLS
