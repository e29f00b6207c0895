"""Random configurations that take each other's place, among calls, crashes and people, and in the end a supervisor that
was opened with the last of them: both stand alike.

The servers are healthy but for crashes, and their ladders are long, so that what they come to is what they were told.
Each name has several scripted servers behind it: which one, and how it is kept, is a configuration's choice.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest
import trio
import trio.testing
from attrs import define, evolve, field, frozen
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_nursery.supervisor import (
    ConfigError,
    NurseryError,
    RestartPolicy,
    ServerSpec,
    Supervisor,
    ToolResult,
    open_supervisor,
)
from mcp_nursery.supervisor.errors import Delivery
from mcp_nursery.supervisor.events import ServerRemoved, StateChanged
from mcp_nursery.supervisor.status import ServerState, ServerStatus
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ..lab.world import Mirror, Noting, all_tasks, stands

pytestmark = pytest.mark.slow

NAMES = ("a", "a_b", "c")
SETTLING = 60.0

# -- what is generated --------------------------------------------------------------------------------------------


@frozen
class Choice:
    """How a configuration has one server."""

    which: int
    """Which of the scripted servers behind the name."""
    lazy: bool = False
    enabled: bool = True
    in_flight: int = 256
    deny: tuple[str, ...] = ()


@frozen
class Step:
    after: float
    what: Literal["reload", "call", "crash", "remove", "add", "stop", "list", "reconnect"]
    name: str
    choices: Mapping[str, Choice] = field(factory=dict)
    """Of a reload; of `add` those of its name count."""
    drain: float = 0.0
    tool: str = "now"
    cancel_after: float | None = None
    twice: bool = False
    """A reload names a server twice, and must change nothing."""


seconds = st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, 3.0])
choices = st.builds(
    Choice,
    st.integers(0, 1),
    lazy=st.sampled_from([False, False, True]),
    enabled=st.sampled_from([True, True, True, False]),
    in_flight=st.sampled_from([256, 256, 1]),
    deny=st.sampled_from([(), (), ("now",)]),
)
configurations = st.dictionaries(st.sampled_from(NAMES), choices, max_size=3)
steps = st.builds(
    Step,
    seconds,
    st.sampled_from(
        ["reload", "reload", "reload", "call", "call", "call", "crash", "remove", "add", "stop", "list", "reconnect"]
    ),
    st.sampled_from(NAMES),
    configurations,
    drain=st.sampled_from([0.0, 0.0, 1.5]),
    tool=st.sampled_from(["now", "soon"]),
    cancel_after=st.sampled_from([None, None, None, 0.5]),
    twice=st.sampled_from([False, False, False, True]),
)
lives = st.builds(
    Life, connects_after=st.sampled_from([0.0, 0.0, 0.5, 2.0]), closes_after=st.sampled_from([0.0, 0.0, 1.0, 3.0])
)

# -- how it runs --------------------------------------------------------------------------------------------------


@define(eq=False)
class Outcome:
    """A call and what became of it."""

    token: int
    name: str
    outcomes: list[ToolResult | BaseException] = field(factory=list)


@define(eq=False)
class World:
    """One run."""

    life: Life
    servers: dict[tuple[str, int], ScriptedServer] = field(factory=dict)
    calls: list[Outcome] = field(factory=list)
    alive: dict[str, int] = field(factory=dict)
    most_alive: dict[str, int] = field(factory=dict)
    refused: list[tuple[bool, type[NurseryError]]] = field(factory=list)
    """Of each reload that was: whether it should have been, and how."""
    unanswered: int = 0
    """Orders without an answer."""

    def server(self, name: str, which: int) -> ScriptedServer:
        if (name, which) not in self.servers:
            server = ScriptedServer(self.life, tools={"now": self.tool(0), "soon": self.tool(1), f"{which}": _echo})
            server.starts = Noting(lambda _at: self.count(name, 1))
            server.ends = Noting(lambda _at: self.count(name, -1))
            self.servers[name, which] = server
        return self.servers[name, which]

    def tool(self, lasts: float) -> Any:
        async def answer(arguments: dict[str, Any]) -> object:
            await trio.sleep(lasts)
            return json.dumps(arguments)

        return answer

    def count(self, name: str, change: int) -> None:
        self.alive[name] = self.alive.get(name, 0) + change
        self.most_alive[name] = max(self.most_alive.get(name, 0), self.alive[name])

    def spec(self, name: str, choice: Choice) -> ServerSpec:
        return ServerSpec(
            name,
            self.server(name, choice.which).transport,
            policy=RestartPolicy(delays=[0.5] * 50),
            lazy=choice.lazy,
            enabled=choice.enabled,
            max_in_flight=choice.in_flight,
            deny=choice.deny,
            stop_idle_after=20 if choice.lazy else None,
        )

    def specs(self, choices: Mapping[str, Choice]) -> list[ServerSpec]:
        return [self.spec(name, choice) for name, choice in choices.items()]

    # -- one thing after another ----------------------------------------------------------------------------------

    async def run(self, first: Mapping[str, Choice], done: Sequence[Step], final: Mapping[str, Choice]) -> Any:
        tasks = all_tasks()
        mirror = Mirror()
        async with trio.open_nursery() as hosts:
            async with open_supervisor(self.specs(first), gate=0) as supervisor:
                await hosts.start(self.mirror, supervisor, mirror)
                for step in done:
                    await trio.sleep(step.after)
                    hosts.start_soon(self.do, supervisor, step)
                await trio.sleep(SETTLING)
                assert self.unanswered == 0
                await supervisor.reload(self.specs(final))
                assert [one.name for one in supervisor.status()] == list(final)
                for name in {*NAMES} - {*final}:
                    assert self.alive.get(name, 0) == 0, "what was removed is closed"
                await trio.sleep(SETTLING)
                await trio.testing.wait_all_tasks_blocked()
                assert mirror.stands == stands(supervisor)
                end = await self.where_it_stands(supervisor)
            await trio.testing.wait_all_tasks_blocked()
            hosts.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert all_tasks() == tasks
        assert supervisor.statistics().calls.in_flight == 0
        return end

    async def where_it_stands(self, supervisor: Supervisor) -> Any:
        rests = {one.name: str(one.state) for one in supervisor.status()}
        tools = await supervisor.list_tools()
        stands = {one.name: (one.state, _due(one), one.max_attempts, one.error) for one in supervisor.status()}
        return rests, stands, [(tool.name, tool.available, tool.definition_hash) for tool in tools]

    async def mirror(
        self, supervisor: Supervisor, mirror: Mirror, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with supervisor.events() as events:
            mirror.stands.update(stands(supervisor))
            task_status.started()
            async for event in events:
                mirror.see(event)
                if isinstance(event, (StateChanged, ServerRemoved)):
                    assert self.alive.get(event.server, 0) <= 1

    async def do(self, supervisor: Supervisor, step: Step) -> None:
        if step.what == "call":
            await self.call(supervisor, step)
            return
        self.unanswered += 1
        try:
            await self.order(supervisor, step)
        except NurseryError as error:
            if step.what == "reload":
                self.refused.append((step.twice, type(error)))
        self.unanswered -= 1

    async def order(self, supervisor: Supervisor, step: Step) -> None:
        choice = step.choices.get(step.name, Choice(0))
        match step.what:
            case "reload":
                specs = self.specs(step.choices)
                twice = [self.spec(step.name, choice)] * 2 if step.twice else []
                await supervisor.reload([*specs, *twice], drain=step.drain)
            case "crash":
                for (name, _), server in self.servers.items():
                    if name == step.name and self.alive.get(name):
                        server.crash()
            case "remove":
                await supervisor.remove_server(step.name, drain=step.drain)
            case "add":
                await supervisor.add_server(self.spec(step.name, choice))
            case "stop":
                await supervisor.stop_server(step.name, drain=step.drain)
            case "reconnect":
                await supervisor.reconnect(step.name)
            case _:
                await supervisor.list_tools()

    async def call(self, supervisor: Supervisor, step: Step) -> None:
        one = Outcome(len(self.calls), step.name)
        self.calls.append(one)
        with trio.CancelScope() as scope:
            if step.cancel_after is not None:
                scope.deadline = trio.current_time() + step.cancel_after
            try:
                one.outcomes.append(await supervisor.call_tool(step.tool, {"token": one.token}, server=step.name))
            except NurseryError as error:
                one.outcomes.append(error)
            except trio.Cancelled as cancelled:
                one.outcomes.append(cancelled)
                raise


def _due(status: ServerStatus) -> int | None:
    """The attempt; which one it was that connected a server tells of its past, and an unchanged one keeps that."""
    return None if status.state is ServerState.CONNECTED else status.attempt


async def _echo(arguments: dict[str, Any]) -> object:
    await trio.lowlevel.checkpoint()
    return json.dumps(arguments)


def check(world: World) -> None:
    for name in NAMES:
        assert world.most_alive.get(name, 0) <= 1, f"two live transports of {name}"
        assert world.alive.get(name, 0) == 0, f"{name} outlives the block"
    assert set(world.refused) <= {(True, ConfigError)}
    heard = [(name, call[2]["token"]) for (name, _), server in world.servers.items() for call in server.calls]
    for call in world.calls:
        assert len(call.outcomes) == 1
        (outcome,) = call.outcomes
        executed = heard.count((call.name, call.token))
        assert [token for _, token in heard].count(call.token) == executed <= 1
        if isinstance(outcome, ToolResult):
            assert json.loads(outcome.full_text)["token"] == call.token
            assert executed == 1
        if getattr(outcome, "delivery", None) is Delivery.NOT_SENT:
            assert executed == 0


@given(lives, configurations, st.lists(steps, max_size=12), configurations, st.random_module())
@example(  # a call that was not sent goes to the changed server, in the same tick
    Life(closes_after=1.0),
    {"a": Choice(0, in_flight=1)},
    [
        Step(1.0, "call", "a", tool="soon"),
        Step(0.0, "call", "a"),
        Step(0.5, "reload", "a", {"a": Choice(1)}, drain=1.5),
    ],
    {"a": Choice(1)},
    None,
)
def test_after_any_reloads_it_stands_as_if_it_had_been_opened_so(
    life: Life,
    first: Mapping[str, Choice],
    done: Sequence[Step],
    final: Mapping[str, Choice],
    schedule: object,
) -> None:
    """L7, L9, L18, Q11."""
    if any(step.what in ("stop", "reconnect") for step in done):  # what a person did to an unchanged server stays
        final = {name: evolve(choice, in_flight=99) for name, choice in final.items()}
    world, fresh = World(life), World(life)
    end = run_virtual(world.run, first, done, final)
    check(world)
    assert end == run_virtual(fresh.run, final, [], final)
    check(fresh)


@given(lives, configurations, st.lists(steps, max_size=8), st.random_module())
def test_the_same_configuration_again_changes_nothing(
    life: Life, first: Mapping[str, Choice], done: Sequence[Step], schedule: object
) -> None:
    """L18: whatever went on before, no connection ends, and no server is started that is at rest."""

    async def main() -> None:
        world = World(life)
        async with trio.open_nursery() as hosts, open_supervisor(world.specs(first)) as supervisor:
            for step in done:
                await trio.sleep(step.after)
                if step.what != "reload":
                    hosts.start_soon(world.do, supervisor, step)
            await trio.sleep(5)  # in the middle of things, perhaps
            now = [supervisor._servers.snapshots[one.name].value.spec for one in supervisor.status()]
            before = [len(server.starts) for server in world.servers.values()]
            ends = [len(server.ends) for server in world.servers.values()]
            incarnations = stands(supervisor)
            await supervisor.reload([evolve(spec) for spec in now])
            assert stands(supervisor) == incarnations
            assert [len(server.starts) for server in world.servers.values()] == before
            assert [len(server.ends) for server in world.servers.values()] == ends
            hosts.cancel_scope.cancel()

    run_virtual(main)
