"""Servers that are stopped when nobody uses them, in worlds where everything happens at the same moments on purpose."""

import math
from collections.abc import Sequence

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor import ServerDown, ToolResult
from mcp_nursery.supervisor.status import ServerState
from mcp_nursery.supervisor.testing import Life

from ..lab.world import ENDERS, Act, Call, Script, Step, Trace, calls, run_world, scripts, steps, worlds
from .test_supervisor import check, one_transport_at_a_time, shown

pytestmark = pytest.mark.slow

limits = st.sampled_from([0.5, 1.0, 1.5, 3.0])
healthy = st.builds(
    Life, connects_after=st.sampled_from([0.0, 0.5, 2.0]), closes_after=st.sampled_from([0.0, 0.0, 0.5, 2.0])
)
users = calls("a").map(lambda call: evolve(call, idle_timeout=None)) | st.builds(
    Act, st.sampled_from(["list", "refresh", "wait_connected"]), st.just("a")
)
moments = st.sampled_from([0.0, 0.0, 0.5, 1.0, 1.5, 3.0, 3.5])


@st.composite
def idle_scripts(draw: st.DrawFn) -> Script:
    lazy, limit = draw(st.booleans()), draw(limits)
    return Script("a", tuple(draw(st.lists(healthy, min_size=1, max_size=4))), lazy=lazy, stop_idle_after=limit)


def uses(trace: Trace) -> list[tuple[float, float]]:
    """When each call and each list of `a` began and ended."""
    lists = [done for done in trace.acts if done.act.what in ("list", "refresh")]
    return [(one.began, math.inf if one.ended is None else one.ended) for one in (*trace.calls, *lists)]


def stops_are_exact(trace: Trace) -> None:
    """It is stopped so long after the last use, or its connection, and at no other time; at last it is idle."""
    limit, connected = trace.scripts["a"].stop_idle_after, math.nan
    assert limit is not None
    for _, event in shown(trace, "a"):
        if event.new is ServerState.CONNECTED:
            connected = event.at
        if event.new is ServerState.IDLE and event.old is not None:
            assert all(not began < event.at < ended for began, ended in uses(trace))
            before = [ended for _, ended in uses(trace) if ended < event.at]
            assert event.at == max([connected, *before]) + limit
        assert event.new in ("idle", "connecting", "connected") or event.at >= trace.at("leave")
    used = any(ended >= trace.at("leave") for _, ended in uses(trace))
    assert trace.audits[-1][2]["a"][0] == ("connected" if used else "idle")


@given(idle_scripts(), st.lists(st.builds(Step, moments, users), max_size=12), st.random_module())
def test_every_call_of_a_healthy_server_is_answered_once(
    script: Script, done: Sequence[Step], schedule: object
) -> None:
    """G8: however its time and the stop fall together. Only who gives up, or waits for no server, gets none."""
    trace = run_world([script], done)
    check(trace)
    stops_are_exact(trace)
    for record in trace.calls:
        hurried = record.call.timeout is not None or record.call.cancel_after is not None
        if isinstance(record.outcome, ServerDown):
            assert record.call.when_down == "fail"
        elif not hurried and not record.call.tool.endswith("never"):
            assert isinstance(record.outcome, ToolResult)
    heard = [one.detail[2]["token"] for one in trace.log if one.what == "ledger"]
    assert len(set(heard)) == len(heard)


@given(
    idle_scripts(),
    st.lists(st.sampled_from([-0.5, 0.0, 0.0, 0.0, 0.5]), min_size=1, max_size=6),
    st.sampled_from(["write_now", "write_soon", "write_late"]),
    st.integers(1, 4),
    st.random_module(),
)
def test_calls_in_the_very_moment_of_the_stop(
    script: Script, offsets: Sequence[float], tool: str, width: int, schedule: object
) -> None:
    """G8: again and again, several at once: one answer each, executed once."""
    limit = script.stop_idle_after
    assert limit is not None
    lasts = {"write_now": 0.0, "write_soon": 1.0, "write_late": 3.5}[tool]
    done = [Step(0.0, Call("a", tool))]
    for offset in offsets:
        done += [Step(max(0.0, lasts + limit + offset), Call("a", tool)), *[Step(0.0, Call("a", tool))] * (width - 1)]
    trace = run_world([script], done)
    check(trace)
    assert all(isinstance(record.outcome, ToolResult) for record in trace.calls)
    assert len([one for one in trace.log if one.what == "ledger"]) == len(done)


@given(worlds("a", "b"), st.tuples(limits, limits), steps("a", "b"), st.random_module())
def test_any_world_with_limits(
    world: Sequence[Script], limit: Sequence[float], done: Sequence[Step], schedule: object
) -> None:
    """G8 among crashes, orders and callers who give up."""
    check(run_world([evolve(one, stop_idle_after=seconds) for one, seconds in zip(world, limit, strict=True)], done))


@given(scripts("a", deaf=False), limits, steps("a", only=users), st.random_module())
def test_idleness_is_never_a_failure(script: Script, limit: float, done: Sequence[Step], schedule: object) -> None:
    """G8: the server that is stopped is not said to have failed, and is started by nobody but its users."""
    trace = run_world([evolve(script, stop_idle_after=limit, revive=None)], done)
    check(trace)
    for (before, event), (_, after) in zip(shown(trace, "a"), shown(trace, "a")[1:], strict=False):
        if event.new is ServerState.IDLE and event.old is not None:
            assert event.error is None
            assert after.new in ("connecting", "stopped")
            assert after.new != "connecting" or any(
                one.what in ("call", "act") and one.at <= after.at for one in trace.log[before:]
            )
    one_transport_at_a_time(trace, "a")
    assert not any(one.act.what in ENDERS for one in trace.acts)
