"""R12: a call that becomes a task, in any interleaving of looks, losses, restarts, questions, answers, cancellations,
notifications, its time to live and steps of the server's clock: it has one outcome, in time, and the tool runs once."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from attrs import define, field, frozen
from hypothesis import event, given
from hypothesis import strategies as st
from mcp_types import ElicitResult

from mcp_nursery.supervisor import (
    CallTimeout,
    ConnectionLost,
    NurseryError,
    RestartPolicy,
    ServerDown,
    ServerError,
    ServerSpec,
    ToolResult,
    open_supervisor,
)
from mcp_nursery.supervisor.callbacks import Callbacks, ServerMessage
from mcp_nursery.supervisor.calls import followed_task
from mcp_nursery.supervisor.decisions.task_states import TASK_TRANSITIONS, TaskStatus
from mcp_nursery.supervisor.errors import TaskLost
from mcp_nursery.supervisor.servers import task_news
from mcp_nursery.supervisor.testing import Life, Refusal, run_virtual

from ..lab.asking import form
from ..lab.tasks import WORKING, OneTask, TaskServer, done, failed, wants

pytestmark = pytest.mark.slow

moments = st.sampled_from([0.0, 0.5, 1.0, 1.05, 2.0, 3.0, 7.0])
clocks = st.sampled_from(["1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "x", "2026-07-28T00:00:00Z"])


@frozen
class Plan:
    """What happens to one call."""

    steps: tuple[Any, ...]
    """What its task will be, one for each look."""
    takes: tuple[float, ...]
    """Seconds that its server takes for a look, in turn."""
    lives: tuple[Life, ...]
    clock: tuple[str, ...]
    """What the server's clock says, in turn."""
    lasts: int | None
    """Milliseconds."""
    interval: int
    thinks: float
    """Seconds that a person takes for an answer."""
    forgets: float
    timeout: float | None
    gives_up: float
    notifies: float | None
    """Seconds between two notifications of the server, which is listened to from the beginning; None: it has none."""


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    asks = [form(str(n)) for n in range(4)]
    questions = st.sets(st.sampled_from(range(4)), min_size=1).map(
        lambda keys: wants(**{str(n): asks[n] for n in keys})
    )
    steps = st.just(WORKING) | questions | st.just(Refusal(-32603, "a hiccup"))
    ends = st.sampled_from([done(), failed(), {"status": "cancelled"}, WORKING])
    lives = st.builds(
        Life,
        dies_after=st.sampled_from([math.inf, 0.5, 1.0, 2.0, 5.0, 30.0]),
        connects_after=st.sampled_from([0.0, 0.0, 0.5, 4.0]),
        silent_after=st.sampled_from([math.inf, math.inf, math.inf, 3.0]),
    )
    return Plan(
        (*draw(st.lists(steps, max_size=6)), draw(ends)),
        tuple(draw(st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.5]), min_size=1, max_size=4))),
        tuple(draw(st.lists(lives, min_size=1, max_size=4))),
        tuple(draw(st.lists(clocks, min_size=1, max_size=4))),
        draw(st.sampled_from([None, None, 0, 2000, 10_000])),
        draw(st.sampled_from([0, 1000, 3000])),
        draw(moments),
        draw(st.sampled_from([math.inf, math.inf, 2.0, 6.0])),
        draw(st.none() | st.sampled_from([0.5, 2.0, 5.0, 20.0])),
        draw(st.sampled_from([math.inf, math.inf, 0.0, 1.0, 3.0, 8.0])),
        draw(st.none() | st.sampled_from([0.7, 4.0])),
    )


