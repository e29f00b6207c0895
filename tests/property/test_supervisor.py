"""A whole supervisor over generated servers, restart ladders, people and callers, in virtual time.

Each property of DESIGN.md is a function of the trace of one world (`_world.py` says how worlds are made and run). Every
example draws `random_module`: without it Hypothesis runs all of them in one and the same Trio schedule.
"""

import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import trio
from attrs import evolve, frozen
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_nursery.supervisor import (
    CallTimeout,
    InvalidResult,
    NurseryError,
    ServerDown,
    ServerError,
    ServerSpec,
    ToolResult,
    UnknownTool,
    events,
    open_supervisor,
)
from mcp_nursery.supervisor.decisions.state_machine import LEFT_BY_NOBODY
from mcp_nursery.supervisor.errors import Delivery, UnknownServer
from mcp_nursery.supervisor.events import StateChanged
from mcp_nursery.supervisor.status import ServerState
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ..lab.world import (
    ANNOTATIONS,
    CONNECT_TIMEOUT,
    ENDERS,
    NEVER,
    SETTLING,
    STARTERS,
    Act,
    Call,
    Entry,
    Record,
    Script,
    Step,
    Trace,
    acts,
    calls,
    ladders,
    last_lives,
    lives,
    run_world,
    scripts,
    stable_afters,
    steps,
    worlds,
)

pytestmark = pytest.mark.slow


def share(part: float) -> settings:
    """The profile's examples, or a part of them for what is slow."""
    return settings(max_examples=max(5, math.ceil(settings.default.max_examples * part)))


# -- the ladder, exactly ------------------------------------------------------------------------------------------


@frozen
class Expected:
    starts: list[float]
    fate: ServerState | None
    """Where it comes to rest; None if it does not before the supervisor is left."""


def expected_starts(script: Script, leave: float) -> Expected:
    """When a server is started that nobody touches, before it is left: DESIGN.md, section Restarting, in as few words
    as it can be put."""
    starts, now, failures = list[float](), 0.0, 0
    probe_known = False
    while now < leave:
        life = script.life(len(starts))
        starts.append(now)
        connected = now + life.connects_after
        closes = life.closes_after
        if life.needs_auth:
            return Expected(starts, ServerState.NEEDS_AUTH if connected < leave else None)
        if life.refuses is not None:
            failed, stable, closes = now, False, 0.0
        elif life.dies_of_probe and not probe_known:
            probe_known = True
            now = connected + closes  # again at once, in the same attempt, and never a second time
            continue
        elif life.mute or life.connects_after > CONNECT_TIMEOUT:
            failed, stable = now + CONNECT_TIMEOUT, False
        elif math.isinf(life.dies_after):
            return Expected(starts, ServerState.CONNECTED if connected < leave else None)
        else:
            failed = connected + life.dies_after
            stable = life.dies_after >= script.stable_after
            probe_known = True
        failures = 1 if stable else failures + 1
        if failures <= len(script.delays):
            now = max(failed + script.delays[failures - 1], failed + closes)
        elif isinstance(script.revive, float):
            now, failures = max(failed + script.revive, failed + closes), 0
        else:
            return Expected(starts, ServerState.FAILED if failed < leave else None)
    return Expected(starts, None)


@st.composite
def ladder_scripts(draw: st.DrawFn, name: str) -> Script:
    stable_after = draw(stable_afters)
    generated = draw(st.lists(lives(stable_after, deaf=False), max_size=6))
    if generated and draw(st.booleans()) and generated[0].refuses is None:
        generated[0] = evolve(generated[0], modern=False, dies_of_probe=not generated[0].mute)
    revive = draw(st.sampled_from([None, None, "on_call", 10.0, 40.5]))
    return Script(name, (*generated, draw(last_lives)), draw(ladders), stable_after, revive=revive)


@given(st.tuples(ladder_scripts("a"), ladder_scripts("b")), st.random_module())
@example((Script("a", (Life(refuses="no"),), (2, 5, 15), 30), Script("b", (Life(dies_after=0),))), Random(0))
@example((Script("a", (Life(refuses="no"),), (2,), revive=10.0), Script("b", (Life(mute=True),))), Random(0))
@example(
    # Due in the moment in which the supervisor is left.
    (Script("a", (Life(),)), Script("b", (Life(refuses="no"), Life()), (), revive=SETTLING)),
    Random(0),
)
def test_starts_are_exactly_those_of_the_ladder(world: Sequence[Script], schedule: object) -> None:
    trace = run_world(world)
    leave = trace.at("leave")
    for script in world:
        expected = expected_starts(script, leave)
        # In the moment of leaving either may come first, the start that is due or the end.
        assert [one for one in trace.servers[script.name].starts if one < leave] == expected.starts
        last = trace.of(script.name, "event")
        states = [one.detail.new for i, one in last if isinstance(one.detail, StateChanged) and one.at < leave]
        assert expected.fate is None or states[-1:] in ([], [expected.fate])


