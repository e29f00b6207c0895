"""One incarnation: what it reports and when, and that every call it was given has an outcome, however it ends.

Servers are scripted, time is virtual, and every time is exact.
"""

import itertools
import math
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_nursery.actors.callbacks import Callbacks, Host
from mcp_nursery.actors.enums import Delivery, Era, ExitKind
from mcp_nursery.actors.errors import StartFailed
from mcp_nursery.actors.messages import Connected, Ended, Ending, ExitReason, Opened, Refreshed
from mcp_nursery.actors.outcomes import Answered, Loss, Unlisted
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.server import ServerActor
from mcp_nursery.actors.session.connection import WiredConnection
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ..scheduler import AtStep
from ..tool_requests import tool_request
from .session.lab import answers, connection, greeting, listing

TOLD = Loss("stopped")


@define
class Seen:
    """An actor, what it reported and when, and how its calls ended."""

    actor: ServerActor
    nursery: trio.Nursery
    reports: list = field(factory=list)
    outcomes: dict = field(factory=dict)
    connected: trio.Event = field(factory=trio.Event)
    ending: trio.Event = field(factory=trio.Event)
    ended: trio.Event = field(factory=trio.Event)

    def report(self, report):
        self.reports.append((trio.current_time(), report))
        for kind, event in ((Connected, self.connected), (Ending, self.ending), (Ended, self.ended)):
            if isinstance(report, kind):
                event.set()

    @property
    def story(self):
        return [(at, type(report)) for at, report in self.reports]

    @property
    def owner(self):
        return next(report.owner for _, report in self.reports if isinstance(report, Connected))

    @property
    def reason(self) -> ExitReason:
        (reason,) = (report.reason for _, report in self.reports if isinstance(report, Ending))
        return reason

    def send(self, name, tool="echo", arguments=b"{}"):
        """A call by a caller of its own, whose outcome is kept under its name with the time and the delivery."""
        slot = ReplySlot()
        slot.route(1, self.owner.control)
        call = tool_request(server="x", tool=tool, arguments=arguments, meta={}, slot=slot)
        self.owner.mailbox.put_nowait(call)
        self.nursery.start_soon(self._wait, name, slot, scope := trio.CancelScope())
        return scope

    async def _wait(self, name, slot, scope):
        outcome = "gave up"
        with scope:
            outcome = await slot.wait(_no_progress)
        assert name not in self.outcomes
        self.outcomes[name] = (trio.current_time(), outcome, slot.delivery)


async def _no_progress(*_report):
    raise AssertionError


SETTINGS = {"incarnation": 3, "connect_timeout": 30, "era": None, "mailbox_size": 256, "max_in_flight": 256}


@asynccontextmanager
async def living(server, **settings):
    """An actor from its start until it has ended; it is stopped if the test does not do it."""
    connector = server.transport.connector(close_grace=1) if isinstance(server, ScriptedServer) else server
    async with trio.open_nursery() as nursery:
        seen = Seen(None, nursery)
        seen.actor = ServerActor(connector, report=seen.report, **{**SETTINGS, **settings})
        nursery.start_soon(seen.actor.run)
        yield seen
        seen.actor.stop()
        await seen.ended.wait()


async def ignore(_arguments):
    await trio.sleep_forever()


def sleeps(seconds):
    async def tool(_arguments):
        await trio.sleep(seconds)
        return f"slept {seconds}"

    return tool


class Slow:
    """A connector whose transport takes its time to open, and to close after a failure to."""

    def __init__(self, opens_after=0.0, closes_after=0.0, fails=None):
        self.opens_after, self.closes_after, self.fails = opens_after, closes_after, fails
        self.server = ScriptedServer()

    @asynccontextmanager
    async def connect(self, host):
        try:
            await trio.sleep(self.opens_after)
            if self.fails is not None:
                raise self.fails
            async with self.server.transport.connector(close_grace=1).connect(host) as connection:
                yield connection
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.closes_after)


class Scripted:
    """A connector to a server that is told what to answer."""

    def __init__(self, **script):
        self.script = script
        self.lab = None

    @asynccontextmanager
    async def connect(self, host):
        async with connection(host, **self.script) as (self.lab, opened):
            yield opened


