"""L6, Q21: a connection that falls silent without an end is found to be dead. The clock is virtual, and times exact."""

import math
import re
from functools import partial

import pytest
import trio
from attrs import define, field, frozen

from mcp_nursery.actors.enums import ExitKind, ServerState
from mcp_nursery.actors.errors import ConnectionLost
from mcp_nursery.actors.liveness import CLOCK_INTERVAL, Liveness, is_lost, keep_watch, until_probe
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.session.base import HandshakeFailed
from mcp_nursery.supervisor import InProcessTransport, ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ..lab.actors import ignore, living, sleeps

S = ServerState
SILENT = Life(silent_after=1)
UNANSWERED = "no answer to a probe within 10 s (liveness gives it more)"


# -- decisions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "heard_at", "asked_at", "slept", "pause"),
    [
        (100, 100, -math.inf, 0, 30),
        (129, 100, -math.inf, 0, 1),
        (130, 100, -math.inf, 0, 0),
        (500, 100, -math.inf, 0, 0),
        (141, 100, 130, 0, 19),  # a miss: the next probe is an interval after the one before
        (141, 135, 130, 0, 24),  # an answer: an interval after it
        (101, 100, -math.inf, 29, 29),
        (101, 100, -math.inf, 30, 29),  # a sleep as long as the interval is survived
        (101, 100, -math.inf, 30.5, 0),
        (101, 100, -math.inf, -5000, 29),  # somebody set the wall clock back
    ],
)
def test_when_a_probe_is_due(now, heard_at, asked_at, slept, pause):
    assert until_probe(Liveness(), now=now, heard_at=heard_at, asked_at=asked_at, slept=slept) == pause


@pytest.mark.parametrize(
    ("misses", "in_flight", "lost"),
    [(0, 0, False), (1, 0, True), (2, 0, True), (0, 1, False), (1, 1, False), (2, 99, False), (3, 1, True)],
)
def test_when_silence_is_a_loss(misses, in_flight, lost):
    assert is_lost(misses, in_flight=in_flight) is lost


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
@pytest.mark.parametrize("name", ["interval", "timeout"])
def test_times_that_make_no_sense(name, seconds):
    with pytest.raises(ValueError, match="finite seconds > 0"):
        Liveness(**{name: seconds})


def test_the_defaults():
    assert Liveness() == Liveness(interval=30.0, timeout=10.0)


# -- watching -----------------------------------------------------------------------------------------------------


@define
class Link:
    """A connection as its watcher sees it, with a wall clock that may run on while Trio's stands still."""

    answers: bool = True
    fails: str | None = None
    in_flight: int = 0
    heard_at: float = 0.0
    slept: float = 0.0
    probes: list = field(factory=list)
    looks: list = field(factory=list)
    lost: Loss | None = None

    def wall(self):
        self.looks.append(trio.current_time())
        return 1e9 + trio.current_time() + self.slept

    async def probe(self):
        self.probes.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if self.fails:
            raise HandshakeFailed(Loss(self.fails))
        if not self.answers:
            await trio.sleep_forever()
        self.heard_at = trio.current_time()

    def lose(self, loss):
        self.lost = loss


async def watched(link, until, *acts):
    """Watch a link until a time, doing things to it at times of their own."""

    async def act(at, **changes):
        await trio.sleep_until(at)
        for name, value in changes.items():
            setattr(link, name, value)

    with trio.move_on_at(until):
        async with trio.open_nursery() as nursery:
            for at, changes in acts:
                nursery.start_soon(partial(act, at, **changes))
            await keep_watch(link, Liveness(), wall=link.wall)
            nursery.cancel_scope.cancel()
    return link


async def test_a_healthy_link_is_probed_once_an_interval(autojump_clock):
    link = await watched(Link(), 200)
    assert (link.probes, link.lost) == ([30, 60, 90, 120, 150, 180], None)


async def test_what_is_heard_puts_the_probe_off(autojump_clock):
    link = await watched(Link(), 100, (20, {"heard_at": 20}), (47, {"heard_at": 47}))
    assert link.probes == [77]


