"""P2, Q24: how a server says that its tools changed, and what is made of it. Virtual time."""

from contextlib import asynccontextmanager

import pytest
import trio
from attrs import evolve
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.enums import ListKind
from mcp_nursery.actors.jsonrpc.stream_carrier import StreamCarrier
from mcp_nursery.actors.messages import Connected, Refreshed
from mcp_nursery.actors.outcomes import Rejected

from ...lab.actors import Scripted, living
from ...lab.sessions import CACHING, MUTE, Reply, answers, connection, discovery, greeting, listing, refuses
from ...lab.wire_peer import GONE, error, notice, result

OFFERED = {"tools": {"listChanged": True}}
MODERN = {"server_discover": answers(discovery(capabilities=OFFERED)), "tools_list": listing("echo")}
OLD = {"server_discover": refuses(-32601), "initialize": answers(greeting()), "tools_list": listing("echo")}
CHANGED = "notifications/tools/list_changed"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


def stamped(method, request_id, **params):
    return notice(method, {**params, "_meta": {SUBSCRIPTION_ID_META_KEY: request_id}})


def acknowledges(request_id):
    return stamped(ACKNOWLEDGED, request_id, notifications={"toolsListChanged": True})


LISTENS = Reply(acknowledges)
LISTED = (Connected, Refreshed)


@asynccontextmanager
async def watched(**script):
    """A connection that is listed and watched; `told` has the time of each word of a change, `looks` those of each time
    when there may have been one without a word."""
    told, looks = [], []

    def note(times):
        return lambda kinds: times.append(trio.current_time())

    async with connection(**script) as (lab, opened):
        await opened.handshake(None)
        await opened.list_tools()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opened.watch_lists, note(told), note(looks))
            await wait_all_tasks_blocked()
            yield lab, told, looks
            nursery.cancel_scope.cancel()


def listens(lab):
    return [at for at, method in lab.times if method == "subscriptions/listen"]


async def test_a_notification_of_the_older_eras(autojump_clock):
    """Three in one breath are one change."""
    async with watched(**OLD) as (lab, told, looks):
        for times in (1, 1, 3):
            lab.say(*[notice(CHANGED)] * times)
            await trio.sleep(1)
        assert told == [0, 1, 2]
        lab.say(notice("notifications/resources/updated", {"uri": "x:/y"}))
        await trio.sleep(1)
        assert told == [0, 1, 2]
        assert not listens(lab)
        assert looks == []


@pytest.mark.parametrize(
    ("word", "kinds"),
    [
        ("tools", {ListKind.TOOLS}),
        ("resources", {ListKind.RESOURCES, ListKind.TEMPLATES}),
        ("prompts", {ListKind.PROMPTS}),
    ],
)
async def test_each_word_of_a_change_names_its_lists_in_both_eras(word, kinds, autojump_clock):
    method, told, looks = f"notifications/{word}/list_changed", [], []
    offered = {name: {"listChanged": True} for name in ("tools", "resources", "prompts")}
    wanted = {f"{name}ListChanged": True for name in offered}
    honours = Reply(lambda request_id: stamped(ACKNOWLEDGED, request_id, notifications=wanted))
    modern = {**MODERN, "server_discover": answers(discovery(capabilities=offered)), "subscriptions_listen": honours}
    for script in (OLD, modern):
        async with connection(**script) as (lab, opened), trio.open_nursery() as nursery:
            await opened.handshake(None)
            await opened.list_tools()
            nursery.start_soon(opened.watch_lists, told.append, looks.append)
            await trio.sleep(1)
            asked = lab.heard_of("subscriptions/listen")
            assert [request["params"]["notifications"] for request in asked] == ([wanted] if script is modern else [])
            lab.say(stamped(method, asked[0]["id"]) if asked else notice(method))
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert {frozenset(each) for each in told} == {frozenset(kinds)}
        assert [frozenset(each) for each in looks] == ([frozenset(ListKind)] if script is modern else [])
        told.clear()