async def test_roots_that_change_while_it_connects_are_announced_once_it_is_connected(autojump_clock):
    """P3: it may have asked already; and what changes later is announced at once."""
    server = Scripted(initialize=answers(greeting(), after=5), tools_list=listing("echo"))
    host = Host("lab", Callbacks(roots=[]), protocol="handshake")
    async with living(server, host=host) as seen:
        await trio.sleep(1)
        seen.actor.announce_roots()
        seen.actor.announce_roots()
        assert await seen.connected.wait() is None
        await wait_all_tasks_blocked()
        assert [message["method"] for message in server.lab.heard] == [
            *("initialize", "notifications/initialized", "tools/list", "notifications/roots/list_changed")
        ]
        seen.actor.announce_roots()
        await wait_all_tasks_blocked()
        assert server.lab.heard[-1]["method"] == "notifications/roots/list_changed"


# the course of a life


async def test_a_life_that_is_stopped(autojump_clock):
    server = ScriptedServer(Life(closes_after=2))
    async with living(server) as seen:
        await seen.connected.wait()
        await trio.sleep(10)
        seen.actor.stop()
        await seen.ended.wait()
    assert seen.story == [(0, Opened), (0, Connected), (10, Ending), (12, Ended)]
    assert seen.reports[0][1] == Opened(3, None)
    assert seen.reports[-1][1] == Ended(3)
    assert seen.reason == ExitReason(ExitKind.STOPPED, TOLD, at=10, era=Era.MODERN, era_answered=True)
    assert server.ends == [12]


async def test_what_is_reported_of_a_connection(autojump_clock):
    async with living(ScriptedServer(tools={"a": ignore, "b": ignore})) as seen:
        await seen.connected.wait()
        connected = seen.reports[-1][1]
        assert connected.owner.incarnation == 3
        assert connected.handshake.era is Era.MODERN
        assert connected.handshake.server_info.name == "scripted"
        assert [tool.name for tool in connected.definitions.tools] == ["a", "b"]
        assert connected.owner.mailbox.statistics().capacity == 256
        assert connected.owner.control.statistics().capacity == math.inf


async def test_a_life_that_is_lost(autojump_clock):
    server = ScriptedServer(Life(dies_after=5, exit_code=9, closes_after=1))
    async with living(server) as seen:
        await seen.ended.wait()
    assert seen.story == [(0, Opened), (0, Connected), (5, Ending), (6, Ended)]
    assert seen.reason.kind is ExitKind.LOST
    assert seen.reason.loss == Loss("exited with code 9", exit_code=9)
    assert (seen.reason.at, seen.reason.clean) == (5, False)


async def test_a_loss_counts_the_calls_that_were_pending(autojump_clock):
    async with living(ScriptedServer(Life(dies_after=5, exit_code=0), tools={"ignore": ignore})) as seen:
        await seen.connected.wait()
        seen.send("one", "ignore")
        seen.send("two", "ignore")
        await seen.ended.wait()
    assert seen.reason.loss == Loss("exited with code 0", exit_code=0, pending=2)
    assert not seen.reason.clean
    assert seen.outcomes == dict.fromkeys(["one", "two"], (5, seen.reason.loss, Delivery.UNKNOWN))


async def test_a_clean_exit_is_told_apart(autojump_clock):
    async with living(ScriptedServer(Life(dies_after=5, exit_code=0))) as seen:
        await seen.ended.wait()
    assert seen.reason.clean


@pytest.mark.parametrize(("usable", "kind"), [(True, ExitKind.CONNECT_FAILED), (False, ExitKind.UNUSABLE)])
async def test_a_start_that_fails(usable, kind, autojump_clock):
    async with living(ScriptedServer(Life(refuses="no such luck", usable=usable))) as seen:
        await seen.ended.wait()
    assert seen.story == [(0, Ending), (0, Ended)]
    assert seen.reason == ExitReason(kind, Loss("no such luck"), at=0)
    assert seen.reason.retriable is usable


async def test_a_start_that_fails_late_is_told_when_it_fails(autojump_clock):
    async with living(Slow(opens_after=4, fails=StartFailed("no", retriable=True))) as seen:
        await seen.ended.wait()
    assert seen.story == [(4, Ending), (4, Ended)]


