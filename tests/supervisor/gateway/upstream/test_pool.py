"""Further instances of servers behind a gateway: for sessions, and for servers that ask. Virtual time."""

from functools import partial

import pytest
import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor import events
from mcp_nursery.supervisor.control.protocol import document, value_of
from mcp_nursery.supervisor.gateway.auth.principal import Principal
from mcp_nursery.supervisor.gateway.upstream.instance_leases import LEASE_IDLE, SESSION_IDLE
from mcp_nursery.supervisor.status import ServerStatus

from ....lab.gateway_clients import AskingServer, leased, served
from ....lab.specs import status


async def test_each_session_has_an_instance_of_its_own_until_it_ends(autojump_clock):
    server = AskingServer()
    async with served(server, instances="session") as (supervisor, gateway, make, nursery):
        ann, bob = make("Ann"), make("Bob")
        await ann.request("tools/list")
        assert server.alive == 1  # it is started on demand
        for client in (ann, bob):
            nursery.start_soon(client.work)
        of_ann, of_bob = await server.called("Ann"), await server.called("Bob")
        assert len({id(of_ann), id(of_bob), id(server.processes[0])}) == 3
        assert [one.state for one in status(supervisor).instances] == [ServerState.CONNECTED] * 2
        assert status(supervisor).calls.in_flight == 2
        assert value_of(ServerStatus, document(status(supervisor))) == status(supervisor)  # as who is attached sees it
        of_ann.answer("Ann")
        of_bob.answer("Bob")
        await trio.sleep(1)
        assert (ann.results, bob.results) == (["for Ann"], ["for Bob"])
        nursery.start_soon(ann.work)
        assert await server.called("Ann") is of_ann
        gateway.news.leave(ann.session)
        await trio.sleep(10)
        assert (of_ann.ended.is_set(), of_bob.ended.is_set()) == (True, False)
        assert len(status(supervisor).instances) == 1
    assert server.alive == 0


@pytest.mark.parametrize(("limit", "after"), [(None, SESSION_IDLE), (90, 90)])
async def test_the_instance_of_a_session_ends_when_it_is_idle(limit, after, autojump_clock):
    server = AskingServer()
    async with served(server, instances="session", stop_idle_after=limit) as (_, _, make, nursery):
        ann = make("Ann")
        nursery.start_soon(ann.work)
        process = await server.called("Ann")
        await trio.sleep(after * 2)
        assert not process.ended.is_set()  # a call is under way
        process.answer("Ann")
        await trio.sleep(after - 1)
        assert not process.ended.is_set()
        await trio.sleep(10)
        assert process.ended.is_set()
        nursery.start_soon(ann.work)
        assert await server.called("Ann") is not process


async def test_beyond_the_bound_a_call_is_told_when_to_try_again(autojump_clock):
    server = AskingServer()
    async with served(server, instances="session", max_instances=1, stop_idle_after=100) as (_, gateway, make, nursery):
        ann, bob = make("Ann"), make("Bob")
        nursery.start_soon(ann.work)
        process = await server.called("Ann")
        await bob.work()
        assert "all 1 instances that it may have are other sessions': try again when a session has" in bob.results[0]
        assert "(max_instances, or maxInstances in a file, allows more)" in bob.results[0]
        assert "retryable: yes" in bob.results[0]
        process.answer("Ann")
        await trio.sleep(40)
        await bob.work()
        assert "try again in 60 s" in bob.results[1]
        with pytest.raises(JsonRpcError, match="try again in 60 s") as refused:
            await bob.request("vendor/method")
        assert refused.value.data["retryIn"] == pytest.approx(60)
        gateway.news.leave(ann.session)
        await trio.sleep(10)
        nursery.start_soon(bob.work)
        assert await server.called("Bob")


async def test_one_client_cannot_take_all_instances(autojump_clock):
    """However many sessions it opens; those of clients whom nobody has authenticated are not told apart."""
    server, ann, bob = AskingServer(), Principal("Ann"), Principal("Bob")
    async with served(server, instances="session", max_instances=3) as (_, _, make, nursery):

        def of(client, name):
            made = make(name)
            made.session.client = client
            return made

        for name in ("a1", "a2"):
            nursery.start_soon(of(ann, name).work)
            await server.called(name)
        third, alone = of(ann, "a3"), make("alone", session=False, principal=ann)
        for refused in (third, alone):
            await refused.work()
            assert "other sessions of yours have 2 instances" in refused.results[0]
        nursery.start_soon(of(bob, "b1").work)
        await server.called("b1")
        second = of(bob, "b2")
        await second.work()
        assert "all 3 instances that it may have are other sessions'" in second.results[0]


