"""Subscriptions of clients of a gateway to resources. Virtual time."""

from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.supervisor.events import ResourcesChanged
from mcp_nursery.supervisor.gateway.client_request import ClientRequest

from ...lab.gateway_clients import ENVELOPE, NEW, AskingServer, served

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


@asynccontextmanager
async def listening(gateway, view, *uris, lists=False):
    """All that a client without a session is told on one stream."""
    told = []

    async def tell(method, params):
        await trio.lowlevel.checkpoint()
        told.append((method, params))

    wanted = {"resourcesListChanged": lists, "resourceSubscriptions": list(uris)}
    incoming = ClientRequest(7, "subscriptions/listen", {"notifications": wanted}, ENVELOPE, tell, "Ann", None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gateway.answer, incoming, gateway.view(view), NEW)
        await trio.sleep(1)
        yield told
        nursery.cancel_scope.cancel()


def acknowledged(told):
    assert told[0][0] == "notifications/subscriptions/acknowledged"
    return told[0][1]["notifications"]


def updates(told):
    return [params["uri"] for method, params in told if method == UPDATED[0]]


@pytest.mark.parametrize("view", [None, "lab"])
async def test_a_stream_of_news_outlasts_that_its_server_is_not_there(view, autojump_clock):
    """From its beginning on: the server may be away when a client begins to listen."""
    server = AskingServer()
    async with served(server) as (supervisor, gateway, _, _nursery):
        await supervisor.stop_server("lab")
        async with listening(gateway, view, "note://a") as told:
            assert acknowledged(told) == {"resourceSubscriptions": ["note://a"]}
            await trio.sleep(100)
            assert updates(told) == []
            await supervisor.start_server("lab")
            await trio.sleep(10)
            assert updates(told) == ["note://a"]  # it has perhaps changed
            server.requests[-1][0].say_json(method=UPDATED[0], params=UPDATED[1])
            await trio.sleep(1)
            assert updates(told) == ["note://a", "note://a"]


async def test_what_cannot_be_subscribed_to_is_left_out_alone(autojump_clock):
    server = AskingServer()
    async with served(server) as (_, gateway, _, _nursery):
        async with listening(gateway, None, "note://a", "note://nobody-has") as told:
            assert acknowledged(told) == {"resourceSubscriptions": ["note://a"]}
            server.requests[-1][0].say_json(method=UPDATED[0], params=UPDATED[1])
            await trio.sleep(1)
            assert updates(told) == ["note://a"]
        async with listening(gateway, None, "note://nobody-has") as told:
            assert acknowledged(told) == {}


async def test_changes_while_resources_are_subscribed_to_are_told_after_the_acknowledgement(
    autojump_clock, monkeypatch
):
    server, subscribed = AskingServer(), trio.Event()
    async with served(server) as (_, gateway, _, _nursery):

        async def follow(_request, _view, _uri, notify, task_status, **_options):
            notify({"uri": "note://a"})
            await subscribed.wait()
            task_status.started()

        monkeypatch.setattr(gateway.news, "_follow_resource", follow)
        async with listening(gateway, "lab", "note://a", lists=True) as told:
            gateway.news.publish_change(ResourcesChanged("lab", (), (), (), trio.current_time()))
            await trio.sleep(1)
            assert told == []
            subscribed.set()
            await trio.sleep(1)
            assert acknowledged(told) == {"resourcesListChanged": True, "resourceSubscriptions": ["note://a"]}
            assert [method for method, _ in told[1:]] == [UPDATED[0], "notifications/resources/list_changed"]