async def test_a_handshake_that_is_refused_ends_the_attempt_with_its_era(autojump_clock):
    server = ScriptedServer(Life(modern=False, dies_of_probe=True, exit_code=101))
    async with living(server) as seen:
        await seen.ended.wait()
    assert seen.reason.kind is ExitKind.PROBE_REFUSED
    assert seen.reason.loss.exit_code == 101
    assert seen.reason.era is None
    async with living(server, era=Era.HANDSHAKE) as seen:
        await seen.connected.wait()
    assert seen.reason.era is Era.HANDSHAKE


# the connect timeout


async def test_a_server_that_is_mute_is_given_up_at_the_deadline_though_it_closes_slowly(autojump_clock):
    async with living(ScriptedServer(Life(mute=True, closes_after=5)), connect_timeout=7) as seen:
        await seen.ended.wait()
    assert seen.story == [(0, Opened), (7, Ending), (12, Ended)]
    assert seen.reason == ExitReason(ExitKind.CONNECT_FAILED, Loss("not connected within 7 s"), at=7)


async def test_a_transport_that_does_not_open_is_given_up_at_the_deadline(autojump_clock):
    async with living(Slow(opens_after=math.inf, closes_after=2), connect_timeout=7) as seen:
        await seen.ended.wait()
    assert [kind for _, kind in seen.story] == [Ending, Ended]
    assert seen.reason.at == 7
    assert seen.story[-1] == (9, Ended)


async def test_the_time_to_open_counts_against_the_deadline(autojump_clock):
    connector = Slow(opens_after=4)
    connector.server = ScriptedServer(Life(connects_after=4))
    async with living(connector, connect_timeout=7) as seen:
        await seen.ended.wait()
    assert seen.story == [(4, Opened), (7, Ending), (7, Ended)]


async def test_once_connected_there_is_no_deadline(autojump_clock):
    async with living(ScriptedServer(Life(connects_after=6.5)), connect_timeout=7) as seen:
        await seen.connected.wait()
        assert trio.current_time() == 6.5
        await trio.sleep(1000)
    assert seen.reason.kind is ExitKind.STOPPED


async def test_no_limit_is_no_limit(autojump_clock):
    server = ScriptedServer(Life(connects_after=100_000, modern=False))
    async with living(server, connect_timeout=math.inf, era=Era.HANDSHAKE) as seen:
        await seen.connected.wait()
        assert trio.current_time() == 100_000


async def test_a_failed_handshake_that_closes_slowly_past_the_deadline_ends_once_and_whole(autojump_clock):
    server = ScriptedServer(Life(modern=False, dies_of_probe=True, closes_after=20))
    async with living(server, connect_timeout=7) as seen:
        await seen.ended.wait()
    assert seen.story == [(0, Opened), (0, Ending), (20, Ended)]
    assert seen.reason.kind is ExitKind.PROBE_REFUSED


# stopping


async def test_stopped_before_it_ran_it_opens_nothing(autojump_clock):
    server = ScriptedServer(Life(connects_after=1))
    async with living(server) as seen:
        seen.actor.stop()
        await seen.ended.wait()
    assert seen.story == [(0, Ending), (0, Ended)]
    assert seen.reason.kind is ExitKind.STOPPED
    assert server.calls == []


@pytest.mark.parametrize(
    "connector", [Slow(opens_after=math.inf), ScriptedServer(Life(mute=True))], ids=["opening", "greeting"]
)
async def test_stopped_before_it_is_connected_it_ends_at_once(connector, autojump_clock):
    async with living(connector) as seen:
        await trio.sleep(0.5)
        seen.actor.stop(drain=10)
        await seen.ended.wait()
    assert seen.story[-2:] == [(0.5, Ending), (0.5, Ended)]
    assert Connected not in [kind for _, kind in seen.story]
    assert seen.reason == ExitReason(ExitKind.STOPPED, TOLD, at=0.5)


async def test_stopped_mid_handshake_the_end_is_told_before_the_slow_close(autojump_clock):
    async with living(ScriptedServer(Life(mute=True, closes_after=3))) as seen:
        await trio.sleep(0.5)
        seen.actor.stop()
        await seen.ended.wait()
    assert seen.story == [(0, Opened), (0.5, Ending), (3.5, Ended)]


