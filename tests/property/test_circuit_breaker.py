"""The circuit breaker against a model that keeps the whole history and counts anew each time; and callers of a server
that answers, hangs and recovers, under any schedule. Times are integers, so that they compare with ==.
"""

import pytest
import trio
from attrs import define, field, frozen
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mcp_nursery.actors.errors import BreakerOpen, CallError
from mcp_nursery.supervisor import Call, MemoryStore, ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.decisions.circuit_breaker import BreakerStatus, Circuit
from mcp_nursery.supervisor.events import BreakerChanged
from mcp_nursery.supervisor.spec import CircuitBreaker
from mcp_nursery.supervisor.testing import ScriptedServer, run_virtual

from ..lab.specs import status


@define(eq=False)
class Caller:
    """One call."""

    at: float


@frozen
class Ended:
    """What became of it: it was answered, it failed, or neither."""

    caller: Caller
    answered: bool | None
    at: float


@define
class History:
    """All that happened on one connection, in order: a `Caller` when its call is let through, `Ended` when it ends."""

    breaker: CircuitBreaker
    happened: list[Caller | Ended] = field(factory=list)

    def stands(self) -> tuple[list[float], Caller | None]:
        """When the failures in a row were that count, and who probes."""
        row, probe = list[float](), None
        for one in self.happened:
            is_open = len(row) >= self.breaker.failures
            if isinstance(one, Caller):
                probe = one if is_open else probe
            elif one.answered:
                row, probe = [], None
            else:
                counts = one.caller is probe or not is_open
                probe = None if one.caller is probe else probe
                row += [one.at] if counts and one.answered is False else []
        return row, probe

    def probe_at(self) -> float | None:
        row, _ = self.stands()
        return row[-1] + self.breaker.open_for if len(row) >= self.breaker.failures else None


class OneConnection(RuleBasedStateMachine):
    """Callers who come, and whose calls end, in any order."""

    @initialize(failures=st.integers(1, 4), open_for=st.integers(1, 20))
    def begin(self, failures, open_for):
        breaker = CircuitBreaker(failures=failures, open_for=open_for)
        self.circuit, self.history = Circuit(breaker), History(breaker)
        self.under_way = []
        self.now = 0.0

    @rule(seconds=st.integers(1, 25))
    def time_passes(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.history.probe_at() is not None)
    @rule(early=st.sampled_from([0, 0, 0.5]))
    def it_is_time(self, early):
        self.now = max(self.now, self.history.probe_at() - early)

    @rule()
    def somebody_calls(self):
        probe_at, (_, probe) = self.history.probe_at(), self.history.stands()
        free = probe is None or probe.at + self.circuit.breaker.open_for <= self.now
        wanted = probe_at is None or (free and probe_at <= self.now)
        assert self.circuit.admits(self.now) == wanted
        if wanted:
            caller = Caller(self.now)
            self.under_way.append(caller)
            self.history.happened.append(caller)
            self.circuit = self.circuit.sent(caller, self.now)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), answered=st.sampled_from([True, False, False, False, None]))
    def a_call_ends(self, data, answered):
        caller = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(caller)
        self.history.happened.append(Ended(caller, answered, self.now))
        self.circuit = self.circuit.settled(caller, answers=answered, now=self.now)

    @precondition(lambda self: self.history.stands()[1] is not None)
    @rule(answered=st.sampled_from([True, False, None]))
    def the_probe_ends(self, answered):
        _, caller = self.history.stands()
        self.under_way.remove(caller)
        self.history.happened.append(Ended(caller, answered, self.now))
        self.circuit = self.circuit.settled(caller, answers=answered, now=self.now)
        assert self.circuit.probe is None, "its place is free, however it has ended"

    @invariant()
    def it_stands_where_its_history_says(self):
        row, probe = self.history.stands()
        probe_at = self.history.probe_at()
        assert (self.circuit.failures, self.circuit.probe_at, self.circuit.probe) == (len(row), probe_at, probe)
        if probe_at is None:
            assert (self.circuit.state, self.circuit.status(self.now)) == ("closed", None)
        else:
            state = "open" if probe is None else "half_open"
            assert self.circuit.status(self.now) == BreakerStatus(state, len(row), max(0.0, probe_at - self.now))


TestOneConnection = OneConnection.TestCase

# -- callers of a server that hangs now and then ------------------------------------------------------------------

OPEN_FOR, PATIENCE = 16.0, 2.0

