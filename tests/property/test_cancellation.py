"""Exhaustive cancellation: each scenario is run once for every scheduler step that its victim lives through, and the
victim is cancelled at that step: every await is hit, and what happens between two of them.

A step is one task's turn, of any task: the router's, the actor's and the server's count too. `steadily` makes Trio's
schedule the same each time by public means: before each example Hypothesis seeds the generators that are registered.
"""

import json
import signal
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import pytest
import trio
from attrs import define, evolve, field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import ElicitRequestParams, ElicitResult

from mcp_nursery.actors import fairness
from mcp_nursery.supervisor import NurseryError, RestartPolicy, ServerSpec, Supervisor, ToolResult, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks, ServerMessage
from mcp_nursery.supervisor.testing import Ask, Life, Refusal, ScriptedServer, run_virtual

from ..lab.scheduler import SCHEDULES, AtStep, sweep
from ..lab.world import all_tasks

pytestmark = pytest.mark.slow

T = TypeVar("T")

HANGS = 10
"""Real seconds after which a run of some milliseconds is said to hang."""

TOKEN = {"token": "victim"}


def steadily(schedule: int, async_fn: Callable[..., Awaitable[T]], *args: object) -> T:
    """`run_virtual` with a schedule that is always the same for one number."""
    results = list[T]()

    @settings(max_examples=1, database=None, derandomize=True, deadline=None)
    @given(st.none())
    def once(_: None) -> None:
        if not results:
            trio.run(_idle, schedule)
            with alarm(), pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    fairness, "_SLICE_SECONDS", -1.0
                )  # a turn for each piece of work, however long the last one took
                results.append(run_virtual(async_fn, *args))

    once()
    return results[0]