async def test_without_drain_calls_that_were_sent_are_lost(autojump_clock):
    server = ScriptedServer(Life(closes_after=3), tools={"ignore": ignore})
    async with living(server) as seen:
        await seen.connected.wait()
        seen.send("sent", "ignore")
        await trio.sleep(1)
        seen.actor.stop()
        await seen.ended.wait()
    at, outcome, delivery = seen.outcomes["sent"]
    assert at == 1
    assert isinstance(outcome, Loss)
    assert delivery is Delivery.UNKNOWN
    assert seen.story[-2:] == [(1, Ending), (4, Ended)]


async def test_drain_gives_sent_calls_their_time_and_fails_the_others_at_once(autojump_clock):
    server = ScriptedServer(tools={"two": sleeps(2), "nine": sleeps(9)})
    async with living(server, max_in_flight=2) as seen:
        await seen.connected.wait()
        seen.send("short", "two")
        seen.send("long", "nine")
        await wait_all_tasks_blocked()
        seen.send("queued", "two")
        await trio.sleep(1)
        seen.actor.stop(drain=5)
        await wait_all_tasks_blocked()
        assert seen.outcomes["queued"] == (1, TOLD, Delivery.NOT_SENT)
        with pytest.raises(trio.BrokenResourceError):
            seen.send("late", "two")
        await seen.ended.wait()
    at, outcome, delivery = seen.outcomes["short"]
    assert (at, type(outcome), delivery) == (2, Answered, Delivery.ANSWERED)
    at, outcome, delivery = seen.outcomes["long"]
    assert (at, type(outcome), delivery) == (6, Loss, Delivery.UNKNOWN)
    assert seen.story[-2:] == [(6, Ending), (6, Ended)]
    assert [tool for _, tool, _ in server.calls] == ["two", "nine"]


async def test_drain_ends_with_the_last_call(autojump_clock):
    async with living(ScriptedServer(tools={"two": sleeps(2)})) as seen:
        await seen.connected.wait()
        seen.send("short", "two")
        await trio.sleep(1)
        seen.actor.stop(drain=50)
        await seen.ended.wait()
    assert seen.story[-1] == (2, Ended)
    assert seen.reason.kind is ExitKind.STOPPED


async def test_a_server_lost_while_it_drains_is_lost(autojump_clock):
    server = ScriptedServer(tools={"ignore": ignore})
    async with living(server) as seen:
        await seen.connected.wait()
        seen.send("sent", "ignore")
        await trio.sleep(1)
        seen.actor.stop(drain=50)
        await trio.sleep(1)
        server.crash(7)
        await seen.ended.wait()
    assert (seen.reason.kind, seen.reason.loss.exit_code, seen.reason.at) == (ExitKind.LOST, 7, 2)
    assert seen.outcomes["sent"] == (2, seen.reason.loss, Delivery.UNKNOWN)


async def test_calls_that_were_written_to_a_deaf_server_and_not_begun_are_not_sent(autojump_clock):
    server = ScriptedServer(Life(deaf_after=3), tools={"ignore": ignore})  # the probe, the listing, one call
    async with living(server) as seen:
        await seen.connected.wait()
        seen.send("heard", "ignore")
        seen.send("unheard", "ignore")
        await trio.sleep(1)
        seen.actor.stop(drain=5)
        await seen.ended.wait()
    at, outcome, delivery = seen.outcomes["unheard"]
    assert (at, type(outcome), delivery) == (1, Loss, Delivery.NOT_SENT)
    at, outcome, delivery = seen.outcomes["heard"]
    assert (at, type(outcome), delivery) == (6, Loss, Delivery.UNKNOWN)


@pytest.mark.parametrize("calls", [1, 2, 5])
@pytest.mark.parametrize("drain", [0, 3])
def test_a_call_and_a_stop_in_the_same_instant(calls, drain):
    """The order in which the actor's tasks run is random; no order may lose a call or crash the actor."""

    async def once():
        async with living(ScriptedServer(tools={"ignore": ignore})) as seen:
            await seen.connected.wait()
            await wait_all_tasks_blocked()
            for number in range(calls):
                seen.send(number, "ignore")
            seen.actor.stop(drain=drain)
            await seen.ended.wait()
            await wait_all_tasks_blocked()
            assert seen.outcomes == dict.fromkeys(range(calls), (0, TOLD, Delivery.NOT_SENT))

    for _ in range(20):
        trio.run(once, clock=MockClock(autojump_threshold=0))


