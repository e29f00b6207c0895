"""Fan-outs cancelled at every scheduler step, and generated ones: every call one outcome, its own; nothing is left."""

import json
from collections import Counter
from collections.abc import Sequence

import pytest
import trio
import trio.testing
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor import Call, RestartPolicy, ServerSpec, Supervisor, ToolResult, open_supervisor
from mcp_nursery.supervisor.calls.fan_out import CallOutcome, FanOut, Until
from mcp_nursery.supervisor.status import ServerStatus
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ..lab.scheduler import SCHEDULES, AtStep, sweep
from ..lab.world import all_tasks
from .test_cancellation import steadily

pytestmark = pytest.mark.slow

POLICY = RestartPolicy(delays=(0.5, 0.5), stable_after=0)
DURATIONS = {"now": 0.0, "soon": 1.0, "late": 3.0}
BOUND = 60.0
"""Longer than anything here may take."""
ONE_BY_ONE = 200.0
"""Longer than twenty calls here may take if each waits for the one before."""


class Lab:
    """A scripted server that notes which calls it has answered."""

    def __init__(self, *lives: Life) -> None:
        self.answered: Counter[int] = Counter()
        tools = {f"{verb}_{when}": self._tool(lasts) for verb in ("look", "write") for when, lasts in DURATIONS.items()}
        annotations = {name: {"readOnlyHint": name.startswith("look")} for name in tools}
        self.server = ScriptedServer(*lives, tools=tools, annotations=annotations)

    def _tool(self, lasts: float):
        async def tool(arguments: dict[str, object]) -> object:
            await trio.sleep(lasts)
            self.answered[arguments["token"]] += 1
            return json.dumps(arguments)

        return tool

    def heard(self) -> Counter[int]:
        return Counter(arguments["token"] for _, _, arguments in self.server.calls)


# -- cancelled at every step --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Scenario:
    lives: tuple[tuple[Life, ...], ...] = ((Life(),), (Life(),))
    """Of each server."""
    tools: tuple[str, ...] = ("write_soon", "look_now", "write_late")
    until: Until = "all"
    timeout: float | None = None
    idle_timeout: float | None = None
    lazy: bool = False
    max_in_flight: int = 256
    """Of each server."""
    limit: int | None = None
    """Of the fan-out."""

    def calls(self) -> list[Call]:
        return [
            Call(
                tool,
                {"token": n},
                server=f"s{n % len(self.lives)}",
                timeout=self.timeout,
                idle_timeout=self.idle_timeout,
            )
            for n, tool in enumerate(self.tools * len(self.lives))
        ]


SCENARIOS = {
    "all": Scenario(),
    "first": Scenario(until="first"),
    "with timeouts": Scenario(timeout=2.0),
    "in tasks": Scenario(idle_timeout=2.0),
    "crowded": Scenario(max_in_flight=1),
    "limited": Scenario(limit=1),
    "lazy and connecting": Scenario(lives=((Life(),), (Life(connects_after=0.5),)), lazy=True),
    "through a loss": Scenario(lives=((Life(),), (Life(dies_after=0.5), Life())), timeout=BOUND),
    "beside a deaf server": Scenario(lives=((Life(),), (Life(deaf_after=2), Life())), timeout=5.0),
}


async def play(scenario: Scenario, step: int) -> bool:
    """One run with the consumer cancelled at that step, and what must hold afterwards; False if it ended before."""
    labs = [Lab(*lives) for lives in scenario.lives]
    specs = [
        ServerSpec(
            f"s{n}",
            lab.server.transport,
            policy=POLICY,
            lazy=scenario.lazy,
            max_in_flight=scenario.max_in_flight,
        )
        for n, lab in enumerate(labs)
    ]
    tasks = all_tasks()
    async with open_supervisor(specs, gate=0) as supervisor:
        if not scenario.lazy:
            for one in specs:
                await supervisor.wait_connected(one.name)
        seen: list[CallOutcome] = []
        with trio.CancelScope() as scope, AtStep(step, scope.cancel) as at_step:
            await consume(supervisor, scenario, seen)
        assert supervisor.statistics().calls.in_flight == 0
        await trio.testing.wait_all_tasks_blocked()
        assert supervisor.statistics().router.waiting == 0
        right_outcomes(scenario, seen, gave_up=scope.cancelled_caught)
        for lab, status in zip(labs, supervisor.status(), strict=True):
            told_of_what_nobody_waits_for(lab, status)
            await others_are_served(supervisor, f"s{labs.index(lab)}")
    await trio.testing.wait_all_tasks_blocked()
    assert all_tasks() == tasks
    return at_step.acted


async def consume(supervisor: Supervisor, scenario: Scenario, seen: list[CallOutcome]) -> None:
    async with supervisor.fan_out(scenario.calls(), until=scenario.until, limit=scenario.limit) as outcomes:
        async for outcome in outcomes:
            seen.append(outcome)


def right_outcomes(scenario: Scenario, seen: Sequence[CallOutcome], *, gave_up: bool) -> None:
    calls = len(scenario.calls())
    assert len({one.index for one in seen}) == len(seen) <= calls
    if not gave_up:
        assert len(seen) == calls if scenario.until == "all" else [one.ok for one in seen][-1:] == [True]
    for one in seen:
        assert (one.result is None) is not (one.error is None)
        if one.result is not None:
            assert json.loads(one.result.full_text) == {"token": one.index}


def told_of_what_nobody_waits_for(lab: Lab, status: ServerStatus) -> None:
    """A living server was told of each call that it heard, has not answered and has not lost; of no call twice."""
    last = len(lab.server.starts)
    assert all(times <= last for times in Counter(lab.server.cancelled).values())  # each life numbers anew
    open_calls = [one["token"] for life, _, one in lab.server.calls if life == last and not lab.answered[one["token"]]]
    assert status.state != "connected" or len(lab.server.cancelled) >= len(open_calls)
    for token, times in lab.heard().items():
        assert times <= 2
        assert token < 0 or times == 1 or last > 1


