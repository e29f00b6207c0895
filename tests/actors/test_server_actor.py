"""One incarnation: what it reports and when, and that every call it was given has an outcome, however it ends.

Servers are scripted, time is virtual, and every time is exact.
"""

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_nursery.actors.callbacks import NO_CALLBACKS, Callbacks, Host
from mcp_nursery.actors.enums import Delivery, Era, ExitKind
from mcp_nursery.actors.errors import StartFailed
from mcp_nursery.actors.messages import Connected, Ended, Ending, ExitReason, Opened
from mcp_nursery.actors.outcomes import Answered, Loss
from mcp_nursery.actors.session.connection import Connection
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ..lab.actors import TOLD, Scripted, Slow, ignore, living, sleeps
from ..lab.sessions import MUTE, Reply, answers, discovery, greeting, listing, refuses
from ..lab.wire_peer import notice, result

SETTING = "(connect_timeout, or connectSeconds in a file, gives it more)"


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
        assert connected.handshake.server_info["name"] == "scripted"
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
    assert seen.reason.at == 5


async def test_a_loss_counts_the_calls_that_were_pending(autojump_clock):
    async with living(ScriptedServer(Life(dies_after=5, exit_code=0), tools={"ignore": ignore})) as seen:
        await seen.connected.wait()
        seen.send("one", "ignore")
        seen.send("two", "ignore")
        await seen.ended.wait()
    assert seen.reason.loss == Loss("exited with code 0", exit_code=0, pending=2)
    assert seen.outcomes == dict.fromkeys(["one", "two"], (5, seen.reason.loss, Delivery.UNKNOWN))


async def test_a_clean_exit_is_told_apart(autojump_clock):
    async with living(ScriptedServer(Life(dies_after=5, exit_code=0))) as seen:
        await seen.ended.wait()
    assert (seen.reason.loss.exit_code, seen.reason.loss.pending) == (0, 0)


@pytest.mark.parametrize(("usable", "kind"), [(True, ExitKind.CONNECT_FAILED), (False, ExitKind.UNUSABLE)])
async def test_a_start_that_fails(usable, kind, autojump_clock):
    async with living(ScriptedServer(Life(refuses="no such luck", usable=usable))) as seen:
        await seen.ended.wait()
    assert seen.story == [(0, Ending), (0, Ended)]
    assert seen.reason == ExitReason(kind, Loss("no such luck"), at=0)


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
    late = Loss(f"not connected within 7 s: no answer to server/discover or initialize {SETTING}")
    assert seen.reason == ExitReason(ExitKind.CONNECT_FAILED, late, at=7)


def test_a_list_that_comes_in_a_turn_that_outlasts_the_time_comes_too_late(caplog):
    """The time is over when the list has been read, before the actor has had its turn. It, or the reader, is next."""

    async def once(clock):
        def listed(request_id):
            return [result(request_id, {"tools": []}), notice("notifications/unknown")]

        def overhear(*_said):
            clock.jump(10)

        server = Scripted(initialize=answers(greeting()), tools_list=Reply(listed))
        host = Host("lab", NO_CALLBACKS, protocol="handshake", overhear=overhear)
        async with living(server, host=host, connect_timeout=7) as seen:
            await seen.ended.wait()
        assert seen.story == [(0, Opened), (10, Ending), (10, Ended)]
        late = Loss(f"not connected within 7 s {SETTING}")
        assert seen.reason == ExitReason(ExitKind.CONNECT_FAILED, late, at=7, era=Era.HANDSHAKE)

    for _ in range(20):
        clock = MockClock(autojump_threshold=0)
        trio.run(once, clock, clock=clock)
    assert "please report" not in caplog.text


async def test_a_transport_that_does_not_open_is_given_up_at_the_deadline(autojump_clock):
    async with living(Slow(opens_after=math.inf, closes_after=2), connect_timeout=7) as seen:
        await seen.ended.wait()
    assert [kind for _, kind in seen.story] == [Ending, Ended]
    assert seen.reason.loss.message == f"not connected within 7 s: no connection {SETTING}"
    assert seen.reason.at == 7
    assert seen.story[-1] == (9, Ended)