def test_a_call_and_a_loss_in_the_same_instant():
    async def once():
        server = ScriptedServer(tools={"ignore": ignore})
        async with living(server, max_in_flight=1) as seen:
            await seen.connected.wait()
            await wait_all_tasks_blocked()
            seen.send("one", "ignore")
            seen.send("two", "ignore")
            server.crash()
            seen.send("three", "ignore")
            await seen.ended.wait()
            await wait_all_tasks_blocked()
            assert len(seen.outcomes) == 3
            assert {outcome.exit_code for _, outcome, _ in seen.outcomes.values()} == {1}
            assert seen.outcomes["three"][2] is Delivery.NOT_SENT

    for _ in range(20):
        trio.run(once, clock=MockClock(autojump_threshold=0))


# calls


async def test_a_call_is_answered(autojump_clock):
    server = ScriptedServer()
    async with living(server) as seen:
        await seen.connected.wait()
        seen.send("a", arguments=b'{"x":1}')
        seen.send("b", tool="nope")
        await wait_all_tasks_blocked()
        at, outcome, delivery = seen.outcomes["a"]
        assert (at, delivery) == (0, Delivery.ANSWERED)
        assert outcome.result["content"] == [{"type": "text", "text": '{"x": 1}'}]
        assert seen.outcomes["b"][1] == Unlisted()
    assert server.calls == [(1, "echo", {"x": 1})]


async def test_no_more_than_the_limit_are_at_the_server_and_every_place_that_is_freed_is_used(autojump_clock):
    running, most = 0, 0

    async def work(arguments):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(arguments["for"])
        running -= 1
        return "done"

    async with living(ScriptedServer(tools={"work": work}), max_in_flight=3) as seen:
        await seen.connected.wait()
        for number in range(9):
            seen.send(number, "work", b'{"for":%d}' % (10 if number == 0 else 1))
        await trio.sleep(100)
        assert most == 3
        ends = [seen.outcomes[number][0] for number in range(9)]
        # one place is held for ten seconds, the other two do one call a second
        assert ends == [10, 1, 1, 2, 2, 3, 3, 4, 4]


async def test_places_are_freed_by_callers_who_give_up(autojump_clock):
    server = ScriptedServer(tools={"ignore": ignore, "echo": sleeps(0)})
    async with living(server, max_in_flight=1) as seen:
        await seen.connected.wait()
        scope = seen.send("sent", "ignore")
        seen.send("next")
        await trio.sleep(1)
        assert seen.outcomes == {}
        scope.cancel()
        await wait_all_tasks_blocked()
        assert seen.outcomes["sent"] == (1, "gave up", Delivery.UNKNOWN)
        assert isinstance(seen.outcomes["next"][1], Answered)
    assert len(server.cancelled) == 1


async def test_a_queued_call_that_is_given_up_never_reaches_the_server(autojump_clock):
    server = ScriptedServer(tools={"two": sleeps(2)})
    async with living(server, max_in_flight=1) as seen:
        await seen.connected.wait()
        seen.send("first", "two")
        scope = seen.send("second", "two")
        seen.send("third", "two")
        await trio.sleep(1)
        scope.cancel()
        await trio.sleep(9)
        assert seen.outcomes["second"] == (1, "gave up", Delivery.NOT_SENT)
        assert [seen.outcomes[name][0] for name in ("first", "third")] == [2, 4]
    assert len(server.calls) == 2
    assert server.cancelled == []


async def test_a_call_given_up_at_a_deaf_server_is_withdrawn(autojump_clock):
    server = ScriptedServer(Life(deaf_after=2), tools={"ignore": ignore})
    async with living(server) as seen:
        await seen.connected.wait()
        seen.send("unheard", "ignore").cancel()
        scope = seen.send("also unheard", "ignore")
        await trio.sleep(1)
        scope.cancel()
        await wait_all_tasks_blocked()
        assert seen.outcomes["also unheard"] == (1, "gave up", Delivery.NOT_SENT)
    assert server.calls == []