async def test_one_client_cannot_lease_all_instances(autojump_clock):
    server, ann = AskingServer(), Principal("Ann")
    async with served(server, max_instances=2) as (_, _, make, nursery):
        clients = {name: make(name) for name in ("a1", "a2", "a3", "bob")}
        for name, client in clients.items():
            client.session.client = Principal("Bob") if name == "bob" else ann
        first = clients.pop("a1")
        nursery.start_soon(first.work)
        (await server.called("a1")).ask("a1")
        await first.asked.wait()
        at = {}
        for name, client in clients.items():
            nursery.start_soon(client.work)
            at[name] = await server.called(name)
        assert at["a3"] is server.processes[0]
        assert len({id(at[name]) for name in ("a2", "a3", "bob")}) == 3


async def test_a_client_without_sessions_has_the_instance_of_its_owner(autojump_clock):
    server = AskingServer()
    async with served(server, instances="session") as (_, _, make, nursery):
        clients = [make(name, session=False, principal=owner) for name, owner in zip("abcd", "xxy", strict=False)]
        clients += [make("d", session=False), make("e", session=False)]
        for client in clients:
            nursery.start_soon(client.work)
        a, b, c, d, e = [await server.called(name) for name in "abcde"]
        assert a is b
        assert d is e  # nobody knows whose these are
        assert len({id(one) for one in (a, c, d, server.processes[0])}) == 4


@pytest.mark.parametrize("how", ["stop", "remove", "reload", "restart"])
async def test_the_instances_end_with_what_they_are_instances_of(how, autojump_clock):
    server = AskingServer()
    async with served(server, instances="session") as (supervisor, _, make, nursery):
        ann = make("Ann")
        nursery.start_soon(ann.work)
        process = await server.called("Ann")
        match how:
            case "stop":
                await supervisor.stop_server("lab")
            case "remove":
                await supervisor.remove_server("lab")
            case "reload":
                await supervisor.reload([server.spec(instances="session", call_timeout=50)])
            case "restart":
                await supervisor.reload(restart=["lab"])
        await trio.sleep(10)
        assert process.ended.is_set()
        assert "closed" in ann.results[0]
        if how in ("stop", "remove"):
            assert server.alive == 0
            await trio.sleep(100)
            if how == "stop":
                await ann.work()
                assert "stopped" in ann.results[1]
            assert server.alive == 0
        else:
            nursery.start_soon(ann.work)
            assert await server.called("Ann") not in (process, server.processes[0])


async def test_an_instance_of_a_changed_spec_ends_although_nobody_heard_of_the_change(autojump_clock, monkeypatch):
    """Events may come faster than they are read: then it is compared what each instance was made of."""
    monkeypatch.setattr(events, "EVENT_BUFFER", 0)  # each is lost, and told as `Lagged`
    server = AskingServer()
    async with served(server, instances="session") as (supervisor, _, make, nursery):
        ann = make("Ann")
        nursery.start_soon(ann.work)
        process = await server.called("Ann")
        await supervisor.reload([server.spec(instances="session", call_timeout=50)])
        await trio.sleep(10)
        assert process.ended.is_set()
        nursery.start_soon(ann.work)
        assert await server.called("Ann") not in (process, *server.processes[:1])


async def test_an_instance_restarts_like_any_server(autojump_clock):
    server = AskingServer()
    async with served(server, instances="session") as (supervisor, _, make, nursery):
        ann = make("Ann")
        nursery.start_soon(ann.work)
        (await server.called("Ann")).die()
        await trio.sleep(10)
        assert "may have acted" in ann.results[0]
        [instance] = status(supervisor).instances
        assert (instance.incarnation, status(supervisor).incarnation) == (2, 1)
        nursery.start_soon(ann.work)
        assert await server.called("Ann") is server.processes[2]
        assert supervisor.statistics().restarts == 1


async def test_news_of_a_resource_comes_from_the_session_s_own_instance(autojump_clock):
    server = AskingServer()
    async with served(server, instances="session") as (supervisor, _, make, _nursery):
        ann, bob = make("Ann"), make("Bob", view=None)
        for client in (ann, bob):
            await client.request("resources/subscribe", uri="note://a")
        await trio.sleep(1)
        of_ann, of_bob = [process for process, method, _ in server.requests if method == "resources/subscribe"]
        assert of_ann is not of_bob
        updated = ("notifications/resources/updated", {"uri": "note://a"})
        of_ann.say_json(method=updated[0], params=updated[1])
        await trio.sleep(SESSION_IDLE * 2)  # who listens is not idle
        assert (ann.heard, bob.heard) == ([updated], [])
        await supervisor.reload(restart=True)
        await trio.sleep(10)
        assert ann.heard == [updated, updated]  # it has perhaps changed
        assert len([one for one in server.requests if one[1] == "resources/subscribe"]) == 4


