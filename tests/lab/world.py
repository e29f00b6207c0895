"""A generated world: scripted servers, people and callers that act at given times, and a trace of all that happened.

Rules that keep it deterministic where it must be:
- Times are integers and halves, so that they compare with ==. An auditor looks at quarters, when nothing else happens.
- In a *phased* world each act has a sixty-fourth of its own, so that no two things happen at one moment: what follows
  does not depend on Trio's schedule. In all others they collide on purpose, and `st.random_module()` varies the order.
- Callers live outside the supervisor's block: the end of the block owes them an outcome.
"""

import json
import math
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Any, Literal

import trio
from attrs import define, field, frozen
from hypothesis import strategies as st

from mcp_nursery.actors.queues import BoundedQueue, WhenFull
from mcp_nursery.supervisor import (
    ConfigError,
    NurseryError,
    RestartPolicy,
    ServerSpec,
    Supervisor,
    ToolResult,
    open_supervisor,
)
from mcp_nursery.supervisor.events import BreakerChanged, Event, ServerRemoved, SnapshotEvent, StateChanged
from mcp_nursery.supervisor.status import ServerStatus
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

CONNECT_TIMEOUT = 5.5
SETTLING = 150.0
"""Longer than any ladder here takes, so that at the end of the body nobody has reason to wait any more."""

NEVER = math.inf

# -- what is generated --------------------------------------------------------------------------------------------


@frozen
class Script:
    """One server: what it does and how it is to be kept."""

    name: str
    lives: tuple[Life, ...]
    delays: tuple[float, ...] = (2.0, 5.0)
    stable_after: float = 4.0
    lazy: bool = False
    trust_hints: bool = True
    revive: Literal["on_call"] | float | None = None
    stop_idle_after: float | None = None

    def life(self, start: int) -> Life:
        return self.lives[min(start, len(self.lives) - 1)]


@frozen
class Call:
    """A host calls a tool and, if `cancel_after` says so, gives up."""

    server: str
    tool: str = "write_soon"
    timeout: float | None = None
    idle_timeout: float | None = None
    when_down: Literal["wait", "fail"] | None = None
    resend: Literal["safe", "always", "never"] = "safe"
    cancel_after: float | None = None


@frozen
class Act:
    """Somebody does something to a server, or waits for it."""

    what: Literal["crash", "reconnect", "stop", "start", "remove", "add", "list", "refresh", "wait_connected"]
    server: str


STARTERS = ("reconnect", "start", "add")
ENDERS = ("stop", "remove")


@frozen
class Step:
    after: float
    """Seconds since the step before it."""
    does: Call | Act


seconds = st.sampled_from([0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0])
DURATIONS = {"now": 0.0, "soon": 1.0, "late": 3.5, "never": NEVER}
TOOLS = {f"{verb}_{when}": lasts for verb in ("write", "read", "put") for when, lasts in DURATIONS.items()}
ANNOTATIONS = {
    **{name: {"readOnlyHint": True} for name in TOOLS if name.startswith("read")},
    **{name: {"idempotentHint": True} for name in TOOLS if name.startswith("put")},
}
ladders = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0]), max_size=3).map(tuple)
stable_afters = st.sampled_from([0.5, 3.0, 4.0])


@st.composite
def lives(draw: st.DrawFn, stable_after: float, *, deaf: bool = True) -> Life:
    dies_after = [0.0, 0.5, stable_after - 0.5, stable_after, stable_after + 0.5, 8.0, NEVER]
    return draw(
        st.builds(
            Life,
            connects_after=st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, 4.0]),
            dies_after=st.sampled_from(dies_after),
            closes_after=st.sampled_from([0.0, 0.0, 0.5, 1.0, 4.0]),
            modern=st.booleans(),
            deaf_after=st.sampled_from([NEVER, NEVER, 2, 3, 4, 5] if deaf else [NEVER]),
        )
        | st.builds(Life, refuses=st.just("no such luck"))
        | st.builds(Life, refuses=st.just("who are you?"), needs_auth=st.just(True))
        | st.builds(Life, mute=st.just(True), closes_after=st.sampled_from([0.0, 0.5]))
    )


last_lives = st.sampled_from([Life(), Life(), Life(closes_after=3.0), Life(refuses="gone for good"), Life(mute=True)])


@st.composite
def scripts(draw: st.DrawFn, name: str, *, deaf: bool = True, lazy: bool = True) -> Script:
    stable_after = draw(stable_afters)
    return Script(
        name,
        (*draw(st.lists(lives(stable_after, deaf=deaf), max_size=4)), draw(last_lives)),
        draw(ladders),
        stable_after,
        lazy=lazy and draw(st.sampled_from([False, False, True])),
        trust_hints=draw(st.sampled_from([True, True, False])),
    )