async def others_are_served(supervisor: Supervisor, server: str) -> None:
    if supervisor.status()[int(server[1:])].state == "connected" and server == "s1":
        await supervisor.reconnect(server)  # for one that is deaf
    result = await supervisor.call_tool("write_now", {"token": -1}, server=server, when_down="wait", timeout=BOUND)
    assert json.loads(result.full_text) == {"token": -1}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_cancelling_a_consumer_at_every_step(name: str, schedule: int) -> None:
    assert sweep(lambda step: steadily(schedule, play, SCENARIOS[name], step)) > 5


# -- generated ----------------------------------------------------------------------------------------------------

SERVERS = 4
"""The last of them goes deaf."""

lives = st.builds(
    Life,
    connects_after=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
    dies_after=st.sampled_from([float("inf"), float("inf"), 0.0, 0.5, 1.0, 2.5]),
    closes_after=st.sampled_from([0.0, 0.5]),
    modern=st.booleans(),
)


@frozen
class Plan:
    """A fan-out: what is called, and when its consumer leaves."""

    begins: float
    calls: tuple[tuple[int, str, float | None, float | None, str | None], ...]
    """Server, tool, timeout, idle timeout, `when_down`."""
    until: Until
    limit: int | None
    leaves_after: int | None
    """Outcomes."""
    cancelled_after: float | None


some_calls = st.tuples(
    st.integers(0, SERVERS - 1),
    st.sampled_from(["unheard_of", *[f"{verb}_{when}" for verb in ("look", "write") for when in DURATIONS]]),
    st.sampled_from([None, None, 0.0, 0.5, 2.0]),
    st.sampled_from([None, None, None, 1.5]),
    st.sampled_from([None, None, "wait", "fail"]),
)
plans = st.builds(
    Plan,
    st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    st.lists(some_calls, max_size=20).map(tuple),
    st.sampled_from(["all", "all", "first", 2, 5]),
    st.sampled_from([None, None, 1, 2, 7]),
    st.sampled_from([None, None, 1, 3]),
    st.sampled_from([None, None, 0.0, 0.5, 2.0]),
)


async def carry_out(plan: Plan, first_token: int, supervisor: Supervisor, seen: list[CallOutcome]) -> float | None:
    """When it ended, if nobody cut it short."""
    await trio.sleep(plan.begins)
    calls = [
        Call(
            tool,
            {"token": first_token + n},
            server=f"s{server}",
            timeout=8.0 if timeout is None and server == SERVERS - 1 else timeout,
            idle_timeout=idle,
            when_down=when_down,
        )
        for n, (server, tool, timeout, idle, when_down) in enumerate(plan.calls)
    ]
    with trio.CancelScope() as scope:
        if plan.cancelled_after is not None:
            scope.deadline = trio.current_time() + plan.cancelled_after
        async with supervisor.fan_out(calls, until=plan.until, limit=plan.limit) as outcomes:
            if await read(outcomes, plan, seen):
                return trio.current_time()
    return None


async def read(outcomes: FanOut, plan: Plan, seen: list[CallOutcome]) -> bool:
    async for outcome in outcomes:
        seen.append(outcome)
        if len(seen) == plan.leaves_after:
            return False
    return True


async def many(scripts: Sequence[Sequence[Life]], several: Sequence[Plan]) -> None:
    labs = [Lab(*script, Life()) for script in scripts] + [Lab(Life(deaf_after=3))]
    specs = [
        ServerSpec(f"s{n}", lab.server.transport, policy=POLICY, max_in_flight=4, mailbox_size=8)
        for n, lab in enumerate(labs)
    ]
    seen: list[list[CallOutcome]] = [[] for _ in several]
    async with open_supervisor(specs) as supervisor:

        async def host(n: int) -> None:
            ended = await carry_out(several[n], n * 100, supervisor, seen[n])
            successes = sum(one.ok for one in seen[n])
            wanted = {"all": 99, "first": 1}.get(several[n].until, several[n].until)
            if ended is not None:
                assert len(seen[n]) == len(several[n].calls) or successes == wanted
                assert ended < (BOUND if several[n].limit is None else ONE_BY_ONE)
            assert successes <= wanted

        with trio.fail_after(2 * ONE_BY_ONE):
            async with trio.open_nursery() as nursery:
                for n in range(len(several)):
                    nursery.start_soon(host, n)
        counts = supervisor.statistics().calls
        assert counts.in_flight == 0
        await trio.testing.wait_all_tasks_blocked()
        assert supervisor.statistics().router.waiting == 0
        for lab, status in zip(labs[:-1], supervisor.status(), strict=False):  # nobody can tell the deaf one anything
            told_of_what_nobody_waits_for(lab, status)
    for n, outcomes in enumerate(seen):
        assert len({one.index for one in outcomes}) == len(outcomes)
        for one in outcomes:
            assert (one.result is None) is not (one.error is None)
            if isinstance(one.result, ToolResult):
                assert json.loads(one.result.full_text) == {"token": n * 100 + one.index}


@given(
    scripts=st.tuples(*[st.lists(lives, max_size=2)] * (SERVERS - 1)),
    several=st.lists(plans, min_size=1, max_size=3),
    schedule=st.random_module(),
)
def test_any_fan_out(scripts: Sequence[Sequence[Life]], several: Sequence[Plan], schedule: object) -> None:
    async def main() -> None:
        tasks = all_tasks()
        await many(scripts, several)
        await trio.testing.wait_all_tasks_blocked()
        assert all_tasks() == tasks

    run_virtual(main)