async def test_a_notification_before_the_watch_is_not_lost_and_one_before_the_list_is_settled(autojump_clock):
    told = []
    async with connection(**OLD) as (lab, opened), trio.open_nursery() as nursery:
        await opened.handshake(None)
        lab.say(notice(CHANGED))
        await trio.sleep(1)
        await opened.list_tools()
        nursery.start_soon(opened.watch_lists, lambda kinds: told.append("settled"), told.append)
        await trio.sleep(1)
        assert told == []
        nursery.cancel_scope.cancel()
    async with connection(**OLD) as (lab, opened), trio.open_nursery() as nursery:
        await opened.handshake(None)
        await opened.list_tools()
        lab.say(notice(CHANGED))
        await trio.sleep(1)
        nursery.start_soon(opened.watch_lists, lambda kinds: told.append("kept"), told.append)
        await trio.sleep(1)
        assert told == ["kept"]
        nursery.cancel_scope.cancel()


async def test_a_stream_is_held_where_one_is_offered(autojump_clock):
    """What changed before the server acknowledged it, it has told nobody: that is looked for once."""
    async with watched(**MODERN, subscriptions_listen=LISTENS) as (lab, told, looks):
        (request,) = lab.heard_of("subscriptions/listen")
        assert request["params"]["notifications"] == {"toolsListChanged": True}
        await trio.sleep(1000)
        assert (listens(lab), told) == (looks, [])
        lab.say(stamped(CHANGED, request["id"]))
        await trio.sleep(1)
        assert told
        assert set(told) == {trio.current_time() - 1}


@pytest.mark.parametrize("script", [MODERN | {"server_discover": answers(discovery())}, OLD], ids=["modern", "old"])
async def test_none_is_asked_for_where_none_is_offered(autojump_clock, script):
    async with watched(**script) as (lab, told, looks):
        await trio.sleep(1000)
        assert (listens(lab), told, looks) == ([], [], [])


async def test_a_server_that_offers_what_it_does_not_have_is_asked_once(autojump_clock):
    async with watched(**MODERN) as (lab, told, looks):
        await trio.sleep(1000)
        assert (len(listens(lab)), told, looks) == (1, [], [])


@pytest.mark.parametrize(
    "end",
    [lambda lab, number: lab.say(result(number, CACHING)), lambda lab, number: lab.say(error(number, -32603))],
    ids=["graceful", "abrupt"],
)
async def test_a_stream_that_ended_is_opened_again_and_what_it_missed_is_asked_for(autojump_clock, end):
    async with watched(**MODERN, subscriptions_listen=LISTENS) as (lab, told, looks):
        await trio.sleep(60)
        end(lab, lab.heard_of("subscriptions/listen")[-1]["id"])
        await trio.sleep(1)
        assert len(listens(lab)) == 2
        assert (told, looks) == ([], listens(lab))
        assert listens(lab)[1] - listens(lab)[0] == 60  # one that held for long is opened again at once


@pytest.mark.parametrize("answer", [refuses(-32603), answers({"resultType": "complete"})], ids=["refused", "ended"])
async def test_nobody_is_pestered(autojump_clock, answer):
    """The pauses grow, and the last one stays."""
    async with watched(**MODERN, subscriptions_listen=answer) as (lab, _, _):
        await trio.sleep(100)
        begun = listens(lab)[0]
        assert [round(at - begun) for at in listens(lab)] == [0, 0, 1, 3, 8, 23, 53, 83]


async def test_one_that_is_never_acknowledged_is_asked_ever_more_seldom(autojump_clock):
    async with watched(**MODERN, subscriptions_listen=MUTE) as (lab, _, _):
        await trio.sleep(150)
        begun = listens(lab)[0]
        assert [round(at - begun) for at in listens(lab)] == [0, 10, 21, 33, 48, 73, 113]