def worlds(*names: str, deaf: bool = True, lazy: bool = True) -> st.SearchStrategy[tuple[Script, ...]]:
    return st.tuples(*(scripts(name, deaf=deaf, lazy=lazy) for name in names))


def calls(servers: Sequence[str]) -> st.SearchStrategy[Call]:
    limits = st.sampled_from([None, None, 0.0, 0.5, 1.0, 2.0, 5.0, 20.0])
    return st.builds(
        Call,
        st.sampled_from(servers),
        st.sampled_from(sorted(TOOLS)),
        timeout=limits,
        idle_timeout=st.sampled_from([None, None, None, 0.5, 2.0]),
        when_down=st.sampled_from([None, "wait", "fail"]),
        resend=st.sampled_from(["safe", "safe", "always", "never"]),
        cancel_after=limits,
    )


def acts(servers: Sequence[str]) -> st.SearchStrategy[Act]:
    common = ["crash", "crash", "reconnect", "stop", "start", "list", "refresh", "wait_connected"]
    return st.builds(Act, st.sampled_from([*common, "remove", "add"]), st.sampled_from(servers))


def steps(*servers: str, only: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[list[Step]]:
    does = calls(servers) | acts(servers) if only is None else only
    return st.lists(st.builds(Step, seconds, does), max_size=12)


# -- what is recorded ---------------------------------------------------------------------------------------------


@frozen
class Entry:
    """One line of the trace."""

    at: float
    what: Literal["start", "end", "ledger", "event", "act", "answer", "call", "outcome", "leave", "left"]
    server: str | None
    detail: Any = None


@define(eq=False)
class Record:
    """One call and what became of it."""

    token: int
    call: Call
    began: float
    ended: float | None = None
    outcomes: list[ToolResult | BaseException] = field(factory=list)

    @property
    def outcome(self) -> ToolResult | BaseException:
        return self.outcomes[0]

    @property
    def gave_up(self) -> bool:
        return isinstance(self.outcome, trio.Cancelled)

    @property
    def delivery(self) -> str | None:
        return getattr(self.outcome, "delivery", None)


@define(eq=False)
class Done:
    """One act and its answer."""

    act: Act
    began: float
    ended: float | None = None
    error: BaseException | None = None


class Noting(list[Any]):
    """A list of a scripted server's that is also written into the trace."""

    def __init__(self, note: Callable[[Any], object]) -> None:
        super().__init__()
        self._note = note

    def append(self, item: Any) -> None:
        super().append(item)
        self._note(item)


Stand = tuple[str, int, int, str | None, str]
"""What of a status must follow from the events: state, incarnation, attempt, error, circuit breaker."""


def stand_of(status: ServerStatus) -> Stand:
    breaker = "closed" if status.breaker is None else status.breaker.state
    return (status.state, status.incarnation, status.attempt, status.error, breaker)


@define
class Mirror:
    """The status rebuilt from events alone."""

    stands: dict[str, Stand] = field(factory=dict)
    lags: int = 0

    def see(self, event: Event) -> None:
        match event:
            case StateChanged():
                breaker = self.stands[event.server][-1] if event.server in self.stands else "closed"
                self.stands[event.server] = (event.new, event.incarnation, event.attempt, event.error, breaker)
            case BreakerChanged():
                self.stands[event.server] = (*self.stands[event.server][:-1], event.state)
            case SnapshotEvent(status=status):
                self.stands[status.name] = stand_of(status)
            case ServerRemoved():
                self.stands.pop(event.server, None)
            case _ if hasattr(event, "missed"):
                self.lags += 1
                self.stands.clear()  # the snapshots that follow are all there is
            case _:
                pass


def stands(supervisor: Supervisor) -> dict[str, Stand]:
    return {one.name: stand_of(one) for one in supervisor.status()}


@define(eq=False)
class Trace:
    """All that happened in one world, in order."""

    scripts: dict[str, Script]
    servers: dict[str, ScriptedServer] = field(factory=dict)
    log: list[Entry] = field(factory=list)
    calls: list[Record] = field(factory=list)
    acts: list[Done] = field(factory=list)
    audits: list[tuple[float, dict[str, Stand], dict[str, Stand]]] = field(factory=list)
    """(time, what the events say, what the status says)."""
    unanswered_at_leave: list[Done] = field(factory=list)
    left_open: list[object] = field(factory=list)
    """Calls and acts without an outcome when the block was left."""
    tasks_before: set[str] = field(factory=set)
    tasks_after: set[str] = field(factory=set)
    in_flight: int = 0
    """Calls that the status still counts in flight after the end."""
    router_waiting: int = 0
    lags: int = 0

    def note(self, what: Any, server: str | None, detail: Any = None) -> int:
        self.log.append(Entry(trio.current_time(), what, server, detail))
        return len(self.log) - 1

    def of(self, server: str, *whats: str) -> list[tuple[int, Entry]]:
        """A server's lines with their positions."""
        return [(i, one) for i, one in enumerate(self.log) if one.server == server and one.what in whats]

    def at(self, what: str) -> float:
        return next(one.at for one in self.log if one.what == what)

    def timeline(self, server: str, since: float = -NEVER) -> list[tuple[Any, ...]]:
        """Starts, ends and states of a server."""
        line: list[tuple[Any, ...]] = []
        for _, one in self.of(server, "start", "end", "event"):
            if one.at < since or one.at > self.at("leave"):
                continue
            if one.what != "event":
                line.append((one.at, one.what))
            elif isinstance(event := one.detail, StateChanged):
                line.append((one.at, event.new, event.incarnation, event.attempt, event.error, event.retry_in))
        return sorted(line, key=lambda one: one[0])


# -- how it runs --------------------------------------------------------------------------------------------------


def all_tasks() -> set[str]:
    """Every task of the run, by identity."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    found, rest = set[str](), [root]
    while rest:
        task = rest.pop()
        found.add(f"{task.name}@{id(task)}")
        rest.extend(child for nursery in task.child_nurseries for child in nursery.child_tasks)
    return found


def scripted(script: Script, trace: Trace) -> ScriptedServer:
    """A server whose tools answer with the caller's token and the incarnation that heard it."""

    def tool(lasts: float) -> Callable[[dict[str, Any]], Awaitable[object]]:
        async def answer(arguments: dict[str, Any]) -> object:
            heard_by = len(server.starts)
            await trio.sleep(lasts)
            return json.dumps({"token": arguments["token"], "incarnation": heard_by})

        return answer

    server = ScriptedServer(
        *script.lives, tools={name: tool(lasts) for name, lasts in TOOLS.items()}, annotations=ANNOTATIONS
    )
    server.starts = Noting(lambda at: trace.note("start", script.name, at))
    server.ends = Noting(lambda at: trace.note("end", script.name, at))
    server.calls = Noting(lambda call: trace.note("ledger", script.name, call))
    trace.servers[script.name] = server
    return server


def spec(script: Script, server: ScriptedServer) -> ServerSpec:
    return ServerSpec(
        script.name,
        server.transport,
        policy=RestartPolicy(delays=script.delays, stable_after=script.stable_after),
        lazy=script.lazy,
        trust_hints=script.trust_hints,
        revive=script.revive,
        stop_idle_after=script.stop_idle_after,
        connect_timeout=CONNECT_TIMEOUT,
    )


class _Tap(BoundedQueue[Event]):
    """The queue of a reader that never is: notes each event when it is published, before any reader is given it."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def put(self, item: Event, size: int = 0, *, key: Hashable = None, when_full: WhenFull | None = None) -> bool:
        self._trace.note("event", getattr(item, "server", None), item)
        return True


class World:
    """One run of scripts and steps."""

    def __init__(self, scripts: Iterable[Script], times: Sequence[tuple[float, Call | Act]], slowness: float) -> None:
        self.trace = Trace({script.name: script for script in scripts})
        self.times = times
        self.slowness = slowness
        self.mirror = Mirror()
        self.slow_mirror = Mirror()

    async def run(self, drain: float) -> Trace:
        trace = self.trace
        specs = [spec(script, scripted(script, trace)) for script in trace.scripts.values()]
        trace.tasks_before = all_tasks()
        async with trio.open_nursery() as hosts:
            async with open_supervisor([], drain=drain) as supervisor:
                self.supervisor = supervisor
                for mirror, slowness in ((self.mirror, 0.0), (self.slow_mirror, self.slowness)):
                    await hosts.start(self._read, mirror, slowness)
                for one in specs:  # only now, so that the trace holds every event
                    await supervisor.add_server(one)
                await self._act_and_settle(hosts)
                trace.unanswered_at_leave = [done for done in trace.acts if done.ended is None]
                trace.note("leave", None)
            trace.note("left", None)
            await trio.testing.wait_all_tasks_blocked()
            begun: list[Record | Done] = [*trace.calls, *trace.acts]
            trace.left_open = [one for one in begun if one.ended is None]
            hosts.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        trace.tasks_after = all_tasks()
        statistics = supervisor.statistics()
        trace.in_flight = statistics.calls.in_flight
        trace.router_waiting = statistics.router.waiting + statistics.router.senders_blocked
        trace.lags = self.mirror.lags + self.slow_mirror.lags
        return trace

    async def _act_and_settle(self, hosts: trio.Nursery) -> None:
        begun = trio.current_time()
        for at, does in self.times:
            if begun + at > trio.current_time():
                await trio.sleep_until(begun + at)
            if isinstance(does, Call):
                hosts.start_soon(self._call, does)
            else:
                hosts.start_soon(self._do, does)
            hosts.start_soon(self._audit, math.floor(begun + at) + 0.25)
        await trio.sleep(SETTLING)
        await trio.testing.wait_all_tasks_blocked()
        self._compare(self.mirror)
        self._compare(self.slow_mirror)

    async def _audit(self, at: float) -> None:
        if at > trio.current_time():
            await trio.sleep_until(at)
            self._compare(self.mirror)

    def _compare(self, mirror: Mirror) -> None:
        self.trace.audits.append((trio.current_time(), dict(mirror.stands), stands(self.supervisor)))

    async def _read(
        self, mirror: Mirror, slowness: float, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with self.supervisor.events() as events:
            if mirror is self.mirror:
                self._tap()
            mirror.stands.update(stands(self.supervisor))
            task_status.started()
            async for event in events:
                mirror.see(event)
                if slowness:
                    await trio.sleep(slowness)

    def _tap(self) -> None:
        """Write each event into the trace at the moment it is published, not when a reader comes round to it."""
        self.supervisor._servers.events._open.add(_Tap(self.trace))

    async def _call(self, call: Call) -> None:
        record = Record(len(self.trace.calls) + 1, call, trio.current_time())
        self.trace.calls.append(record)
        self.trace.note("call", call.server, record)
        try:
            with trio.CancelScope() as scope:
                if call.cancel_after is not None:
                    scope.deadline = trio.current_time() + call.cancel_after
                record.outcomes.append(await self._outcome(record))
        finally:
            record.ended = trio.current_time()
            self.trace.note("outcome", call.server, record)

    async def _outcome(self, record: Record) -> ToolResult | BaseException:
        call = record.call
        try:
            return await self.supervisor.call_tool(
                call.tool,
                {"token": record.token},
                server=call.server,
                timeout=call.timeout,
                idle_timeout=call.idle_timeout,
                when_down=call.when_down,
                resend=call.resend,
            )
        except NurseryError as error:
            return error
        except trio.Cancelled as cancelled:
            record.outcomes.append(cancelled)
            raise

    async def _do(self, act: Act) -> None:
        done = Done(act, trio.current_time())
        self.trace.acts.append(done)
        self.trace.note("act", act.server, done)
        try:
            await self._perform(act)
        except (NurseryError, ExceptionGroup) as error:
            done.error = error
        done.ended = trio.current_time()
        self.trace.note("answer", act.server, done)

    async def _perform(self, act: Act) -> None:
        supervisor = self.supervisor
        match act.what:
            case "crash":
                self.trace.servers[act.server].crash()
            case "reconnect":
                await supervisor.reconnect(act.server)
            case "stop":
                await supervisor.stop_server(act.server)
            case "start":
                await supervisor.start_server(act.server)
            case "remove":
                await supervisor.remove_server(act.server)
            case "add":
                await self._add(act.server)
            case "list" | "refresh":
                await supervisor.list_tools(act.server, refresh=act.what == "refresh")
            case "wait_connected":
                await supervisor.wait_connected(act.server)

    async def _add(self, name: str) -> None:
        script = self.trace.scripts[name]
        if any(one.name == name for one in self.supervisor.status()):
            raise ConfigError("it is there")
        await self.supervisor.add_server(spec(script, self.trace.servers[name]))


def run_world(
    scripts: Sequence[Script],
    steps: Sequence[Step] = (),
    *,
    phased: bool = False,
    only: str | None = None,
    slowness: float = 0.0,
    drain: float = 0.0,
) -> Trace:
    """Run a world under a clock of its own.

    Args:
        scripts: Its servers.
        steps: What is done to them.
        phased: Give each step its own sixty-fourth; `after` is then rounded to whole seconds.
        only: Leave out every other server, and what is done to it; the times stay.
        slowness: Seconds the second reader of events rests after each.
        drain: Seconds for calls in flight at the end.
    """
    times = [(at, does) for at, does in times_of(steps, phased=phased) if only in (None, does.server)]
    kept = [script for script in scripts if only in (None, script.name)]
    return run_virtual(World(kept, times, slowness).run, drain)


def times_of(steps: Sequence[Step], *, phased: bool) -> list[tuple[float, Call | Act]]:
    """When each step is done. For `phased` see `run_world`."""
    times: list[tuple[float, Call | Act]] = []
    at = 0.0
    for number, step in enumerate(steps, start=1):
        at += math.floor(step.after) if phased else step.after
        times.append((at + number / 64 if phased else at, step.does))
    return times
