"""Subscriptions of clients of a gateway to resources. Virtual time."""

import pytest
import trio

from .asking import AskingServer, served

UPDATED = ("notifications/resources/updated", {"uri": "note://a"})


@pytest.mark.parametrize("how", ["loss", "stop", "remove"])
@pytest.mark.parametrize("instances", ["shared", "session"])
async def test_a_resource_is_subscribed_again_whatever_becomes_of_its_server(how, instances, autojump_clock):
    server = AskingServer()
    async with served(server, instances=instances) as (supervisor, _, make, _nursery):
        ann = make("Ann")
        await ann.request("resources/subscribe", uri="note://a")
        await trio.sleep(1)
        match how:
            case "loss":
                server.requests[-1][0].die()
            case "stop":
                await supervisor.stop_server("lab")
                await trio.sleep(100)
                await supervisor.start_server("lab")
            case "remove":
                await supervisor.remove_server("lab")
                await trio.sleep(100)
                await supervisor.add_server(server.spec(instances=instances))
        await trio.sleep(10)
        subscribed = [who for who, method, _ in server.requests if method == "resources/subscribe"]
        assert len(set(subscribed)) == 2
        assert [said for said in ann.heard if said == UPDATED] == [UPDATED]  # it has perhaps changed
        subscribed[-1].say_json(method=UPDATED[0], params=UPDATED[1])
        await trio.sleep(1)
        assert [said for said in ann.heard if said == UPDATED] == [UPDATED, UPDATED]
        await ann.request("resources/unsubscribe", uri="note://a")
        subscribed[-1].say_json(method=UPDATED[0], params=UPDATED[1])
        await trio.sleep(1)
        assert [said for said in ann.heard if said == UPDATED] == [UPDATED, UPDATED]