@define(eq=False)
class Run:
    """One run of a plan."""

    plan: Plan
    server: TaskServer = field(init=False)
    asked: list[str] = field(factory=list)
    answered: list[str] = field(factory=list)
    outcome: object = None
    ended: float = math.nan
    """Seconds after its beginning."""

    def __attrs_post_init__(self) -> None:
        plan = self.plan
        made = {"ttlMs": plan.lasts, "pollIntervalMs": plan.interval}
        self.server = TaskServer(*plan.steps, made=made, lives=plan.lives)
        if plan.notifies is not None:
            self.server.capabilities["resources"] = {"subscribe": True}
        looks = iter(range(10**9))
        get = self.server.answers["tasks/get"]

        async def look(params: dict[str, Any]) -> Any:
            n = next(looks)
            await trio.sleep(plan.takes[n % len(plan.takes)])
            self.server.remembers = trio.current_time() < plan.forgets
            said: Any = await get(params)
            return {**said, "lastUpdatedAt": plan.clock[n % len(plan.clock)]}

        self.server.answers["tasks/get"] = look

    async def answer(self, message: ServerMessage[Any]) -> ElicitResult:
        self.asked.append(message.params.message)
        await trio.sleep(self.plan.thinks)
        self.answered.append(message.params.message)
        return ElicitResult(action="accept", content={})

    async def notify(self, seconds: float) -> None:
        while True:
            await trio.sleep(seconds)
            await self.server.notify("notifications/tasks", {"taskId": "t0", "status": "working"})

    async def play(self) -> None:
        async with trio.open_nursery() as nursery:
            if self.plan.notifies is not None:
                nursery.start_soon(self.notify, self.plan.notifies)
            await self.call()
            nursery.cancel_scope.cancel()

    async def call(self) -> None:
        spec = ServerSpec("lab", self.server.transport, policy=RestartPolicy(delays=(0.5, 1), stable_after=10))
        async with open_supervisor([spec], callbacks=Callbacks(elicit=self.answer), gate=10) as supervisor:
            began = trio.current_time()
            with trio.move_on_after(self.plan.gives_up), trio.move_on_after(600):
                try:
                    self.outcome = await supervisor.call_tool("work", server="lab", timeout=self.plan.timeout)
                except NurseryError as error:
                    self.outcome = error
            self.ended = trio.current_time() - began
            await trio.testing.wait_all_tasks_blocked()
            assert supervisor.statistics().calls.in_flight == 0

    @property
    def task(self) -> OneTask | None:
        return next(iter(self.server.tasks.values()), None)


def check(run: Run) -> None:
    plan, outcome, task = run.plan, run.outcome, run.task
    assert len(run.server.calls) <= 1
    assert len(set(run.answered)) == len(run.answered)
    if outcome is None:
        assert run.ended == pytest.approx(min(plan.gives_up, 600))
    if plan.timeout is not None and not isinstance(outcome, (ToolResult, type(None))):
        assert run.ended <= plan.timeout + 1e-9
    if task is not None:
        check_task(plan, task, set(run.answered))
        check_outcome(run, task)


def check_task(plan: Plan, task: OneTask, answered: set[str]) -> None:
    """Its server was asked about it no oftener than it may be, and told no more than was answered."""
    assert len(task.cancelled) <= 1
    for before, after in zip(task.looks, task.looks[1:], strict=False):
        assert after - before >= 0.1 - 1e-9
    for told in task.updates:
        assert told.keys() <= answered


def check_outcome(run: Run, task: OneTask) -> None:
    """The outcome is what became of the task, or why nobody can say."""
    plan, outcome = run.plan, run.outcome
    match outcome:
        case ToolResult():
            assert task.now == done()
        case ServerError():
            assert (task.now, outcome.delivery) == (failed(), "answered")
        case CallTimeout():
            assert (run.ended, outcome.delivery) == (pytest.approx(plan.timeout), "unknown")
        case TaskLost():
            assert (outcome.task_id, outcome.delivery) == (task.id, "unknown")
            assert TaskStatus(outcome.status) in TASK_TRANSITIONS
            (why,) = [why for word, why in reasons(run, task).items() if word in str(outcome)]
            assert why
        case ConnectionLost() | ServerDown():
            assert task.looks == []  # the answer with the task was lost, and the task with it
        case None:
            pass
        case _:
            raise AssertionError(outcome)


def reasons(run: Run, task: OneTask) -> dict[str, bool]:
    """What a lost task may say why it is lost, and whether that is so."""
    lasts = run.plan.lasts
    return {
        "does not know it": run.plan.forgets < math.inf,
        "time is over": lasts is not None and run.ended >= lasts / 1000,
        "it was cancelled": task.now == {"status": "cancelled"},
        "the server is failed": any(life.dies_after < math.inf for life in run.plan.lives),
        "did not say how it is": True,
    }


@pytest.fixture(autouse=True, scope="module")
def listened_to_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(followed_task, "LISTEN_AFTER", 0.0)
        patch.setattr(task_news, "STREAM_AGAIN", 0.5)
        yield


@given(plans(), st.random_module())
def test_any_life_of_a_task_has_one_outcome(plan: Plan, schedule: object) -> None:
    run = Run(plan)
    run_virtual(run.play)
    event(type(run.outcome).__name__)
    check(run)
