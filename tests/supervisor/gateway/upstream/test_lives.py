"""When further instances of servers begin and end, and what is remembered of them. Virtual time."""

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor.gateway.upstream.instance_leases import AGAIN, SESSION_IDLE

from ....lab.gateway_clients import AskingServer, served


async def test_an_instance_that_is_used_again_is_not_idle(autojump_clock):
    server = AskingServer()
    async with served(server, instances="session", stop_idle_after=100) as (_, _, make, nursery):
        ann = make("Ann")
        nursery.start_soon(ann.work)
        process = await server.called("Ann")
        process.answer("Ann")
        await trio.sleep(90)
        nursery.start_soon(ann.work)
        assert await server.called("Ann") is process
        await trio.sleep(1000)
        assert not process.ended.is_set()


async def test_an_instance_without_an_idle_stop_lasts_as_long_as_its_session(autojump_clock):
    server = AskingServer()
    async with served(server, instances="session", stop_idle_after=0) as (_, gateway, make, nursery):
        ann = make("Ann")
        nursery.start_soon(ann.work)
        process = await server.called("Ann")
        process.answer("Ann")
        await trio.sleep(SESSION_IDLE * 2)
        assert not process.ended.is_set()
        gateway.news.leave(ann.session)
        await trio.testing.wait_all_tasks_blocked()
        assert process.ended.is_set()


async def test_a_session_keeps_its_instance_after_a_call_that_it_gave_up(autojump_clock):
    """Nobody else's calls come there."""
    server = AskingServer()
    async with served(server, instances="session") as (_, _, make, nursery):
        ann = make("Ann")
        nursery.start_soon(ann.work)
        process = await server.called("Ann")
        ann.scope.cancel()
        await trio.sleep(1)
        del process.calls["Ann"]
        nursery.start_soon(ann.work)
        assert await server.called("Ann") is process


async def test_two_sessions_of_one_user_have_two_instances(autojump_clock):
    server = AskingServer()
    async with served(server, instances="session") as (_, gateway, make, nursery):
        first, second = (make(name, principal="ann") for name in ("first", "second"))
        for client in (first, second):
            nursery.start_soon(client.work)
        of_first, of_second = await server.called("first"), await server.called("second")
        assert of_first is not of_second
        gateway.news.leave(first.session)
        await trio.testing.wait_all_tasks_blocked()
        assert (of_first.ended.is_set(), of_second.ended.is_set()) == (True, False)


async def test_a_session_that_has_ended_gets_no_instance(autojump_clock):
    """Nobody would end it."""
    server = AskingServer()
    async with served(server, instances="session") as (_, gateway, make, _):
        ann = make("Ann")
        gateway.news.leave(ann.session)
        await ann.work()
        assert "this session's instance of it has ended" in ann.results[0]
        assert server.alive == 1


@pytest.mark.parametrize("ticks", range(6))
async def test_a_server_that_goes_while_an_instance_of_it_begins(ticks, autojump_clock):
    server = AskingServer()
    async with served(server, instances="session") as (supervisor, _, make, nursery):
        ann = make("Ann")
        nursery.start_soon(ann.work)
        for _ in range(ticks):
            await trio.lowlevel.checkpoint()
        await supervisor.remove_server("lab")
        await trio.sleep(1)
        assert server.alive == 0


async def test_a_call_that_took_too_long_is_asked_about_by_nobody_else(autojump_clock):
    server = AskingServer()
    async with served(server, call_timeout=50) as (_, _, make, nursery):
        ann, bob = make("Ann"), make("Bob")
        nursery.start_soon(ann.work)
        process = await server.called("Ann")
        process.ask("Ann")
        await ann.asked.wait()
        ann.goes_on.set()
        await trio.sleep(60)
        assert "no answer within 50 s" in ann.results[0]
        nursery.start_soon(bob.work)
        of_bob = await server.called("Bob")
        assert of_bob is not process
        of_bob.ask("Bob")
        await bob.asked.wait()


async def test_who_may_be_asked_about_two_calls_that_were_given_up(autojump_clock):
    """Nobody, not even one of the two."""
    server = AskingServer()
    async with served(server) as (_, _, make, nursery):
        ann, bob = make("Ann"), make("Bob")
        for client in (ann, bob):
            nursery.start_soon(client.work)
            process = await server.called(client.name)
        process.ask("Ann")
        await trio.sleep(1)
        for client in (ann, bob):
            client.scope.cancel()
        await trio.sleep(1)
        process.calls.clear()
        for client in (ann, bob):
            nursery.start_soon(client.work)
            assert await server.called(client.name) is not process


async def test_further_calls_of_a_client_go_where_it_has_one(autojump_clock):
    """It takes no second instance from others."""
    server = AskingServer()
    async with served(server, max_instances=1) as (_, _, make, nursery):
        ann, bob, again = make("Ann"), make("Bob"), make("again")
        again.principal, again.session = bob.session, bob.session
        nursery.start_soon(ann.work)
        first = await server.called("Ann")
        first.ask("Ann")
        await ann.asked.wait()
        nursery.start_soon(bob.work)
        of_bob = await server.called("Bob")
        first.answer("Ann")
        await trio.sleep(1)
        nursery.start_soon(again.work)
        assert await server.called("again") is of_bob


async def test_an_instance_that_could_not_be_started_is_tried_again_after_a_while(autojump_clock):
    server = AskingServer(most=1)
    async with served(server) as (_, _, make, nursery):
        ann, bob = make("Ann"), make("Bob")
        nursery.start_soon(ann.work)
        (await server.called("Ann")).ask("Ann")
        await ann.asked.wait()

        async def attempts():
            """For one more call."""
            before = len(server.processes)
            nursery.start_soon(bob.work)
            process = await server.called("Bob")
            await trio.sleep(1)
            process.answer("Bob")
            return len(server.processes) - before

        assert [await attempts() > 0, await attempts()] == [True, 0]
        await trio.sleep(AGAIN)
        assert await attempts() > 0


@pytest.mark.parametrize("how", ["restart", "remove"])
async def test_nothing_is_remembered_of_a_server_that_begins_again(how, autojump_clock):
    """Neither that it asks, nor that another instance could not be started."""
    server = AskingServer(most=1)
    async with served(server) as (supervisor, _, make, nursery):
        ann, bob = make("Ann"), make("Bob")

        async def call_and_ask():
            """Both call, and the server asks about a call; how many instances there were."""
            before = len(server.processes)
            for client in (ann, bob):
                nursery.start_soon(client.work)
                process = await server.called(client.name)
            seen = len(server.processes) - before
            process.ask("Ann")
            await trio.sleep(1)
            for client in (ann, bob):
                process.answer(client.name)
            await trio.sleep(1)
            return seen

        assert await call_and_ask() == 0
        assert await call_and_ask() > 0
        if how == "restart":
            await supervisor.reload(restart=["lab"])
        else:
            await supervisor.remove_server("lab")
            await trio.sleep(1)
            await supervisor.add_server(server.spec())
        await supervisor.wait_connected("lab")
        assert await call_and_ask() == 0
        assert await call_and_ask() > 0