@pytest.mark.parametrize(("lasts", "attempts"), [(29.5, 2), (30.0, 3), (30.5, 3)])
def test_the_ladder_begins_anew_after_30_s_of_connected_and_not_before(lasts: float, attempts: int) -> None:
    script = Script("a", (Life(refuses="no"), Life(dies_after=lasts), Life(refuses="no")), (2.0,), 30.0)
    assert len(run_world([script]).servers["a"].starts) == attempts


# -- properties of any world --------------------------------------------------------------------------------------


def shown(trace: Trace, server: str) -> list[tuple[int, StateChanged]]:
    return [(i, one.detail) for i, one in trace.of(server, "event") if isinstance(one.detail, StateChanged)]


def failure(trace: Trace, server: str, number: int, start: int, end: int) -> tuple[float, bool, bool]:
    """When an incarnation failed by its own fault, as its script and the crashes have it; whether it had been
    connected for long enough to begin the ladder anew; and whether it was crashed before it was connected."""
    script, begun = trace.scripts[server], trace.log[start].at
    life = script.life(number)
    if life.refuses is not None:
        return begun, False, False
    crashes = [one.at for i, one in trace.of(server, "act") if start < i < end and one.detail.act.what == "crash"]
    connected = [event.at for i, event in shown(trace, server) if start < i < end and event.new == "connected"]
    greets = NEVER if life.mute else begun + life.connects_after
    limits = [] if connected else [begun + CONNECT_TIMEOUT]
    failed = min([*crashes, *limits, greets + life.dies_after])
    return failed, bool(connected) and failed - connected[0] >= script.stable_after, bool(crashes) and not connected


def restarts_follow_the_ladder(trace: Trace, server: str) -> None:
    """1, 2, 3: the k-th restart since a reset starts exactly D[k-1] after the failure, or when the old transport is
    closed if that is later; there are len(D) of them; a reset is a person's start or `stable_after` of `connected`.

    A crash in the middle of an era probe may cost one start more, at once, once per spec.
    """
    delays, restarts, probes = trace.scripts[server].delays, 0, 1
    starts, ends = trace.of(server, "start"), trace.of(server, "end")
    for number, ((start, begun), (end, ended)) in enumerate(zip(starts, ends, strict=True)):
        next_start, following = starts[number + 1] if number + 1 < len(starts) else (len(trace.log), None)
        if any(one.at == begun.at for i, one in trace.of(server, "act") if i < start):
            # By a person, or joined by one: an order is heard until the keeper has heard of the end.
            heard = [i for i, event in shown(trace, server) if i > start and event.new != "connecting"]
            restarts = _attempt_shown(trace, server, min([*heard, len(trace.log)])) - 1
        acted = {one.detail.act.what for one in _acts_on(trace, server, start, next_start)}
        if "add" in acted:
            probes = 1
        if acted & {*STARTERS, *ENDERS}:
            restarts = _attempt_shown(trace, server, next_start) - 1
            continue
        if trace.scripts[server].life(number).needs_auth:
            assert following is None, f"{server} was started again without authorisation"
            continue
        failed, stable, probing = failure(trace, server, number, start, end)
        again = following is not None and _attempt_shown(trace, server, next_start) == restarts + 1
        if probing and probes and again and following.at == max(failed, ended.at):
            probes = 0
            continue
        restarts = 0 if stable else restarts
        if restarts >= len(delays):
            assert following is None, f"{server} was started {len(delays) + 2} times"
            continue
        due = max(failed + delays[restarts], ended.at)
        restarts += 1
        if following is None:
            assert due >= trace.at("leave"), f"{server} was not started at {due}"
        else:
            assert following.at == due, f"start {number + 2} of {server}"