@contextmanager
def alarm() -> Generator[None, None, None]:
    """A run that hangs in a shield is ended by nothing inside it."""

    def ring(*_: object) -> None:
        raise TimeoutError("the run hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(HANGS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


async def _idle(turns: int) -> None:
    """Two tasks that only take turns: each time Trio throws its dice once."""

    async def idle() -> None:
        for _ in range(turns):
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(idle)
        nursery.start_soon(idle)


@define(eq=False)
class Stage:
    """One run of a scenario."""

    server: ScriptedServer
    supervisor: Supervisor
    hosts: trio.Nursery
    answered: list[object]
    """The victim's calls that the server has answered: it needs not be told that nobody waits."""
    crashes: int = 0
    others: list[ToolResult | NurseryError] = field(factory=list)
    """Outcomes of calls that nobody cancels."""

    async def call(self, tool: str = "soon", **options: object) -> ToolResult:
        return await self.supervisor.call_tool(tool, TOKEN, server="lab", **options)  # type: ignore[arg-type]

    async def bystander(self, tool: str = "soon", **options: object) -> None:
        arguments = {"token": "bystander"}
        try:
            self.others.append(await self.supervisor.call_tool(tool, arguments, server="lab", **options))  # type: ignore[arg-type]
        except NurseryError as error:
            self.others.append(error)

    def heard(self, token: str = "victim") -> int:
        """How often the server was told of a call."""
        return sum(arguments == {"token": token} for _, _, arguments in self.server.calls)


Scene = Callable[[Stage], Awaitable[object]]


async def nothing(stage: Stage) -> None:
    await trio.lowlevel.checkpoint()


async def connected(stage: Stage) -> None:
    await stage.supervisor.wait_connected("lab")


@frozen(kw_only=True)
class Scenario:
    lives: tuple[Life, ...] = (Life(),)
    lazy: bool = False
    idle_after: float | None = None
    before: Scene = connected
    act: Scene
    """What the victim does."""
    calls: bool = True
    """Whether it is a call that the server is to hear of."""
    mend: Scene = nothing
    """What a person does before the server takes calls again."""
    executions: int = 1
    """How often the server may hear the victim's call when nobody cancels it."""


async def lose_it_soon(stage: Stage) -> ToolResult:
    async def crash() -> None:
        await trio.sleep(0.5)
        stage.crashes += 1
        stage.server.crash()

    stage.hosts.start_soon(crash)
    return await stage.call("look", when_down="wait")


async def outlive_the_crash(stage: Stage) -> None:
    await trio.sleep(1)


async def behind_a_deaf_server(stage: Stage) -> None:
    """The server reads one frame more, the bystander's; what comes then is queued."""
    await stage.supervisor.wait_connected("lab")
    stage.hosts.start_soon(stage.bystander)
    await trio.testing.wait_all_tasks_blocked()


async def stop(stage: Stage) -> None:
    stage.hosts.start_soon(stage.bystander)
    await stage.supervisor.stop_server("lab")


async def reconnect(stage: Stage) -> None:
    await stage.supervisor.reconnect("lab")


async def reload(stage: Stage) -> None:
    """The server is changed, another added and removed again."""
    stage.hosts.start_soon(stage.bystander)
    await trio.lowlevel.checkpoint()
    changed = [evolve(lab_spec(stage.server), max_in_flight=number) for number in (3, 4)]
    await stage.supervisor.reload([changed[0], ServerSpec("other", lab().transport)])
    await stage.supervisor.reload(changed[1:])


async def drop_the_other(stage: Stage) -> None:
    """A reload that was cancelled may have been done or not; either way the next one says what there is."""
    await stage.supervisor.reload([lab_spec(stage.server)])
    assert [one.name for one in stage.supervisor.status()] == ["lab"]


async def left_alone(stage: Stage) -> None:
    """Until its connection is being closed for idleness."""
    await stage.supervisor.wait_connected("lab")
    await trio.sleep(2)
    await trio.testing.wait_all_tasks_blocked()
    assert stage.supervisor.status()[0].state == "idle"


async def refresh(stage: Stage) -> None:
    await stage.supervisor.list_tools(refresh=True)


async def start(stage: Stage) -> None:
    await stage.supervisor.start_server("lab")


async def mend_deaf(stage: Stage) -> None:
    await stage.supervisor.reconnect("lab")


SCENARIOS = {
    "call": Scenario(act=Stage.call),
    "call by deadline": Scenario(act=lambda stage: stage.call(timeout=3, idle_timeout=2)),
    "call while connecting": Scenario(lives=(Life(connects_after=0.5),), before=nothing, act=Stage.call),
    "call of a slow old server": Scenario(
        lives=(Life(connects_after=0.5, modern=False),), before=nothing, act=Stage.call
    ),
    "call of a lazy server": Scenario(lazy=True, before=nothing, act=Stage.call),
    "call behind a deaf server": Scenario(
        lives=(Life(deaf_after=3), Life()),
        before=behind_a_deaf_server,
        act=lambda stage: stage.call(timeout=3),
        mend=mend_deaf,
        executions=0,
    ),
    "call sent again": Scenario(act=lose_it_soon, executions=2, mend=outlive_the_crash),
    "call with a question": Scenario(act=lambda stage: stage.call("ask", timeout=9, idle_timeout=2), executions=2),
    "call with a page to visit": Scenario(act=lambda stage: stage.call("enter"), executions=2),
    "reconnect": Scenario(lives=(Life(closes_after=1),), act=reconnect, calls=False),
    "stop": Scenario(lives=(Life(closes_after=1),), act=stop, calls=False, mend=start),
    "refresh": Scenario(act=refresh, calls=False),
    "reload": Scenario(lives=(Life(closes_after=1),), act=reload, calls=False, mend=drop_the_other),
    "call of an idle server": Scenario(
        lives=(Life(closes_after=1), Life(connects_after=0.5)), idle_after=2, before=left_alone, act=Stage.call
    ),
    "list of an idle server": Scenario(idle_after=2, before=left_alone, act=refresh, calls=False),
}


class User:
    """Answers within a second."""

    def __init__(self) -> None:
        self.thinking = 0

    async def elicit(self, message: ServerMessage[ElicitRequestParams]) -> ElicitResult:
        self.thinking += 1
        try:
            await trio.sleep(1)
        finally:
            self.thinking -= 1
        return ElicitResult(action="accept")


FORM = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
PAGE = {"mode": "url", "message": "?", "url": "https://a.example"}


def lab(*lives: Life, answered: list[object] | None = None) -> ScriptedServer:
    asked = list[object]()

    async def soon(arguments: dict[str, object]) -> object:
        await trio.sleep(1)
        if answered is not None and arguments == TOKEN:
            answered.append(arguments)
        return json.dumps(arguments)

    async def ask(arguments: dict[str, object]) -> object:
        await soon(arguments)
        return Ask({"q": {"method": "elicitation/create", "params": FORM}}, go_on)

    async def go_on(_: dict[str, object]) -> object:
        if answered is not None:
            answered.clear()
        return await soon(dict(TOKEN))

    async def enter(arguments: dict[str, object]) -> object:
        if asked:
            return await go_on(arguments)
        asked.append(await soon(arguments))
        raise Refusal(-32042, "log in", {"elicitations": [PAGE]})

    tools = {"soon": soon, "look": soon, "ask": ask, "enter": enter}
    return ScriptedServer(*lives, tools=tools, annotations={"look": {"readOnlyHint": True}})


def lab_spec(server: ScriptedServer, *, lazy: bool = False, idle_after: float | None = None) -> ServerSpec:
    policy = RestartPolicy(delays=(0.5, 0.5), stable_after=0)
    return ServerSpec("lab", server.transport, policy=policy, lazy=lazy, stop_idle_after=idle_after)


async def play(scenario: Scenario, step: int) -> bool:
    """One run with the victim cancelled at that step, and what must hold afterwards; False if it ended before."""
    answered = list[object]()
    server = lab(*scenario.lives, answered=answered)
    tasks, user = all_tasks(), User()
    callbacks = Callbacks(elicit=user.elicit)
    async with (
        trio.open_nursery() as hosts,
        open_supervisor(
            [lab_spec(server, lazy=scenario.lazy, idle_after=scenario.idle_after)], gate=0, callbacks=callbacks
        ) as supervisor,
    ):
        stage = Stage(server, supervisor, hosts, answered)
        await scenario.before(stage)
        told = len(server.cancelled)
        outcome: object = None
        with trio.CancelScope() as scope, AtStep(step, scope.cancel) as at_step:
            outcome = await perform(scenario, stage)
        await trio.testing.wait_all_tasks_blocked()
        assert user.thinking == 0
        if scenario.calls:
            after_a_call(scenario, stage, outcome, told, gave_up=scope.cancelled_caught)
        await scenario.mend(stage)
        await others_are_served(stage)
    assert server.most_alive <= 1
    assert len(server.starts) == len(server.ends)
    assert supervisor.statistics().calls.in_flight == 0
    await trio.testing.wait_all_tasks_blocked()
    assert all_tasks() == tasks
    return at_step.acted


async def perform(scenario: Scenario, stage: Stage) -> object:
    try:
        return await scenario.act(stage)
    except NurseryError as error:
        return error


def after_a_call(scenario: Scenario, stage: Stage, outcome: object, told: int, *, gave_up: bool) -> None:
    """The victim's call has left nothing behind, and the server knows all that it should."""
    expecting = [one for one in (stage.heard("bystander"),) if one > len(stage.others)]
    assert stage.supervisor.status()[0].calls.in_flight == len(expecting)
    assert stage.supervisor.statistics().router.waiting == 0
    heard = stage.heard()
    assert heard <= scenario.executions
    if not gave_up:
        assert heard == scenario.executions
        if isinstance(outcome, ToolResult):
            assert json.loads(outcome.full_text) == TOKEN
        assert len(stage.server.cancelled) - told == 0
    else:
        unanswered = heard > 0 and stage.server.calls[-1][0] > stage.crashes and not stage.answered
        assert len(stage.server.cancelled) - told in ((1,) if unanswered else (0, min(heard, 1)))


async def others_are_served(stage: Stage) -> None:
    """Whoever was not cancelled gets what was asked for."""
    result = await stage.supervisor.call_tool("soon", {"token": "after"}, server="lab", when_down="wait", timeout=60)
    assert json.loads(result.full_text) == {"token": "after"}
    assert stage.heard("after") == 1
    await trio.testing.wait_all_tasks_blocked()
    status = stage.supervisor.status()[0]
    assert (status.state, status.calls.in_flight) == ("connected", 0)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_cancelling_a_caller_at_every_step(name: str, schedule: int) -> None:
    assert sweep(lambda step: steadily(schedule, play, SCENARIOS[name], step)) >= 5


BLOCKS = {
    "at the gate": ((Life(connects_after=2, closes_after=1), Life()), 5.0, False),
    "in the body": ((Life(closes_after=1),), 0.25, True),
    "beside a mute server": ((Life(mute=True, closes_after=1),), 0.25, False),
    "while a restart is due": ((Life(refuses="no"), Life()), 0.25, True),
}


async def live_and_die(lives: tuple[Life, ...], gate: float, calls: bool, step: int) -> bool:
    """A whole block, entered, used and left, cancelled at that step."""
    server, other = lab(*lives), lab()
    tasks = all_tasks()
    supervisor: Supervisor | None = None
    with trio.CancelScope() as scope, AtStep(step, scope.cancel) as at_step:
        specs = [lab_spec(server), ServerSpec("other", other.transport)]
        async with open_supervisor(specs, gate=gate) as supervisor:
            if calls:
                await supervisor.wait_connected("lab")
                result = await supervisor.call_tool("soon", TOKEN, server="lab", when_down="wait")
                assert json.loads(result.full_text) == TOKEN
            await trio.sleep(0.5)
    for one in (server, other):
        assert one.most_alive <= 1
        assert len(one.starts) == len(one.ends)
    assert trio.current_time() <= 5 + 1.5 + 1 + 0.5
    assert supervisor is None or supervisor.statistics().calls.in_flight == 0
    await trio.testing.wait_all_tasks_blocked()
    assert all_tasks() == tasks
    return at_step.acted


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", BLOCKS)
def test_cancelling_the_block_at_every_step(name: str, schedule: int) -> None:
    assert sweep(lambda step: steadily(schedule, live_and_die, *BLOCKS[name], step)) > 20


def test_the_schedule_is_the_same_each_time() -> None:
    """What the other tests rest on: the step at which a run is cut is a step of the same run."""

    async def turns() -> list[str]:
        seen = list[str]()

        class Watch(trio.abc.Instrument):
            def before_task_step(self, task: trio.lowlevel.Task) -> None:
                seen.append(task.name)

        watch = Watch()
        trio.lowlevel.add_instrument(watch)
        assert not await play(SCENARIOS["call sent again"], int(1e9))
        trio.lowlevel.remove_instrument(watch)
        return seen

    assert steadily(0, turns) == steadily(0, turns)
    assert steadily(0, turns) != steadily(3, turns)