MOMENTS = [0, 1, 3, 17, 18, 19, 20, 21, 22, 35, 37, 38, 40, 56, 58, 60]
"""It may open at 2, and let probes through at 18, 19, 20, 36 and so on."""
callers = st.lists(
    st.tuples(
        st.sampled_from(MOMENTS),
        st.sampled_from([1, 2, 3, 8]),  # how many
        st.sampled_from(["single", "single", "gather"]),
        st.sampled_from([None, None, 1.0]),  # after so many seconds they give up
    ),
    min_size=4,
    max_size=14,
)
turns = st.lists(st.sampled_from(MOMENTS[3:]), max_size=3, unique=True)


@define(eq=False)
class Log:
    """What happened, in the order of the schedule; hears of events when they are published, not when a reader comes."""

    lines: list[tuple[str, float, object]] = field(factory=list)

    def note(self, what, detail):
        self.lines.append((what, trio.current_time(), detail))

    def put(self, event, *, key=None):
        if isinstance(event, BreakerChanged):
            self.note("breaker", event)

    def finish(self):
        pass


@define(eq=False)
class Host:
    """Makes the calls, and turns the server from one that hangs into one that answers and back."""

    log: Log = field(factory=Log)
    outcomes: dict[int, object] = field(factory=dict)
    hangs: bool = True
    supervisor: Supervisor | None = None

    async def work(self, arguments):
        self.log.note("heard", arguments["n"])
        if self.hangs:
            await trio.sleep_forever()
        return "done"

    async def turn(self, at):
        await trio.sleep_until(at)
        self.hangs = not self.hangs

    async def reconnect(self, at):
        await trio.sleep_until(at)
        await self.supervisor.reconnect("lab")

    async def call(self, number, at, how, gives_up):
        await trio.sleep_until(at)
        outcome, made = None, Call("work", {"n": number}, server="lab", timeout=PATIENCE)
        with trio.move_on_after(gives_up or 1000):
            if how == "gather":
                (outcome,) = await self.supervisor.gather([made])
            else:
                try:
                    outcome = await self.supervisor.call_tool("work", made.arguments, server="lab", timeout=PATIENCE)
                except CallError as error:
                    outcome = error
        assert number not in self.outcomes
        self.outcomes[number] = outcome
        self.log.note("outcome", outcome)

    async def run(self, calls, turns, reconnects):
        breaker = CircuitBreaker(failures=3, open_for=OPEN_FOR)
        server = ScriptedServer(tools={"work": self.work})
        lab = ServerSpec("lab", server.transport, breaker=breaker)
        async with open_supervisor([lab], state=MemoryStore()) as self.supervisor:
            self.supervisor._servers.events._open.add(self.log)
            async with trio.open_nursery() as nursery:
                for at in turns:
                    nursery.start_soon(self.turn, at)
                for at in reconnects:
                    nursery.start_soon(self.reconnect, at)
                for number, one in enumerate(calls):
                    nursery.start_soon(self.call, number, *one)
            stood = [event.state for what, _, event in self.log.lines if what == "breaker"]
            stands = status(self.supervisor).breaker
            assert ("closed" if stands is None else stands.state) == (stood[-1] if stood else "closed")


@pytest.mark.slow
@given(
    callers=callers,
    turns=turns,
    reconnects=st.lists(st.sampled_from(MOMENTS), max_size=1),
    schedule=st.random_module(),
)
def test_one_probe_under_any_schedule(callers, turns, reconnects, schedule):
    """G11: while it is not closed the server sees one call at a time, and none before its time; whoever gives up makes
    room for the next; every caller has one outcome; and the events tell where it stands."""
    calls = [(at, how, gives_up) for at, many, how, gives_up in callers for _ in range(many)]
    host = Host()
    run_virtual(host.run, calls, turns, reconnects)
    assert sorted(host.outcomes) == list(range(len(calls)))
    check_what_was_heard(host.log)


def check_what_was_heard(log):
    state, changed, may_probe_at, probes = "closed", 0.0, 0.0, 0
    for what, at, detail in log.lines:
        if state == "half_open":
            assert at <= changed + PATIENCE, "whatever became of the probe, its place is free"
        if what == "breaker":
            assert detail.state != state
            assert (state, detail.state) != ("closed", "half_open")
            if detail.state == "half_open":
                assert at >= may_probe_at
            elif detail.state == "open":
                may_probe_at = at + detail.retry_in
                assert detail.retry_in in (0.0, OPEN_FOR)
            state, changed, probes = detail.state, at, 0
        elif what == "heard" and state == "half_open":
            probes += 1
            assert probes == 1
        elif what == "heard" and state == "open":
            assert at == changed, "sent before it opened"
        elif isinstance(detail, BreakerOpen):
            if at > changed:
                assert state != "closed"
            assert detail.delivery == "not_sent"
