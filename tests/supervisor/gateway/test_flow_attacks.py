"""Requests of clients against what ends or restarts in the middle of them."""

from contextlib import suppress

import pytest
import trio
import trio.testing

from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor import MemoryStore, ServerDown, open_supervisor
from mcp_nursery.supervisor.gateway import gateway_callbacks, notifications, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.upstream.held_calls import MOST_HELD_OF_CLIENT, HeldCall, HeldCalls
from mcp_nursery.supervisor.gateway.views.view import RECONNECT_TIMEOUT

from ...lab.gateway_clients import CAN, AskingServer, served


@pytest.mark.parametrize("how", ["stop", "remove"])
async def test_a_call_whose_instance_ends_may_have_acted(how, autojump_clock):
    server, told = AskingServer(), []
    async with served(server, instances="session") as (supervisor, _, make, _):
        client = make("ann")

        async def work():
            try:
                told.append(await client.request("tools/call", name="work", arguments={"who": "ann"}))
            except JsonRpcError as error:
                told.append(error.error)

        async with trio.open_nursery() as calls:
            calls.start_soon(work)
            await server.called("ann")
            match how:
                case "stop":
                    await supervisor.stop_server("lab")
                case "remove":
                    await supervisor.remove_server("lab")
                case "disable":
                    await supervisor.disable_server("lab")
    assert "may have acted" in str(told)


async def test_an_unsubscription_behind_a_subscription_undoes_it(autojump_clock):
    server = AskingServer()
    async with served(server) as (_, _, make, _):
        client = make("ann")
        async with trio.open_nursery() as both:
            both.start_soon(lambda: client.request("resources/subscribe", uri="note://a"))
            both.start_soon(lambda: client.request("resources/subscribe", uri="note://a"))
        await client.request("resources/unsubscribe", uri="note://a")
        assert not client.session.subscribed
        await trio.testing.wait_all_tasks_blocked()
        server.processes[-1].say_json(method="notifications/resources/updated", params={"uri": "note://a"})
        await trio.sleep(5)
        assert client.heard == []


async def test_a_subscription_right_behind_the_end_of_another_can_be_ended(autojump_clock):
    server = AskingServer()
    async with served(server) as (_, _, make, _):
        client = make("ann")
        for _ in range(2):
            await client.request("resources/subscribe", uri="note://a")
            await client.request("resources/unsubscribe", uri="note://a")
            await client.request("resources/subscribe", uri="note://a")
            await trio.testing.wait_all_tasks_blocked()
            assert "note://a" in client.session.subscribed
            await client.request("resources/unsubscribe", uri="note://a")


async def test_an_answer_to_a_question_that_is_gone_answers_no_other(autojump_clock):
    """Each incarnation counts its questions anew."""
    async with trio.open_nursery() as nursery:
        held = HeldCalls(nursery, lambda server: 300)

        def incoming(**params):
            return ClientRequest(1, "prompts/get", {"name": "p"} | params, {}, None, None, capabilities=CAN)

        async def make(call):
            with trio.move_on_after(1):
                await call.ask("0", "elicitation/create", {"message": "your name?"})
            return {"said": await call.ask("0", "elicitation/create", {"message": "delete all?"})}

        asked = await held.begin(HeldCall(incoming()), make)
        await trio.sleep(2)
        answers = {key: {"action": "accept", "content": {}} for key in asked["inputRequests"]}
        again = await held.resume(incoming(inputResponses=answers, requestState=asked["requestState"]), make)
        assert [each["params"]["message"] for each in again["inputRequests"].values()] == ["delete all?"]
        answers = {key: {"action": "decline"} for key in again["inputRequests"]}
        said = await held.resume(incoming(inputResponses=answers, requestState=again["requestState"]), make)
        assert said == {"said": {"action": "decline"}}
        nursery.cancel_scope.cancel()


async def test_a_client_is_told_that_a_server_cannot_be_started(autojump_clock):
    server = AskingServer(most=0)
    async with (
        open_supervisor([server.spec()], callbacks=gateway_callbacks(), state=MemoryStore(), gate=0) as supervisor,
        open_gateway(supervisor) as gateway,
    ):
        began = trio.current_time()
        with pytest.raises(ServerDown, match="died"):
            await gateway.view("lab").hello()
        assert trio.current_time() - began <= RECONNECT_TIMEOUT


async def test_one_client_cannot_have_all_the_calls_that_may_be_held(autojump_clock):
    async with trio.open_nursery() as nursery:
        held = HeldCalls(nursery, lambda server: 300)

        async def make(call):
            return {"said": await call.ask("0", "elicitation/create", {"message": "?"})}

        async def begin(principal):
            incoming = ClientRequest(1, "prompts/get", {"name": "p"}, {}, None, principal, capabilities=CAN)
            return await held.begin(HeldCall(incoming), make)

        for _ in range(MOST_HELD_OF_CLIENT):
            await begin("ann")
        with pytest.raises(JsonRpcError, match="too many"):
            await begin("ann")
        assert "inputRequests" in await begin("bob")
        await trio.sleep(301)
        assert "inputRequests" in await begin("ann")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("option", ["hold", "answer_within"])
async def test_a_call_waits_for_a_time(option):
    async with open_supervisor([], state=MemoryStore()) as supervisor:
        with pytest.raises(ValueError, match=option):
            async with open_gateway(supervisor, **{option: -1}):
                pass


async def test_one_client_cannot_subscribe_without_end(monkeypatch, autojump_clock):
    monkeypatch.setattr(notifications, "MOST_SUBSCRIBED", 1)
    async with served(AskingServer()) as (_, _, make, _):
        ann = make("Ann")
        assert await ann.request("resources/subscribe", uri="note://a") == {}
        with pytest.raises(JsonRpcError, match="too many subscriptions: at most 1"):
            await ann.request("resources/subscribe", uri="note://b")
        assert await ann.request("resources/unsubscribe", uri="note://a") == {}
        await trio.testing.wait_all_tasks_blocked()
        assert await ann.request("resources/subscribe", uri="note://a") == {}
        assert await ann.request("resources/unsubscribe", uri="note://a") == {}
        await trio.testing.wait_all_tasks_blocked()
        answers = []

        async def subscribe(uri):
            with suppress(JsonRpcError):
                answers.append(await ann.request("resources/subscribe", uri=uri))

        async with trio.open_nursery() as nursery:  # in one breath
            for number in range(9):
                nursery.start_soon(subscribe, f"note://{number}")
        assert answers == [{}]
        bob = make("Bob", session=False)
        with pytest.raises(JsonRpcError, match="too many subscriptions"):
            await bob.request("subscriptions/listen", notifications={"resourceSubscriptions": ["note://a", "note://b"]})