def calls_revive_once_each(trace: Trace, server: str) -> None:
    """1, 2 where calls revive: no more ladders than somebody asked for, and none that nobody did."""
    asked = [record for record in trace.calls if record.call.server == server]
    persons = [one for _, one in trace.of(server, "act") if one.detail.act.what in STARTERS]
    starts, ends, script = trace.of(server, "start"), trace.of(server, "end"), trace.scripts[server]
    stable = [
        number
        for number, ((start, _), (end, _)) in enumerate(zip(starts, ends, strict=True))
        if failure(trace, server, number, start, end)[1]
    ]
    assert len(starts) <= (1 + len(asked) + len(persons) + len(stable)) * (len(script.delays) + 1) + 1
    for before, after in zip(shown(trace, server), shown(trace, server)[1:], strict=False):
        if before[1].new != "failed" or after[1].new != "connecting":
            continue
        open_calls = [one for one in asked if one.began <= after[1].at <= (one.ended or NEVER)]
        assert open_calls or any(one.at == after[1].at for one in persons), "revived by nobody"


def _attempt_shown(trace: Trace, server: str, before: int) -> int:
    return [event.attempt for i, event in shown(trace, server) if i < before and event.new == "connecting"][-1]


def _acts_on(trace: Trace, server: str, start: int, next_start: int) -> list[Entry]:
    """What a person did between two starts; an order to end given just before a start may be heard just after it."""
    answered = {id(one.detail): i for i, one in trace.of(server, "answer")}
    return [
        one
        for i, one in trace.of(server, "act")
        if start < i < next_start or (i < start < answered[id(one.detail)] and one.detail.act.what in ENDERS)
    ]


def a_stopped_server_stays_stopped(trace: Trace, server: str) -> None:
    """5: after `stop_server` or `remove_server` has returned: no start and no event until someone starts it."""
    acts_of = trace.of(server, "act")
    for returned, one in trace.of(server, "answer"):
        if one.detail.act.what not in ENDERS or one.detail.error is not None:
            continue
        begun = next(i for i, act in acts_of if act.detail is one.detail)
        ended_by = [i for i, act in acts_of if i > begun and act.detail.act.what in (*STARTERS, "remove")]
        until = min([*ended_by, next(i for i, line in enumerate(trace.log) if line.what == "leave")])
        assert [line for i, line in trace.of(server, "start", "event") if returned < i < until] == []


def one_transport_at_a_time(trace: Trace, server: str) -> None:
    """6: two transports of a server never live at one moment, and none outlives the block."""
    assert trace.servers[server].most_alive <= 1
    assert len(trace.servers[server].ends) == len(trace.servers[server].starts)


def every_call_has_one_outcome_on_time(trace: Trace, record: Record) -> None:
    """7: exactly one, never later than the call's timeout or its caller's patience or the end of the block."""
    call = record.call
    assert len(record.outcomes) == 1
    assert record.ended is not None
    for limit in (call.timeout, call.cancel_after):
        assert limit is None or record.ended <= record.began + limit
    assert record.ended <= max(trace.at("left"), record.began)
    if isinstance(record.outcome, CallTimeout):
        limits = [limit for limit in (call.timeout, call.idle_timeout) if limit is not None]
        assert record.outcome.timeout in limits
        assert record.ended >= record.began + record.outcome.timeout
    if record.gave_up:
        assert call.cancel_after is not None
        assert record.ended == record.began + call.cancel_after
    assert record.gave_up or isinstance(record.outcome, (ToolResult, NurseryError))
    assert not isinstance(record.outcome, (InvalidResult, ServerError))  # these servers do nothing of the kind


def every_order_is_answered(trace: Trace) -> None:
    """7 for everything else that waits: nobody is left waiting once all ladders have come to their ends."""
    assert [(done.began, done.act) for done in trace.unanswered_at_leave] == []
    assert trace.left_open == []


def ledger(trace: Trace, record: Record) -> list[tuple[Entry, int]]:
    """The lines of all ledgers that are this call's, with the incarnation that heard it."""
    lines = [one for one in trace.log if one.what == "ledger" and one.detail[2] == {"token": record.token}]
    assert all((one.server, one.detail[1]) == (record.call.server, record.call.tool) for one in lines)
    return [(one, one.detail[0]) for one in lines]


def answers_are_the_calls_own(trace: Trace, record: Record) -> None:
    """8: no call gets another's reply, nor one of an incarnation that it was not sent to."""
    if isinstance(result := record.outcome, ToolResult):
        heard = [incarnation for _, incarnation in ledger(trace, record)]
        said = json.loads(result.full_text)
        assert said["token"] == record.token
        assert said["incarnation"] == heard[-1]
        assert (result.server, result.tool) == (record.call.server, record.call.tool)