async def test_one_miss_is_a_loss_when_idle(autojump_clock):
    link = await watched(Link(), 1000, (42, {"answers": False}))
    assert (link.probes, link.lost, trio.current_time()) == (
        [30, 60],
        Loss(UNANSWERED),
        70,
    )


async def test_three_in_a_row_are_a_loss_with_calls_in_flight(autojump_clock):
    link = await watched(Link(answers=False, in_flight=1), 1000)
    assert (link.probes, trio.current_time()) == ([30, 60, 90], 100)
    assert link.lost is not None


async def test_an_answer_between_misses_begins_anew(autojump_clock):
    link = await watched(Link(answers=False, in_flight=1), 1000, (80, {"answers": True}), (95, {"answers": False}))
    assert link.probes == [30, 60, 90, 120, 150, 180]
    assert trio.current_time() == 190


async def test_a_miss_is_none_if_anything_was_heard_since(autojump_clock):
    """L6: such as progress of a call: the server is busy, and lives."""
    link = await watched(Link(answers=False), 66, (35, {"heard_at": 35}))
    assert (link.probes, link.lost) == ([30, 65], None)


async def test_calls_that_end_leave_one_miss_to_be_a_loss(autojump_clock):
    link = await watched(Link(answers=False, in_flight=1), 1000, (50, {"in_flight": 0}))
    assert (link.probes, trio.current_time()) == ([30, 60], 70)


async def test_a_probe_that_fails_is_a_miss_at_once_and_says_why(autojump_clock):
    link = await watched(Link(fails="connection refused"), 1000)
    assert (link.lost, trio.current_time()) == (Loss("connection refused"), 30)


async def test_a_machine_that_slept_probes_at_once(autojump_clock):
    """L6: Trio's clock stood still for an hour; someone looks within 5 s of waking."""
    link = await watched(Link(), 1000, (12, {"slept": 3600, "answers": False}))
    assert (link.probes, trio.current_time()) == ([15], 25)


async def test_a_short_sleep_is_none(autojump_clock):
    assert (await watched(Link(), 40, (12, {"slept": 30}))).probes == [30]


async def test_sleep_is_counted_once(autojump_clock):
    assert (await watched(Link(), 50, (12, {"slept": 3600}))).probes == [15, 45]


async def test_watching_costs_a_look_every_five_seconds(autojump_clock):
    """Q30: idle CPU near 0."""
    link = await watched(Link(), 3600)
    assert len(link.looks) <= 3600 / CLOCK_INTERVAL + 2 * len(link.probes)


# -- on a wire ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("modern", [True, False], ids=["discover", "ping"])
async def test_a_server_that_lives_answers(modern, autojump_clock):
    server = ScriptedServer(Life(modern=modern))
    async with living(server, liveness=Liveness()) as seen:
        await trio.sleep(24 * 3600 - 10)
    assert seen.reason.kind is ExitKind.STOPPED
    assert server.probes == [30 * number for number in range(1, 24 * 120)]


@pytest.mark.parametrize("modern", [True, False], ids=["discover", "ping"])
async def test_a_server_that_falls_silent_is_lost(modern, autojump_clock):
    """Q21: within interval and timeout of the last that was heard of it."""
    async with living(ScriptedServer(Life(modern=modern, silent_after=5)), liveness=Liveness()) as seen:
        await seen.ended.wait()
    assert (seen.reason.kind, seen.reason.at) == (ExitKind.LOST, 40)
    assert seen.reason.loss == Loss(UNANSWERED)


async def test_calls_in_flight_are_told_why_and_at_once(autojump_clock):
    """R3: not only when the dead connection is closed."""
    server = ScriptedServer(Life(silent_after=5, closes_after=20), tools={"ignore": ignore})
    async with living(server, liveness=Liveness(interval=4, timeout=2), max_in_flight=1) as seen:
        await seen.connected.wait()
        seen.send("sent", "ignore")
        seen.send("queued", "ignore")
        await seen.ended.wait()
    # heard at 4, probed at 8, 12, 16
    assert {name: (at, outcome.message, delivery) for name, (at, outcome, delivery) in seen.outcomes.items()} == {
        "sent": (18, "no answer to a probe within 2 s (liveness gives it more)", "unknown"),
        "queued": (18, "no answer to a probe within 2 s (liveness gives it more)", "not_sent"),
    }
    assert seen.reason.loss.pending == 1
    assert seen.reports[-1][0] == 38