@pytest.mark.parametrize(
    ("script", "missing"),
    [
        ({"server_discover": MUTE}, "answer to server/discover or initialize"),
        ({"server_discover": MUTE, "initialize": refuses(-32000)}, "answer to server/discover"),
        ({"server_discover": refuses(-32601)}, "answer to initialize"),
        ({"server_discover": answers(discovery()), "tools_list": MUTE}, "answer to tools/list"),
        ({"server_discover": MUTE, "initialize": answers(greeting()), "tools_list": MUTE}, "answer to tools/list"),
        ({"server_discover": answers(discovery()), "tools_list": listing("a", cursor="b")}, "answer to tools/list"),
    ],
)
async def test_what_did_not_come_in_time_is_named(script, missing, autojump_clock):
    if "tools_list" in script and script["tools_list"] is not MUTE:
        script = {**script, "tools_list": [script["tools_list"], MUTE]}
    async with living(Scripted(**{"initialize": MUTE, **script}), connect_timeout=7) as seen:
        await seen.ended.wait()
    assert seen.reason.loss.message == f"not connected within 7 s: no {missing} {SETTING}"


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


@pytest.mark.parametrize(("later", "end"), [(0, 2), (3, 5), (100, 51), (math.inf, 51)])
async def test_a_later_stop_shortens_the_drain_and_never_prolongs_it(later, end, autojump_clock):
    async with living(ScriptedServer(tools={"ignore": ignore})) as seen:
        await seen.connected.wait()
        seen.send("sent", "ignore")
        await trio.sleep(1)
        seen.actor.stop(drain=50)
        await trio.sleep(1)
        seen.actor.stop(drain=later)
        await seen.ended.wait()
    assert seen.outcomes["sent"][0] == end
    assert seen.story[-2:] == [(end, Ending), (end, Ended)]


async def test_of_two_stops_in_one_instant_the_shorter_drain_holds(autojump_clock):
    for drains in ((50, 3), (3, 50)):
        async with living(ScriptedServer(tools={"ignore": ignore})) as seen:
            await seen.connected.wait()
            seen.send("sent", "ignore")
            await wait_all_tasks_blocked()
            began = trio.current_time()
            for drain in drains:
                seen.actor.stop(drain=drain)
            await seen.ended.wait()
        assert seen.outcomes["sent"][0] == began + 3


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
                seen.send(number, "ignore", hand_over=False)
            seen.actor.stop(drain=drain)
            await seen.ended.wait()
            await wait_all_tasks_blocked()
            assert seen.outcomes == dict.fromkeys(range(calls), (0, TOLD, Delivery.NOT_SENT))

    for _ in range(20):
        trio.run(once, clock=MockClock(autojump_threshold=0))


async def test_a_call_that_was_handed_over_before_the_stop_has_its_time(autojump_clock):
    async with living(ScriptedServer(tools={"two": sleeps(2)})) as seen:
        await seen.connected.wait()
        await wait_all_tasks_blocked()
        seen.send("before", "two")
        seen.actor.stop(drain=3)
        seen.send("after", "two")
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BrokenResourceError):
            seen.send("late", "two")
        await seen.ended.wait()
    at, outcome, delivery = seen.outcomes["before"]
    assert (at, type(outcome), delivery) == (2, Answered, Delivery.ANSWERED)
    assert seen.outcomes["after"] == (0, TOLD, Delivery.NOT_SENT)


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


@pytest.mark.parametrize("where", ["list_tools", "watch_lists"])
async def test_a_crash_is_the_end_of_this_incarnation_and_of_nothing_else(where, autojump_clock, monkeypatch, caplog):
    """Q4: what crashes here may be a server's doing."""

    async def crash(*_arguments):
        await trio.sleep(1)
        raise LookupError("a bug of ours")

    monkeypatch.setattr(Connection, where, crash)
    async with living(ScriptedServer(Life(closes_after=2))) as seen:
        await seen.ended.wait()
    assert seen.reason.kind is ExitKind.LOST
    assert seen.reason.loss.message == "an unforeseen error: LookupError: a bug of ours"
    assert [(at, type(report)) for at, report in seen.reports][-1] == (3, Ended)
    assert "please report" in caplog.text