async def test_the_mailbox_is_the_size_that_was_asked_for(autojump_clock):
    async with living(ScriptedServer(tools={"ignore": ignore}), mailbox_size=2, max_in_flight=1) as seen:
        await seen.connected.wait()
        seen.send("with the server", "ignore")
        await wait_all_tasks_blocked()
        seen.send(1, "ignore")
        seen.send(2, "ignore")
        with pytest.raises(trio.WouldBlock):
            seen.send(3, "ignore")


# what is left in the mailbox at the end


async def test_what_nobody_took_is_told_that_it_was_not_sent(autojump_clock):
    server = ScriptedServer(Life(dies_after=5), tools={"ignore": ignore})
    async with living(server, max_in_flight=1) as seen:
        await seen.connected.wait()
        for name in ("with the server", "queued", "queued too"):
            seen.send(name, "ignore")
        await seen.ended.wait()
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BrokenResourceError):
            seen.send("late", "ignore")
        with pytest.raises(trio.BrokenResourceError):
            seen.owner.control.put_nowait(ReplySlot())
    assert {name: delivery for name, (_, _, delivery) in seen.outcomes.items()} == {
        "with the server": Delivery.UNKNOWN,
        "queued": Delivery.NOT_SENT,
        "queued too": Delivery.NOT_SENT,
    }
    assert {outcome.exit_code for _, outcome, _ in seen.outcomes.values()} == {1}


def test_a_loss_is_told_to_queued_calls_at_once_and_not_after_the_slow_close():
    """R3: every pending call learns of a death within a tenth of a second."""

    async def once():
        server = ScriptedServer(Life(dies_after=5, closes_after=4), tools={"ignore": ignore})
        async with living(server, max_in_flight=1) as seen:
            await seen.connected.wait()
            for name in ("with the server", "queued", "queued too"):
                seen.send(name, "ignore")
            await seen.ended.wait()
            await wait_all_tasks_blocked()
            return {name: at for name, (at, _, _) in seen.outcomes.items()}

    for _ in range(20):
        times = trio.run(once, clock=MockClock(autojump_threshold=0))
        assert times == {"with the server": 5, "queued": 5, "queued too": 5}


async def test_a_host_that_cancels_it_all_leaves_no_caller_waiting(autojump_clock):
    async with trio.open_nursery() as callers:
        with trio.move_on_after(5):
            async with living(ScriptedServer(tools={"ignore": ignore}), max_in_flight=1) as seen:
                seen.nursery = callers
                await seen.connected.wait()
                seen.send("sent", "ignore")
                seen.send("queued", "ignore")
                await trio.sleep_forever()
    assert {name: (at, delivery) for name, (at, _, delivery) in seen.outcomes.items()} == {
        "sent": (5, Delivery.UNKNOWN),
        "queued": (5, Delivery.NOT_SENT),
    }
    assert [kind for _, kind in seen.story] == [Opened, Connected]


# interrupted at every step


async def interrupted(step, interrupt):
    """A short life with three calls, one of which waits for room; interrupted after so many steps."""
    server = ScriptedServer(Life(closes_after=1), tools={"one": sleeps(1)})
    async with trio.open_nursery() as callers:
        host = trio.CancelScope()
        seen = Seen(None, callers)
        connector = server.transport.connector(close_grace=1)
        seen.actor = ServerActor(connector, report=seen.report, **SETTINGS | {"max_in_flight": 2})
        asked = 0

        async def use():
            nonlocal asked
            await seen.connected.wait()
            seen.actor.refresh()
            for number in range(3):
                try:
                    seen.send(number, "one")
                except trio.BrokenResourceError:
                    return
                asked += 1

        async def be_done():
            await trio.sleep(60)
            seen.actor.stop()

        callers.start_soon(use)
        callers.start_soon(be_done)
        with AtStep(step, lambda: interrupt(seen.actor, host, server)), host:
            await seen.actor.run()
        await wait_all_tasks_blocked()
        assert len(seen.outcomes) == asked, "a caller was left waiting"
        assert not any(
            delivery is Delivery.NOT_SENT
            for _, outcome, delivery in seen.outcomes.values()
            if isinstance(outcome, Answered)
        )
        sent = sum(delivery is not Delivery.NOT_SENT for _, _, delivery in seen.outcomes.values())
        assert sent >= len(server.calls), "a call that reached the server was said not to have been sent"
        assert len(server.starts) == len(server.ends)
        callers.cancel_scope.cancel()
    return seen.story


