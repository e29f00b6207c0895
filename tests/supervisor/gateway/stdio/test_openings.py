"""What a client on standard streams writes before its server is there, or the SDK is loaded. Virtual time."""

from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import trio

from mcp_nursery.actors.protocol import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_nursery.supervisor import MemoryStore, ServerSpec, open_supervisor
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway, serve_stdio
from mcp_nursery.supervisor.gateway.stdio import stdio_gateway
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ....lab.specs import SERVERS, Named, nothing, spec
from ....lab.wire_peer import notice, request
from .test_streams import CHANGED, HELLO, LISTEN, META, Client

NEW = {"_meta": META}
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


@asynccontextmanager
async def fronted(scripted, client, state=None, hold=20):
    """A gateway in front of one server, with its own names, that need not be there yet."""
    known = spec(scripted) if isinstance(scripted, ScriptedServer) else scripted
    async with (
        open_supervisor([known], callbacks=gateway_callbacks(), state=state or MemoryStore()) as supervisor,
        open_gateway(supervisor, hold=hold) as gateway,
        trio.open_nursery() as nursery,
    ):
        client.news = gateway.news
        nursery.start_soon(partial(serve_stdio, gateway, "lab", streams=client))
        yield supervisor
        nursery.cancel_scope.cancel()


def answered_at(client):
    """The times of the answers to requests, by their ids, from now on."""
    began, times = trio.current_time(), {}

    def record(message):
        if "method" not in message:
            times[message["id"]] = trio.current_time() - began

    client.on_message = record
    return times


@pytest.mark.parametrize("life", [Life(refuses="no"), Life(mute=True)])
async def test_requests_wait_together_for_a_server_that_does_not_start(life, autojump_clock):
    waited = []
    for opening in (("initialize", HELLO), ("server/discover", NEW), ("tools/call", NEW | {"name": "look"})):
        client = Client()
        async with fronted(ScriptedServer(*[life] * 20), client, hold=0):
            times = answered_at(client)
            rest = [("prompts/get", NEW | {"name": str(number)}) for number in range(15)]
            client.say(*(request(number, *each) for number, each in enumerate([opening, *rest])))
            await trio.sleep(200)
        assert len(times) == 16
        waited.append(times)
    of_handshake, *others = waited
    assert [{*times.values()} for times in others] == [{of_handshake[0]}] * 2


@pytest.mark.parametrize("cancelled", [(), (2, 5)])
async def test_calls_reach_a_server_that_starts_late_in_their_order(cancelled, autojump_clock):
    for _ in range(8):  # the order of tasks is random
        made = []

        async def look(arguments, made=made):
            await trio.lowlevel.checkpoint()
            made.append(arguments["number"])
            return "seen"

        client = Client()
        async with fronted(ScriptedServer(Life(connects_after=3), tools={"look": look}), client):
            calls = (NEW | {"name": "look", "arguments": {"number": number}} for number in range(8))
            client.say(*(request(number, "tools/call", call) for number, call in enumerate(calls)))
            await trio.sleep(1)
            client.say(*(notice("notifications/cancelled", {"requestId": number}) for number in cancelled))
            await trio.sleep(10)
        assert made == [number for number in range(8) if number not in cancelled]


@pytest.mark.parametrize("life", [Life(connects_after=6), Life(refuses="no")])
async def test_a_cached_list_does_not_wait_for_its_server(life, autojump_clock, monkeypatch):
    state, client = MemoryStore(), Client()
    monkeypatch.setitem(SERVERS, "cached", ScriptedServer(Life(), *[life] * 20, tools={"look": nothing}))
    known = ServerSpec("lab", Named("cached"))
    former = Client()
    async with fronted(known, former, state):
        former.say(request(1, "tools/list", NEW))
        await trio.sleep(1)
    async with fronted(known, client, state):
        times = answered_at(client)
        client.say(request(1, "tools/list", NEW))
        await trio.sleep(20)
    assert [tool["name"] for tool in client.heard[-1]["result"]["tools"]] == ["look"]
    assert times == {1: 0}


def outcome(message):
    return message.get("error", {"code": 0})["code"]


def outcomes(client):
    """The codes of the answers, by the ids of their requests; 0: a result."""
    return {message["id"]: outcome(message) for message in client.heard if "method" not in message}


@pytest.fixture
def loaded(monkeypatch):
    """The event that lets the modules be loaded that requests wait for."""
    event = trio.Event()
    monkeypatch.setattr(stdio_gateway, "SDK_MODULES", SimpleNamespace(ensure_loaded=event.wait))
    return event


# The SDK's models have to look at these.
CALL = NEW | {"name": "look", "arguments": None}
SLOW_LISTEN = LISTEN | {"more": 1}


@pytest.mark.parametrize("gets_in_between", [True, False])
async def test_a_session_that_begins_while_modules_are_loaded_stays(gets_in_between, autojump_clock, loaded):
    client = Client()
    async with fronted(ScriptedServer(Life(connects_after=3), tools={"look": nothing}), client):
        client.say(request(1, "tools/call", CALL), request(2, "initialize", HELLO))
        await trio.sleep(10 if gets_in_between else 1)
        loaded.set()
        await trio.sleep(10)
        client.say(request(3, "tools/list", NEW), request(4, "tools/list"))
        await trio.sleep(1)
    assert outcomes(client) == {1: INVALID_REQUEST, 2: 0, 3: INVALID_REQUEST, 4: 0}


