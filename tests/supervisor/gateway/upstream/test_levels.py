"""Which log messages servers are asked for on behalf of the clients of a gateway. Virtual time."""

import pytest
import trio

from mcp_nursery.actors.protocol import JsonRpcError

from ....lab.gateway_clients import AskingServer, leased, served


def told(server, process=None):
    """The levels that its processes were told, or one of them."""
    asked = [(who, params) for who, method, params in server.requests if method == "logging/setLevel"]
    return [params["level"] for who, params in asked if process in (None, who)]


async def test_a_server_is_told_the_most_verbose_level_that_a_client_wants_and_each_hears_its_own(autojump_clock):
    server = AskingServer()
    async with served(server) as (_, gateway, make, _nursery):
        ann, bob, cid, dan = [make(name) for name in ("Ann", "Bob", "Cid", "Dan")]
        dan.session.server = None  # it sees all servers
        for client, level in ((ann, "error"), (bob, "info"), (cid, "warning"), (dan, "debug")):
            await client.request("logging/setLevel", level=level)
        await trio.sleep(1)
        assert told(server) == ["error", "info", "debug"]
        server.processes[0].say_json(method="notifications/message", params={"level": "warning", "data": "so"})
        await trio.sleep(1)
        assert [bool(client.heard) for client in (ann, bob, cid, dan)] == [False, True, True, True]
        for client in (dan, bob, cid, ann):
            gateway.news.leave(client.session)
            await trio.sleep(1)
        assert told(server) == ["error", "info", "debug", "info", "warning", "error"]


@pytest.mark.parametrize("how", ["restart", "replace"])
async def test_it_is_told_again_after_a_restart_and_so_is_another_of_its_name(how, autojump_clock):
    server = AskingServer()
    async with served(server) as (supervisor, _, make, _nursery):
        await make("Ann").request("logging/setLevel", level="warning")
        if how == "restart":
            server.processes[0].die()
        else:
            await supervisor.remove_server("lab")
            await supervisor.add_server(server.spec())
        await trio.sleep(10)
        assert told(server, server.processes[1]) == ["warning"]


async def test_the_own_instance_of_a_session_is_told_its_level_each_time_it_is_started(autojump_clock):
    server = AskingServer()
    async with served(server, instances="session") as (_, _, make, nursery):
        ann, bob = make("Ann"), make("Bob")
        await ann.request("logging/setLevel", level="error")
        processes = {}
        for client in (ann, bob):
            nursery.start_soon(client.work)
            processes[client.name] = await server.called(client.name)
        await trio.sleep(1)
        assert (told(server, processes["Ann"]), told(server, processes["Bob"])) == (["error"], [])
        await ann.request("logging/setLevel", level="debug")
        assert told(server, processes["Ann"]) == ["error", "debug"]
        processes["Ann"].die()
        await trio.sleep(10)
        assert (told(server, server.processes[-1]), told(server, server.processes[0])) == (["debug"], [])


async def test_an_instance_that_is_leased_is_told_what_its_server_is(autojump_clock):
    server = AskingServer()
    async with served(server) as (_, _, make, nursery):
        ann, bob = make("Ann"), make("Bob")
        await ann.request("logging/setLevel", level="error")
        of_bob = await leased(server, ann, bob, nursery)
        await trio.sleep(1)
        assert told(server, of_bob) == ["error"]
        await bob.request("logging/setLevel", level="debug")
        await trio.sleep(1)
        assert told(server, of_bob) == ["error", "debug"]
        of_bob.die()
        await trio.sleep(10)
        assert told(server, server.processes[-1]) == ["debug"]


async def test_what_a_server_says_to_it_is_told_to_the_client(autojump_clock):
    server = AskingServer()
    async with served(server) as (_, _, make, _nursery):
        server.refuses.add("logging/setLevel")
        ann = make("Ann")
        with pytest.raises(JsonRpcError, match="Method not found"):
            await ann.request("logging/setLevel", level="error")


async def test_however_often_levels_change_one_task_waits_for_a_server_that_does_not_answer(autojump_clock):
    server = AskingServer()
    async with served(server) as (_, _, make, _nursery):
        dan = make("Dan", view=None)
        dan.session.server = None
        process, unanswered = server.processes[0], []
        process.take = unanswered.append
        before = trio.lowlevel.current_statistics().tasks_living
        for number in range(41):
            await dan.request("logging/setLevel", level=("info", "error")[number % 2])
            await trio.sleep(0.1)
        assert len(unanswered) == 1
        assert trio.lowlevel.current_statistics().tasks_living < before + 5
        del process.take
        await dan.request("logging/setLevel", level="debug")
        process.result(unanswered[0], {})
        await trio.sleep(1)
        assert told(server) == ["debug"]


@pytest.mark.parametrize("turns", range(6))
async def test_an_instance_that_is_ending_is_told_nothing(turns, autojump_clock):
    """Though its server's state changes in the middle of that."""
    server = AskingServer()
    async with served(server) as (_, _gateway, make, nursery):
        ann, bob = make("Ann"), make("Bob")
        await ann.request("logging/setLevel", level="error")
        nursery.start_soon(ann.work)
        first = await server.called("Ann")
        first.ask("Ann")
        await trio.sleep(1)
        nursery.start_soon(bob.work)
        of_bob = await server.called("Bob")
        assert of_bob is not first
        bob.scope.cancel()
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        first.die()
        await trio.sleep(10)
        assert of_bob.ended.is_set()
        assert told(server, server.processes[-1]) == ["error"]
        assert "for Ann" not in ann.results