def calls_reach_servers_as_often_as_they_may(trace: Trace, record: Record) -> None:
    """9: at most twice, and once unless the tool is repeatable or the host said always; never again after a timeout."""
    call, heard = record.call, ledger(trace, record)
    repeatable = trace.scripts[call.server].trust_hints and call.tool in ANNOTATIONS
    twice = call.resend == "always" or (call.resend == "safe" and repeatable)
    assert len(heard) <= (2 if twice else 1)
    assert len({incarnation for _, incarnation in heard}) == len(heard)
    assert all(one.at <= record.ended for one, _ in heard)  # type: ignore[operator]
    if len(heard) == 2:  # the first was lost: its incarnation had ended, and no clock of the call had
        ends = [line.at for _, line in trace.of(call.server, "end")]
        assert ends[heard[0][1] - 1] <= heard[1][0].at
        limits = [limit for limit in (call.timeout, call.cancel_after) if limit is not None]
        assert all(heard[1][0].at <= record.began + limit for limit in limits)


def delivery_is_truthful(trace: Trace, record: Record) -> None:
    """9: `not_sent` means that no server has seen it; an answer, that one has."""
    heard = ledger(trace, record)
    if record.delivery == Delivery.NOT_SENT:
        assert heard == []
    if isinstance(record.outcome, ToolResult) or record.delivery == Delivery.ANSWERED:
        assert heard != []
    if isinstance(record.outcome, CallTimeout) and record.delivery == Delivery.UNKNOWN:
        assert record.outcome.incarnation is not None


def nothing_is_left(trace: Trace, drain: float) -> None:
    """11: the end is bounded, and leaves no task, no call in flight and nothing in a mailbox."""
    slowest = max([life.closes_after for script in trace.scripts.values() for life in script.lives], default=0.0)
    assert trace.at("left") - trace.at("leave") <= drain + slowest
    assert trace.tasks_after == trace.tasks_before
    assert trace.in_flight == 0
    assert trace.router_waiting == 0


def events_rebuild_the_status(trace: Trace) -> None:
    """13: whoever starts from a status and follows the events knows the next one, also after falling behind."""
    for at, told, true in trace.audits:
        assert told == true, f"at {at}"


def check(trace: Trace, *, drain: float = 0.0) -> None:
    """All properties of one world. The ladder of what is stopped for idleness is the policy's own affair."""
    for server, script in trace.scripts.items():
        if script.stop_idle_after is None:
            if script.revive is None:
                restarts_follow_the_ladder(trace, server)
            else:
                calls_revive_once_each(trace, server)
        a_stopped_server_stays_stopped(trace, server)
        one_transport_at_a_time(trace, server)
    every_order_is_answered(trace)
    for record in trace.calls:
        every_call_has_one_outcome_on_time(trace, record)
        answers_are_the_calls_own(trace, record)
        calls_reach_servers_as_often_as_they_may(trace, record)
        delivery_is_truthful(trace, record)
    nothing_is_left(trace, drain)
    events_rebuild_the_status(trace)


# -- worlds -------------------------------------------------------------------------------------------------------


@given(worlds("a", "b", "c"), steps("a", "b", "c"), st.sampled_from([0.0, 0.0, 2.0]), st.random_module())
def test_any_world(world: Sequence[Script], done: Sequence[Step], drain: float, schedule: object) -> None:
    check(run_world(world, done, drain=drain), drain=drain)


@given(
    worlds("a", lazy=False),
    st.lists(st.builds(Step, st.sampled_from([0.0, 0.0, 0.5]), calls("a")), max_size=20),
    st.random_module(),
)
def test_many_calls_of_one_server(world: Sequence[Script], done: Sequence[Step], schedule: object) -> None:
    check(run_world(world, done))


@st.composite
def troubled_calls(draw: st.DrawFn) -> list[Step]:
    """Calls that are running when their server is crashed, again and again."""
    done = list[Step]()
    for _ in range(draw(st.integers(1, 4))):
        done += [Step(draw(st.sampled_from([0.0, 1.0])), draw(calls("a"))) for _ in range(draw(st.integers(1, 3)))]
        breaks, mends = (
            st.sampled_from(["crash", "crash", "reconnect", "stop"]),
            st.sampled_from(["start", "list", "refresh"]),
        )
        done.append(Step(draw(st.sampled_from([0.0, 0.5, 1.0])), Act(draw(breaks), "a")))
        done += [Step(draw(st.sampled_from([0.0, 0.5, 2.0])), Act(draw(mends), "a"))] * draw(st.integers(0, 1))
    return done