@pytest.mark.parametrize("hears_all", [True, False])
async def test_a_session_hears_what_its_own_instance_says_unasked(hears_all, autojump_clock):
    server = AskingServer()
    async with served(server, instances="session") as (_, _, make, nursery):
        ann, bob, cid = make("Ann"), make("Bob"), make("Cid")
        instances = []
        for client in (ann, bob, cid):
            client.session.receives_all = hears_all  # what it says can be about nobody else
            nursery.start_soon(client.work)
            process = await server.called(client.name)
            instances.append(process)
            process.answer(client.name)
        cid.session.server = None  # it sees all servers
        await trio.sleep(1)
        for client in (ann, bob, cid):
            client.heard.clear()  # nothing that its instance does when it is started is news
        log = ("notifications/message", {"level": "error", "data": "so"})
        tick = ("notifications/com.example/tick", {"n": 1})
        for process in (instances[0], instances[2]):
            for method, params in (log, tick):
                process.say_json(method=method, params=params)
            process.tools.append("more")
            process.say_json(method="notifications/tools/list_changed")
        await trio.sleep(1)
        changed = ("notifications/tools/list_changed", None)
        assert (ann.heard, bob.heard, cid.heard) == ([log, tick, changed], [], [log, changed])
        await ann.request("logging/setLevel", level="critical")
        instances[0].say_json(method=log[0], params=log[1])
        await trio.sleep(1)
        assert ann.heard == [log, tick, changed]


async def test_nothing_is_told_of_an_instance_that_is_only_started(autojump_clock):
    server = AskingServer()
    async with served(server, instances="session") as (_, _, make, nursery):
        ann = make("Ann")
        nursery.start_soon(ann.work)
        (await server.called("Ann")).answer("Ann")
        await trio.sleep(1)
        assert ann.heard == ["for Ann"]


async def test_a_listener_hears_of_the_lists_of_its_own_instance(autojump_clock):
    server = AskingServer()
    async with served(server, instances="session") as (_, _, make, nursery):
        ann, bob = [make(name, session=False, principal=name) for name in ("Ann", "Bob")]
        wanted = {"toolsListChanged": True}
        for client in (ann, bob):
            nursery.start_soon(partial(client.request, "subscriptions/listen", notifications=wanted))
        nursery.start_soon(ann.work)
        process = await server.called("Ann")
        process.answer("Ann")
        await trio.sleep(1)
        ann.heard.clear()
        bob.heard.clear()
        process.tools.append("more")
        process.say_json(method="notifications/tools/list_changed")
        await trio.sleep(1)
        assert (len(ann.heard), bob.heard) == (1, [])


async def test_a_server_that_asks_is_leased_from_its_first_question_on(autojump_clock):
    server = AskingServer()
    async with served(server) as (supervisor, _, make, nursery):
        ann, bob, cid = make("Ann"), make("Bob"), make("Cid", session=False)
        for client in (ann, bob):
            nursery.start_soon(client.work)
        assert await server.called("Ann") is await server.called("Bob")  # it has not asked yet
        first = server.processes[0]
        first.ask("Ann")
        await trio.sleep(1)
        assert "several clients" in first.answers["Ann"][0]["error"]["message"]
        nursery.start_soon(cid.work)
        of_cid = await server.called("Cid")
        assert of_cid is not first
        of_cid.ask("Cid")
        await cid.asked.wait()
        first.answer("Ann")
        await trio.sleep(1)
        first.ask("Bob")
        await bob.asked.wait()
        assert (ann.heard, bob.heard, cid.heard) == (["for Ann"], ["for Bob"], ["for Cid"])
        cid.goes_on.set()
        await trio.sleep(1)
        of_cid.answer("Cid")
        await trio.sleep(LEASE_IDLE - 2)
        assert (server.alive, len(status(supervisor).instances)) == (2, 1)
        await trio.sleep(10)
        assert server.alive == 1