async def test_answers_to_calls_are_signs_of_life(autojump_clock):
    server = ScriptedServer(tools={"work": sleeps(1)})
    async with living(server, liveness=Liveness(interval=5)) as seen:
        await seen.connected.wait()
        for number in range(10):
            seen.send(number, "work")
            await trio.sleep(3)
    assert server.probes == []


async def test_a_deaf_wire_is_lost(autojump_clock):
    """Q32: the probe cannot even be written."""
    async with living(ScriptedServer(Life(deaf_after=2)), liveness=Liveness()) as seen:
        await seen.ended.wait()
    assert (seen.reason.kind, seen.reason.at) == (ExitKind.LOST, 40)


async def test_stopped_while_it_is_probed(autojump_clock):
    """L9."""
    async with living(ScriptedServer(SILENT), liveness=Liveness()) as seen:
        await trio.sleep(35)
        seen.actor.stop()
        await seen.ended.wait()
    assert (seen.reason.kind, seen.reason.at) == (ExitKind.STOPPED, 35)


# -- in a supervisor ----------------------------------------------------------------------------------------------


@frozen
class Reached:
    """A scripted server that is reached as some transport would."""

    server: ScriptedServer
    kind: str

    def connector(self, *, close_grace):
        return self.server.transport.connector(close_grace=close_grace)


@pytest.mark.parametrize("kind", ["http", "sse", "ws"])
def test_on_by_default_where_a_link_can_go(kind):
    assert ServerSpec("a", Reached(ScriptedServer(), kind)).liveness == Liveness()
    assert ServerSpec("a", Reached(ScriptedServer(), kind), liveness=None).liveness is None
    own = Liveness(interval=5)
    assert ServerSpec("a", Reached(ScriptedServer(), kind), liveness=own).liveness is own


def test_off_by_default_where_an_end_is_always_seen():
    for transport in (StdioTransport("x"), InProcessTransport(object()), Reached(ScriptedServer(), "stdio")):
        assert ServerSpec("a", transport).liveness is None
    assert ServerSpec("a", StdioTransport("x"), liveness=Liveness()).liveness == Liveness()


async def test_a_black_hole_is_noticed_and_mended(autojump_clock):
    """Q21: lost while idle, noticed within interval and timeout, restarted by the ladder, callable again."""
    server = ScriptedServer(Life(silent_after=100), Life())
    async with open_supervisor([ServerSpec("lab", Reached(server, "http"))]) as supervisor:
        await trio.sleep_until(131)
        (one,) = supervisor.status()
        assert (one.state, one.error, one.retry_in) == (S.WAITING, UNANSWERED, 1)
        result = await supervisor.call_tool("mcp_lab_echo", when_down="wait")
        assert (trio.current_time(), result.incarnation) == (132, 2)


async def test_a_stdio_server_may_be_silent_for_ever(autojump_clock):
    server = ScriptedServer(SILENT)
    async with open_supervisor([ServerSpec("lab", Reached(server, "stdio"))]) as supervisor:
        await trio.sleep(10_000)
        assert supervisor.status()[0].state is S.CONNECTED
        assert server.probes == []


async def test_a_call_into_a_black_hole_is_lost_and_its_outcome_unknown(autojump_clock):
    """L6, Q15: three misses; the server has it in its ledger, and the caller is told that it may."""
    server = ScriptedServer(Life(silent_after=1), Life())
    async with open_supervisor([ServerSpec("lab", Reached(server, "ws"))]) as supervisor:
        await trio.sleep(2)
        with pytest.raises(ConnectionLost, match=rf"{re.escape(UNANSWERED)}; the server may have acted"):
            await supervisor.call_tool("mcp_lab_echo")
        assert trio.current_time() == 100
        assert len(server.calls) == 1
