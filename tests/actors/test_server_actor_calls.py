"""The calls of one incarnation: each has one outcome, however it ends. Servers are scripted, and time is virtual."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.messages import Connected, Ended, Ending, Opened, Refreshed
from mcp_nursery.actors.outcomes import Answered, Unlisted
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.server_actor import ServerActor
from mcp_nursery.actors.session.connection import Connection
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ..lab.actors import SETTINGS, Seen, ignore, living, sleeps
from ..lab.scheduler import AtStep


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


async def test_a_crash_in_a_call_that_is_handed_over_gives_it_an_outcome_and_is_no_error_of_its_caller(
    autojump_clock, monkeypatch
):
    def crash(*_arguments):
        raise LookupError("a bug of ours")

    async with living(ScriptedServer()) as seen:
        await seen.connected.wait()
        await wait_all_tasks_blocked()
        monkeypatch.setattr(Connection, "submit", crash)
        seen.send("a")
        await seen.ended.wait()
    assert seen.reason.loss.message == "an unforeseen error: LookupError: a bug of ours"
    assert seen.outcomes["a"][2] is Delivery.NOT_SENT


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


async def test_a_crash_is_none_of_a_closed_mailbox_whatever_its_kind(monkeypatch, autojump_clock):
    async with living(ScriptedServer()) as seen:
        await seen.connected.wait()
        await wait_all_tasks_blocked()

        def crash(_connection, _requests):
            raise trio.ClosedResourceError

        monkeypatch.setattr(Connection, "submit", crash)
        seen.send("a")
        await seen.ended.wait()
        assert trio.current_time() == 0
        assert seen.reason.loss.message == "an unforeseen error: no reason is known"


# interrupted at every step


async def interrupted(step, interrupt):
    """A short life with three calls, one of which waits for room; interrupted after so many steps."""
    server = ScriptedServer(Life(closes_after=1), tools={"one": sleeps(1)})
    async with trio.open_nursery() as callers:
        host = trio.CancelScope()
        seen = Seen(callers)
        connector = server.transport.connector(close_grace=1)
        seen.actor = ServerActor(connector, report=seen.report, **SETTINGS | {"max_in_flight": 2})
        asked = 0

        async def use():
            nonlocal asked
            await seen.connected.wait()
            seen.actor.refresh("again")
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