def interrupted_at_every_step(interrupt):
    """The kinds of reports of each run, until a step comes that is after all there is to do."""
    stories, last = [], 0
    while last < 60:
        story = trio.run(interrupted, len(stories) + 1, interrupt, clock=MockClock(autojump_threshold=0))
        stories.append([kind for _, kind in story])
        last = story[-1][0] if story else 0
    assert len(stories) > 30
    return stories


STORIES = ([], [Opened], [Opened, Connected], [Opened, Connected, Refreshed])


@pytest.mark.parametrize("drain", [0, 0.5, 10])
def test_stopped_at_any_step_it_ends_once_and_every_call_has_an_outcome(drain):
    stories = interrupted_at_every_step(lambda actor, _host, _server: actor.stop(drain=drain))
    assert all(story[-2:] == [Ending, Ended] and story[:-2] in STORIES for story in stories)


def test_crashed_at_any_step_it_ends_once_and_every_call_has_an_outcome():
    def crash(actor, _host, server):
        if server._current is None:
            actor.stop()  # there is nothing to crash yet
        server.crash()

    stories = interrupted_at_every_step(crash)
    assert all(story[-2:] == [Ending, Ended] and story[:-2] in STORIES for story in stories)


def test_cancelled_at_any_step_it_leaves_no_caller_waiting():
    stories = interrupted_at_every_step(lambda _actor, host, _server: host.cancel())
    assert [story for story in stories[:-1] if story not in STORIES] == []


# listing again


async def test_the_tools_are_fetched_again_when_told(autojump_clock):
    server = ScriptedServer(tools={"a": ignore})
    async with living(server) as seen:
        await seen.connected.wait()
        await trio.sleep(1)
        server.tools = {"a": ignore, "b": sleeps(0)}
        seen.actor.refresh()
        await wait_all_tasks_blocked()
        at, report = seen.reports[-1]
        assert (at, [tool.name for tool in report.definitions.tools], report.error) == (1, ["a", "b"], None)
        assert report.incarnation == 3
        seen.send("new", "b")
        await wait_all_tasks_blocked()
        assert isinstance(seen.outcomes["new"][1], Answered)


def running(task=None):
    """The names of all functions that run as a task of their own."""
    task = task or trio.lowlevel.current_root_task()
    children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return {task.coro.__qualname__}.union(*map(running, children))


async def test_a_server_that_is_only_connected_has_no_task_for_what_it_may_never_do(autojump_clock):
    """A hundred idle servers: each task that waits for nothing costs 4 KB."""
    server = ScriptedServer()
    rare = {"ListRefresh._list_all", "Endpoint._deliver", "Outbox.run"}
    async with living(server) as seen:
        await seen.connected.wait()
        await trio.sleep(1)
        assert not rare & running()
        await server.notify("notifications/tools/list_changed")
        await wait_all_tasks_blocked()
        assert rare & running() == {"ListRefresh._list_all", "Endpoint._deliver"}
        await trio.sleep(1)
        assert rare & running() == {"Endpoint._deliver"}


async def test_requests_to_list_again_that_wait_are_one(autojump_clock):
    async with living(ScriptedServer()) as seen:
        await seen.connected.wait()
        await wait_all_tasks_blocked()
        for _ in range(10):
            seen.actor.refresh()
        await wait_all_tasks_blocked()
        relisted = [kind for _, kind in seen.story].count(Refreshed)
        assert 1 <= relisted <= 2


async def test_a_request_to_list_again_before_it_is_connected_is_kept(autojump_clock):
    async with living(ScriptedServer(Life(connects_after=5))) as seen:
        seen.actor.refresh()
        await trio.sleep(6)
        assert [kind for _, kind in seen.story] == [Opened, Connected, Refreshed]