async def test_only_a_stream_that_lasted_or_told_of_a_change_is_opened_again_soon(autojump_clock):
    """One that is acknowledged and ends at once is as good as none."""
    async with watched(**MODERN, subscriptions_listen=LISTENS) as (lab, told, _):
        begun = listens(lab)[0]
        ends = [(0, 0), (0, 1), (1, 3), (3, 3), (3, 4), (4, 6), (12, 12), (12, 13)]
        for end, opened_again in ends:
            await trio.sleep_until(begun + end)
            request_id = lab.heard_of("subscriptions/listen")[-1]["id"]
            if (end, opened_again) == (3, 3):
                lab.say(stamped(CHANGED, request_id))
                await wait_all_tasks_blocked()
            lab.say(result(request_id, CACHING))
            await trio.sleep_until(begun + opened_again)
            await wait_all_tasks_blocked()
        assert [at - begun for at in listens(lab)] == [0, *(at for _, at in ends)]
        assert told


class Rests(StreamCarrier):
    """A carrier whose server asks for a minute with each of its refusals."""

    def judge(self, outcome, slot):
        return evolve(outcome, retry_in=60) if isinstance(outcome, Rejected) else outcome


async def test_a_server_that_asks_for_time_is_not_asked_for_a_stream_meanwhile(autojump_clock):
    async with watched(carrier=Rests, **MODERN, subscriptions_listen=refuses(-32603)) as (lab, _, _):
        await trio.sleep(150)
        begun = listens(lab)[0]
        assert [round(at - begun) for at in listens(lab)] == [0, 60, 120]


async def test_a_server_that_asks_for_time_is_not_asked_for_a_list_meanwhile(autojump_clock):
    """What it says of changes stays in mind. A person who wants the list is not held up."""
    lists = [listing("echo"), refuses(-32603), refuses(-32603), listing("echo", "late")]
    server = Scripted(
        **{**OLD, "tools_list": lists, "initialize": answers(greeting(capabilities=OFFERED))}, carrier=Rests
    )
    async with living(server) as seen:
        for moment in (10, 20, 30):
            await trio.sleep_until(moment)
            server.lab.say(notice(CHANGED))
        await trio.sleep_until(40)
        seen.actor.refresh("a person")
        await trio.sleep_until(50)
        server.lab.say(notice(CHANGED))
        await trio.sleep_until(150)
        asked = [at for at, method in server.lab.times if method == "tools/list"]
        assert asked == [0, 10.1, 40, 100]
        assert [tool.name for tool in seen.reports[-1][1].definitions.tools] == ["echo", "late"]


@pytest.mark.parametrize("then", [("echo",), ("echo", "late")], ids=["same", "changed"])
async def test_a_change_before_the_acknowledgement_is_found_at_once(then, autojump_clock):
    """A list that is as it was stays the same object, by which nobody is told of a change."""
    lists = [listing("echo"), listing(*then)]
    script = {**MODERN, "tools_list": lists, "subscriptions_listen": Reply(acknowledges, after=5)}
    server = Scripted(**script)
    async with living(server) as seen:
        await trio.sleep(100)
        first, second = [(at, report.definitions.tools) for at, report in seen.reports if type(report) in LISTED]
        assert [(at, tuple(tool.name for tool in tools)) for at, tools in (first, second)] == [
            (0, ("echo",)),
            (5, then),
        ]
        assert (first[1] is second[1]) is (then == ("echo",))
        assert server.lab.asked.count("tools/list") == 2


async def test_one_that_stays_mute_is_asked_again(autojump_clock):
    async with watched(**MODERN, subscriptions_listen=[MUTE, LISTENS]) as (lab, told, looks):
        await trio.sleep(100)
        begun = listens(lab)[0]
        assert [at - begun for at in listens(lab)] == [0, 10]
        assert (told, looks) == ([], listens(lab)[1:])


async def test_the_end_of_the_connection_ends_nothing_else(autojump_clock):
    """Others notice it."""
    async with watched(**MODERN, subscriptions_listen=LISTENS) as (lab, _, _):
        lab.end(GONE)
        await trio.sleep(100)
        assert len(listens(lab)) == 1