async def test_the_next_call_of_a_client_that_nobody_knows_finds_an_instance_that_was_started(autojump_clock):
    """It counts as another's. The official suite waits 500 ms for it while the first is held for answers."""
    server = AskingServer()
    async with served(server) as (supervisor, _, make, nursery):
        clients = [make(name, session=False) for name in ("a", "b", "c")]
        nursery.start_soon(clients[0].work)
        first = await server.called("a")
        assert server.alive == 1  # it has not asked yet
        first.ask("a")
        await clients[0].asked.wait()
        await trio.sleep(1)
        (ready,) = [process for process in server.processes if process is not first]
        nursery.start_soon(clients[1].work)
        assert await server.called("b") is ready
        ready.ask("b")
        await clients[1].asked.wait()
        await trio.sleep(1)
        assert server.alive == 2  # and no third
        ready.answer("b")
        await trio.sleep(LEASE_IDLE + 10)
        assert (server.alive, len(status(supervisor).instances)) == (1, 0)


@pytest.mark.parametrize("known", [{"principal": Principal("Ann"), "session": False}, {}], ids=["user", "session"])
async def test_a_client_that_is_known_needs_none_in_advance(known, autojump_clock):
    server = AskingServer()
    async with served(server) as (_, _, make, nursery):
        ann = make("Ann", **known)
        nursery.start_soon(ann.work)
        (await server.called("Ann")).ask("Ann")
        await ann.asked.wait()
        await trio.sleep(1)
        assert len(server.processes) == 1


@pytest.mark.parametrize("options", [{"instances": "single"}, {"max_instances": 1}], ids=["single", "one more"])
async def test_in_advance_there_are_no_more_than_there_may_be(options, autojump_clock):
    server = AskingServer()
    async with served(server, **options) as (_, _, make, nursery):
        clients = [make(name, session=False) for name in ("a", "b", "c")]
        for client in clients:
            nursery.start_soon(client.work)
            (await server.called(client.name)).ask(client.name)
            await trio.sleep(1)
        assert server.alive == (1 if options == {"instances": "single"} else 2)


async def test_a_single_client_needs_no_other_instance(autojump_clock):
    server = AskingServer()
    async with served(server) as (_, _, make, nursery):
        ann = make("Ann")
        ann.goes_on.set()
        for _ in range(3):
            nursery.start_soon(ann.work)
            process = await server.called("Ann")
            process.ask("Ann")
            await trio.sleep(1)
            process.answer("Ann")
            await trio.sleep(1)
        assert (len(server.processes), ann.results) == (1, ["for Ann"] * 3)


@pytest.mark.parametrize(
    ("options", "most", "there"),
    [({"max_instances": 1}, 9, 2), ({"instances": "single"}, 9, 1), ({}, 1, 1)],
    ids=["no more may be", "no other may be", "no other can be"],
)
async def test_without_another_instance_questions_are_nobodys(options, most, there, autojump_clock):
    server = AskingServer(most=most)
    async with served(server, **options) as (_, _, make, nursery):
        clients = [make(name) for name in ("Ann", "Bob", "Cid")]
        for client in clients:
            nursery.start_soon(client.work)
            (await server.called(client.name)).ask(client.name)
            await trio.sleep(1)
        assert server.alive == there
        asked = ["for Ann"], [] if there == 1 else ["for Bob"], []
        assert tuple(client.heard for client in clients) == asked
        for client in clients:
            (await server.called(client.name)).answer(client.name)
        await trio.sleep(1)
        assert [client.results for client in clients] == [["for Ann"], ["for Bob"], ["for Cid"]]


@pytest.mark.parametrize("session", [True, False])
async def test_a_call_that_was_given_up_is_asked_about_by_nobody_else(session, autojump_clock):
    """A server may go on with a call that was taken back, and ask."""
    server = AskingServer()
    async with served(server, instances="single") as (_, _, make, nursery):
        ann, bob = make("Ann", session=session), make("Bob", session=session)
        nursery.start_soon(ann.work)
        process = await server.called("Ann")
        ann.scope.cancel()
        await trio.sleep(1)
        nursery.start_soon(bob.work)
        await server.called("Bob")
        process.log("Ann")
        process.ask("Ann")
        await trio.sleep(1)
        assert (ann.heard, bob.heard) == ([], [])
        assert "several clients" in process.answers["Ann"][0]["error"]["message"]
        process.answer("Ann")  # from now on it does not work on that
        await trio.sleep(1)
        process.ask("Bob")
        await bob.asked.wait()
        assert bob.heard == ["for Bob"]