healthy = st.builds(
    Life,
    connects_after=st.sampled_from([0.0, 0.0, 0.5]),
    deaf_after=st.sampled_from([NEVER, NEVER, 2, 3, 4, 5]),
    closes_after=st.sampled_from([0.0, 0.0, 1.0]),
)


stops = st.sampled_from(["stop", "stop", "stop", "remove", "start", "crash", "reconnect"]).map(
    lambda what: Act(what, "a")
)


@given(scripts("a", deaf=False, lazy=False), steps("a", only=stops), st.random_module())
@example(Script("a", (Life(refuses="no"),)), [Step(1.0, Act("stop", "a"))], Random(0))
def test_a_server_stopped_at_any_moment(script: Script, done: Sequence[Step], schedule: object) -> None:
    check(run_world([script], done))


lost_then_unheard = Script("a", (Life(), Life(deaf_after=2), Life()), (0.5, 0.5), 0.5)
crash = Act("crash", "a")


@given(
    st.builds(Script, st.just("a"), st.lists(healthy, min_size=1, max_size=5).map(tuple), ladders, stable_afters),
    troubled_calls(),
    st.random_module(),
)
@example(  # lost, and may not be sent again
    Script("a", (Life(),), (0.5, 0.5), 0.5), [Step(1.0, Call("a", "write_late")), Step(1.0, crash)], Random(0)
)
@example(  # lost twice: not a third time
    Script("a", (Life(),), (0.5, 0.5), 0.5),
    [Step(1.0, Call("a", "read_late")), Step(1.0, crash), Step(1.5, crash)],
    Random(0),
)
@example(  # lost while the tools are listed
    Script("a", (Life(deaf_after=2), Life()), (0.5, 0.5), 0.5),
    [Step(1.0, Act("refresh", "a")), Step(1.0, crash)],
    Random(0),
)
@example(  # heard, lost, queued for a deaf server, lost again: not "not sent"
    lost_then_unheard, [Step(1.0, Call("a", "read_late")), Step(1.0, crash), Step(1.5, crash)], Random(0)
)
@example(  # the same with a timeout instead of the second loss
    lost_then_unheard, [Step(1.0, Call("a", "read_late", timeout=4.0)), Step(1.0, crash)], Random(0)
)
def test_calls_through_losses(script: Script, done: Sequence[Step], schedule: object) -> None:
    check(run_world([script], done))


@given(worlds("a", "b", "c"), steps("a", "b", "c"), st.random_module())
def test_a_servers_timeline_does_not_depend_on_its_siblings(
    world: Sequence[Script], done: Sequence[Step], schedule: object
) -> None:
    """4."""
    together = run_world(world, done, phased=True)
    leave = together.at("leave")
    for script in world:
        alone = run_world(world, done, phased=True, only=script.name)
        until = min(leave, alone.at("leave"))
        both = [[one for one in trace.timeline(script.name) if one[0] < until] for trace in (together, alone)]
        assert both[0] == both[1]


@given(
    scripts("a", deaf=False, lazy=False),
    st.lists(
        st.builds(Step, st.integers(0, 4).map(float), acts("a").filter(lambda act: act.what != "remove")), max_size=5
    ),
    st.integers(0, 30),
    st.random_module(),
)
def test_reconnect_is_trace_equal_to_a_fresh_start(
    script: Script, past: Sequence[Step], later: int, schedule: object
) -> None:
    """10: unless it joins an attempt under way, which is then the fresh one."""
    moment = Step(float(later), Act("reconnect", "a"))
    trace = run_world([script], [*past, moment], phased=True)
    asked = next(i for i, one in trace.of("a", "act") if one.detail.act is moment.does)
    before = [event.new for i, event in shown(trace, "a") if i < asked]
    if before[-1] == "connecting":
        return
    spent = len([i for i, _ in trace.of("a", "start") if i < asked])
    begun = next(one.at for i, one in trace.of("a", "start") if i > asked)
    assert begun == max([trace.log[asked].at, *(one.at for i, one in trace.of("a", "end")[:spent])])
    fresh = run_world([evolve(script, lives=tuple(script.life(n) for n in range(spent, len(script.lives) + spent)))])
    until = min(trace.at("leave") - begun, fresh.at("leave"))
    assert _relative(trace, asked, begun, until) == _relative(fresh, -1, 0.0, until)


def _told(event: Any) -> str | None:
    """The reason of a failure. An era that is remembered is asked for by one message in place of two."""
    return event.error and event.error.replace("server/discover or initialize", "initialize")