async def test_a_request_to_list_again_after_the_end_is_passed_over(autojump_clock):
    """R7: whoever asks has not heard of the end yet; and the end may take its time."""
    server = ScriptedServer(Life(closes_after=2))
    async with living(server) as seen:
        await seen.connected.wait()
        server.crash()
        await trio.sleep(1)
        seen.actor.refresh()
        await seen.ended.wait()
        assert [kind for _, kind in seen.story] == [Opened, Connected, Ending, Ended]


async def test_listing_again_in_vain_is_told_and_is_not_the_end(autojump_clock):
    server = ScriptedServer(Life(deaf_after=2), tools={"ignore": ignore})
    async with living(server, connect_timeout=7) as seen:
        await seen.connected.wait()
        seen.actor.refresh()
        await trio.sleep(20)
        assert seen.reports[-1] == (7, Refreshed(3, error="tools/list got no answer within 7 s", answers=1))
        assert Ending not in [kind for _, kind in seen.story]


async def test_calls_go_on_while_it_lists_again(autojump_clock):
    server = ScriptedServer(tools={"two": sleeps(2)})
    async with living(server) as seen:
        await seen.connected.wait()
        seen.send("early", "two")
        seen.actor.refresh()
        seen.send("late", "two")
        await trio.sleep(3)
        assert [type(outcome) for _, outcome, _ in seen.outcomes.values()] == [Answered, Answered]


async def test_a_burst_of_changes_is_one_listing(autojump_clock):
    """P2, Q24: a tenth of a second after the first word of it; what comes later is another."""
    server = ScriptedServer(tools={"a": ignore})
    async with living(server) as seen:
        await seen.connected.wait()
        for at in (1, 1.5):
            await trio.sleep_until(seen.reports[1][0] + at)
            for _ in range(10):
                await server.notify("notifications/tools/list_changed")
                await trio.sleep(0.0078125)
        server.tools = {"b": ignore}
        await trio.sleep(10)
        relisted = [(at, [tool.name for tool in report.definitions.tools]) for at, report in seen.reports[2:]]
        assert relisted == [(pytest.approx(1.1), ["a"]), (pytest.approx(1.6), ["b"])]


async def test_changes_without_end_are_listed_ever_more_rarely(autojump_clock):
    """9,999 tools and list_changed without end: the loop did nothing but list them."""
    server = ScriptedServer(tools={"a": ignore})
    async with living(server) as seen:
        await seen.connected.wait()
        began = seen.reports[1][0]
        while trio.current_time() < began + 120:
            await server.notify("notifications/tools/list_changed")
            await trio.sleep(0.0625)
        at_rest = [at - began for at, _ in seen.reports[2:]]
        pauses = [later - earlier for earlier, later in itertools.pairwise(at_rest)]
        assert len(at_rest) < 20
        assert 30 < max(pauses) < 30.2
        # The host does not wait for that, and after a rest all is as before.
        count, now = len(seen.reports), trio.current_time()
        await server.notify("notifications/tools/list_changed")
        seen.actor.refresh()
        await trio.sleep(0.5)
        assert len(seen.reports) > count
        await trio.sleep(100)
        count, now = len(seen.reports), trio.current_time()
        await server.notify("notifications/tools/list_changed")
        await trio.sleep(1)
        assert seen.reports[count][0] == pytest.approx(now + 0.1)


@pytest.mark.parametrize("where", ["list_tools", "watch_lists"])
async def test_a_crash_is_the_end_of_this_incarnation_and_of_nothing_else(where, autojump_clock, monkeypatch, caplog):
    """Q4: what crashes here may be a server's doing."""

    async def crash(*_arguments):
        await trio.sleep(1)
        raise LookupError("a bug of ours")

    monkeypatch.setattr(WiredConnection, where, crash)
    async with living(ScriptedServer(Life(closes_after=2))) as seen:
        await seen.ended.wait()
    assert seen.reason.kind is ExitKind.LOST
    assert seen.reason.loss.message == "crashed: LookupError('a bug of ours')"
    assert [(at, type(report)) for at, report in seen.reports][-1] == (3, Ended)
    assert "please report" in caplog.text