async def test_an_instance_with_a_call_that_was_given_up_is_no_others(autojump_clock):
    server = AskingServer()
    async with served(server) as (_, _, make, nursery):
        ann, bob, cid, dan = [make(name) for name in ("Ann", "Bob", "Cid", "Dan")]
        of_bob = await leased(server, ann, bob, nursery)
        bob.scope.cancel()
        nursery.start_soon(cid.work)
        assert await server.called("Cid") is not of_bob
        await trio.sleep(10)
        assert of_bob.ended.is_set()
        ann.scope.cancel()
        await trio.sleep(1)
        nursery.start_soon(dan.work)
        assert await server.called("Dan") is not server.processes[0]
        server.processes[0].die()  # what comes after it knows nothing of Ann's call
        await trio.sleep(10)
        eve = make("Eve")
        nursery.start_soon(eve.work)
        assert await server.called("Eve") is server.processes[-1]
        assert len([one for one in server.processes if not one.ended.is_set()]) == 3


async def test_a_client_that_comes_back_without_its_state_makes_another_call(autojump_clock):
    server = AskingServer()
    async with served(server) as (_, _, make, nursery):
        ann = make("Ann", session=False)
        nursery.start_soon(ann.work)
        (await server.called("Ann")).ask("Ann")
        await ann.asked.wait()
        again = make("Ann", session=False)
        nursery.start_soon(again.work)
        process = await server.called("Ann", times=2)
        process.ask("Ann")
        with trio.fail_after(5):
            await again.asked.wait()


async def test_a_list_that_a_call_has_changed_in_a_leased_instance_is_told_of(autojump_clock):
    server = AskingServer()
    async with served(server) as (_, _, make, nursery):
        ann, bob = make("Ann"), make("Bob")
        of_bob = await leased(server, ann, bob, nursery)
        await trio.sleep(5)
        assert bob.heard == []
        of_bob.tools.append("more")
        of_bob.say_json(method="notifications/tools/list_changed")
        await trio.sleep(5)
        assert bob.heard == [("notifications/tools/list_changed", None)]


@pytest.mark.parametrize("kind", ["stream", "named"])
async def test_a_question_ends_with_the_calls_that_it_may_be_about(kind, autojump_clock):
    """Its server has answered the call without waiting: nobody is left whom it is about."""
    server = AskingServer(kind)
    async with served(server, instances="single") as (_, _, make, nursery):
        ann = make("Ann")
        again = make("Ann's other call", principal=ann.session)
        ann.principal = ann.session
        nursery.start_soon(ann.work)
        process = await server.called("Ann")
        nursery.start_soon(again.work)
        await server.called("Ann's other call")
        process.ask("Ann")
        await trio.sleep(1)
        process.answer("Ann")
        await trio.sleep(1)
        if kind == "stream":  # it may be about the other one
            assert not process.answers
            process.answer("Ann's other call")
            await trio.sleep(1)
        [answer] = process.answers["Ann"]
        assert "the call is over" in answer["error"]["message"]


async def test_who_took_a_call_back_goes_on_hearing_what_its_server_says(autojump_clock):
    """Servers need not answer calls that were taken back, so what they say may be about these for ever."""
    server = AskingServer()
    async with served(server, instances="single") as (_, _, make, nursery):
        ann, bob = make("Ann"), make("Bob")

        async def say(word):
            """What each hears of it."""
            process.say_json(method="notifications/message", params={"level": "error", "data": word})
            await trio.sleep(1)
            told = "notifications/message", {"level": "error", "data": word}
            return told in ann.heard, told in bob.heard

        nursery.start_soon(ann.work)
        process = await server.called("Ann")
        assert await say("of a call") == (False, False)  # the call itself is told that
        ann.scope.cancel()
        await trio.sleep(1)
        assert await say("perhaps of Ann's call") == (True, False)
        nursery.start_soon(bob.work)
        await server.called("Bob")
        assert await say("of either call") == (False, False)
        bob.scope.cancel()
        await trio.sleep(1)
        assert await say("of either") == (False, False)
        process.answer("Ann")
        assert await say("perhaps of Bob's call") == (False, True)
        process.answer("Bob")
        assert await say("of none") == (True, True)


async def test_who_has_to_say_who_he_is_hears_nothing_that_may_be_anothers_for_a_call_that_he_took_back(autojump_clock):
    """His call is never answered, and what his server says unasked ever after may be about what others had done."""
    server = AskingServer()
    async with served(server, instances="single") as (_, _, make, nursery):
        ann = make("Ann")
        ann.session.receives_all = False
        nursery.start_soon(ann.work)
        process = await server.called("Ann")
        ann.scope.cancel()
        bob = make("Bob")
        nursery.start_soon(bob.work)
        (await server.called("Bob")).answer("Bob")
        await trio.sleep(1)
        process.say_json(method="notifications/message", params={"level": "error", "data": "Bob's work is done"})
        await trio.sleep(1)
        assert ann.heard == []