def _relative(trace: Trace, since: int, origin: float, until: float) -> list[tuple[object, ...]]:
    """Starts, failures and connections after a moment, counted from the first start."""
    first = next(i for i, _ in trace.of("a", "start") if i > since)
    told = [(one.at - origin, "start") for i, one in trace.of("a", "start") if i >= first]
    states = [(e.at - origin, e.new, e.attempt, _told(e), e.retry_in) for i, e in shown(trace, "a") if i > first]
    return sorted((one for one in [*told, *states] if one[0] < until), key=lambda one: one[0])


names = st.text("ab_-", min_size=1, max_size=3)


@given(
    st.dictionaries(names, st.sets(names, min_size=1, max_size=4), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.random_module(),
)
@share(0.5)
def test_the_catalogue_is_the_same_for_every_connect_order(
    offers: dict[str, set[str]], chance: Random, schedule: object
) -> None:
    """12."""

    async def catalogue(order: list[str], delays: list[float]) -> list[tuple[object, ...]]:
        servers = {
            name: ScriptedServer(Life(connects_after=delay), tools=dict.fromkeys(sorted(offers[name]), _nothing))
            for name, delay in zip(order, delays, strict=True)
        }
        async with open_supervisor([ServerSpec(name, one.transport) for name, one in servers.items()]) as supervisor:
            await supervisor.list_tools()
            tools = [(tool.name, tool.server, tool.tool, tool.definition_hash) for tool in supervisor.tools]
            assert [tool[0] for tool in tools] == sorted(tool[0] for tool in tools)
            return tools

    seen = list[list[tuple[object, ...]]]()
    for _ in range(2):
        order, delays = sorted(offers), [float(n) for n in range(len(offers))]
        chance.shuffle(order)
        chance.shuffle(delays)
        seen.append(run_virtual(catalogue, order, delays))
    assert seen[0] == seen[1]
    assert {(tool[1], tool[2]) for tool in seen[0]} == {(server, tool) for server in offers for tool in offers[server]}


async def _nothing(arguments: dict[str, object]) -> object:
    await trio.lowlevel.checkpoint()
    return ""


@given(worlds("a", "b"), steps("a", "b"), st.integers(1, 6), st.sampled_from([0.5, 1.0, 3.0]), st.random_module())
def test_a_reader_that_falls_behind_learns_the_truth(
    world: Sequence[Script], done: Sequence[Step], buffer: int, slowness: float, schedule: object
) -> None:
    """13, with a buffer so small that it overflows."""
    with patch.object(events, "EVENT_BUFFER", buffer):
        events_rebuild_the_status(run_world(world, done, slowness=slowness))


@given(scripts("a", deaf=False, lazy=False), steps("a"), st.random_module())
@example(  # the attempt of a call fails, and its caller has no other
    Script("a", (Life(refuses="no"),), ()), [Step(1.0, Call("a", "read_now"))] * 3, Random(0)
)
@example(  # lost, revived, lost again
    Script("a", (Life(dies_after=2.0),), (), 4.0), [Step(1.0, Call("a", "read_never"))] * 3, Random(0)
)
@example(  # called while what has failed is being closed
    Script("a", (Life(dies_after=1.0, closes_after=4.0), Life()), ()), [Step(2.0, Call("a", "write_now"))], Random(0)
)
def test_calls_that_revive(script: Script, done: Sequence[Step], schedule: object) -> None:
    check(run_world([evolve(script, revive="on_call")], done))


patient = calls("a").map(lambda call: evolve(call, when_down="wait"))


@given(scripts("a", deaf=False), steps("a", only=patient), st.random_module())
def test_who_waits_is_refused_only_where_nobody_comes_back(
    script: Script, done: Sequence[Step], schedule: object
) -> None:
    """7: `when_down="wait"` waits until nobody would bring the server back."""
    for record in run_world([script], done).calls:
        if isinstance(record.outcome, ServerDown):
            assert record.outcome.state in LEFT_BY_NOBODY
        assert not isinstance(record.outcome, UnknownTool)


@pytest.mark.parametrize("what", ["reconnect", "stop", "start", "remove", "list", "refresh", "wait_connected"])
def test_errors_come_bare(what: str) -> None:
    trace = run_world([Script("a", (Life(),))], [Step(1.0, Act(what, "nobody"))])  # type: ignore[arg-type]
    assert type(trace.acts[0].error) is UnknownServer