async def test_a_ping_with_a_version_does_not_disturb_a_handshake(autojump_clock):
    client = Client()
    async with fronted(ScriptedServer(Life(connects_after=3)), client):
        client.say(request(1, "initialize", HELLO), request(2, "ping", NEW))
        await trio.sleep(10)
        client.say(request(3, "tools/list"))
        await trio.sleep(1)
    assert outcomes(client) == {1: 0, 2: METHOD_NOT_FOUND, 3: 0}


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [("ping", NEW, METHOD_NOT_FOUND), ("tools/call", NEW | {"name": 5}, INVALID_PARAMS)],
)
async def test_a_request_that_is_refused_begins_no_conversation(method, params, code, autojump_clock):
    client = Client()
    async with fronted(ScriptedServer(), client):
        client.say(request(1, method, params))
        await trio.sleep(1)
        client.say(request(2, "initialize", HELLO), request(3, "tools/list"))
        await trio.sleep(1)
    assert outcomes(client) == {1: code, 2: 0, 3: 0}


async def test_a_stream_is_waited_for_until_it_is_acknowledged_or_refused(autojump_clock, loaded):
    client = Client()
    async with fronted(ScriptedServer(), client):
        client.say(request(1, "subscriptions/listen", NEW | {"notifications": 5}))
        client.say(request(2, "subscriptions/listen", SLOW_LISTEN))
        await trio.sleep(1)
        assert client.waits()
        loaded.set()
        await trio.sleep(1)
        assert outcomes(client) == {1: INVALID_PARAMS}
        assert len(client.heard_of(ACKNOWLEDGED)) == 1
        assert not client.waits()


@pytest.mark.parametrize("meta", [5, [], "", {}, None])
async def test_meta_that_is_no_object_is_refused(meta, autojump_clock):
    refused = meta in (5, [], "")
    client, given = Client(), {"_meta": meta}
    async with fronted(ScriptedServer(tools={"look": nothing}), client):
        client.say(
            request(1, "initialize", HELLO),
            request(2, "tools/call", {"name": "look", "arguments": {}} | given),
            request(3, "tools/list", given),
            request(4, "x/unknown", given),  # the server decides about it
        )
        await trio.sleep(10)
    code = INVALID_PARAMS if refused else 0
    assert outcomes(client) == {1: 0, 2: code, 3: code, 4: METHOD_NOT_FOUND}


@pytest.mark.parametrize("pipelined", [True, False])
async def test_the_roots_are_asked_for_once_whenever_the_client_is_initialized(pipelined, autojump_clock):
    client = Client()
    async with fronted(ScriptedServer(), client):
        said = request(1, "initialize", HELLO | {"capabilities": {"roots": {}}}), notice("notifications/initialized")
        if pipelined:
            client.say(*said)
        else:
            for each in said:
                client.say(each)
                await trio.sleep(1)
        await trio.sleep(1)
        assert [message.get("method") for message in client.heard] == [None, "roots/list"]


@pytest.mark.parametrize("list_first", [True, False])
async def test_a_stream_counts_from_the_arrival_of_its_request(list_first, autojump_clock, loaded):
    scripted, client = ScriptedServer(tools={"look": nothing}), Client()
    scripted.capabilities |= {"tools": {"listChanged": True}}
    async with fronted(scripted, client) as supervisor:
        await supervisor.wait_connected("lab")
        client.say(request(1, "server/discover", NEW))
        said = [request(2, "tools/list", NEW), request(3, "subscriptions/listen", SLOW_LISTEN)]
        client.say(*(said if list_first else reversed(said)))
        await trio.sleep(1)
        assert outcomes(client) == {1: 0, 2: 0}
        scripted.tools["new"] = nothing
        await scripted.notify(CHANGED)
        await trio.sleep(1)
        assert len(client.heard) == 2
        loaded.set()
        await trio.sleep(1)
        assert [message["method"] for message in client.heard[2:]] == [ACKNOWLEDGED, CHANGED]


async def test_a_stream_that_is_refused_or_cancelled_while_modules_are_loaded_leaves_nothing(autojump_clock, loaded):
    client = Client()
    async with fronted(ScriptedServer(), client) as supervisor:
        await supervisor.wait_connected("lab")
        client.say(request(1, "subscriptions/listen", NEW | {"notifications": {"toolsListChanged": 5}}))
        client.say(request(2, "subscriptions/listen", SLOW_LISTEN))
        client.say(request(3, "subscriptions/listen", NEW | {"notifications": ["toolsListChanged"]}))
        await trio.sleep(1)
        assert len(client.news._listeners) == 3
        client.say(notice("notifications/cancelled", {"requestId": 2}))
        loaded.set()
        await trio.sleep(1)
        assert outcomes(client) == {1: INVALID_PARAMS, 3: INVALID_PARAMS}
        assert not client.news._listeners
