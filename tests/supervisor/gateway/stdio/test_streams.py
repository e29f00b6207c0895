"""A client on standard streams that does not read, or not fast. Virtual time."""

import json
import re
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.jsonrpc.endpoint import Endpoint
from mcp_nursery.supervisor import MemoryStore, open_supervisor
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway, serve_stdio
from mcp_nursery.supervisor.gateway.clients import MOST_WAITING_NOTIFICATIONS
from mcp_nursery.supervisor.gateway.stdio import streams as client_streams
from mcp_nursery.supervisor.gateway.stdio.streams import ClientCarrier
from mcp_nursery.supervisor.testing import Ask, Life, ScriptedServer

from ....lab.gateway_clients import AskingServer
from ....lab.specs import spec
from ....lab.wire_peer import Peer, no_notice, request

LARGE = "x" * (5 << 20)


@asynccontextmanager
async def answering(client):
    """A client, each of whose requests is answered with what its `text` is repeated to."""

    async def handle(_context, _method, params):
        return {"text": params["text"] * LARGE.count("x")} if "text" in params else {}

    endpoint = Endpoint(ClientCarrier(client))
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run, handle, no_notice)
        yield endpoint
        nursery.cancel_scope.cancel()


def answered(client):
    return [int(re.search(rb'"id":([0-9]+)', frame[:99])[1]) for frame in client.frames]


async def test_answers_wait_in_their_order_until_the_client_reads(autojump_clock):
    client = Peer(room=0)
    async with answering(client) as endpoint:
        client.say(*(request(number, "ask", {"text": "x"} if number % 3 else {}) for number in range(9)))
        await wait_all_tasks_blocked()
        assert (client.frames, endpoint.serving) == ([], 7)
        assert endpoint._carrier.outbox.size < 6 << 20
        for number in range(1, 10):
            client.take(1)
            await wait_all_tasks_blocked()
            assert answered(client) == list(range(number))
        assert endpoint.serving == 0
        assert not endpoint.lost.is_set()


async def test_a_request_that_is_taken_back_while_its_answer_waits_is_not_answered(autojump_clock):
    client = Peer(room=0)
    async with answering(client) as endpoint:
        client.say(*(request(number, "ask", {"text": "x"}) for number in range(4)))
        await wait_all_tasks_blocked()
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
        client.say(cancelled)
        await wait_all_tasks_blocked()
        client.take()
        await wait_all_tasks_blocked()
        assert answered(client) == [0, 1, 3]
        assert endpoint.serving == 0


async def test_of_answers_that_nobody_reads_so_many_are_kept(autojump_clock, monkeypatch):
    monkeypatch.setattr(client_streams, "MOST_ANSWERS", 12 << 20)
    client = Peer(room=0)
    async with answering(client):
        client.say(*(request(number, "ask", {"text": "x"}) for number in range(6)))
        await wait_all_tasks_blocked()
        client.take()
        await wait_all_tasks_blocked()
        said = [json.loads(frame) for frame in client.frames]
        assert [(message["id"], "result" in message) for message in said] == [
            (0, True), (1, True), (2, True), (3, False), (4, False), (5, False)
        ]  # fmt: skip
        assert said[-1]["error"]["message"].startswith("the answer is lost: ")


CHANGED = "notifications/tools/list_changed"
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
ENVELOPE = {"protocolVersion": "2026-07-28", "clientCapabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
META = {f"io.modelcontextprotocol/{key}": value for key, value in ENVELOPE.items()}
LISTEN = {"notifications": {"toolsListChanged": True}, "_meta": META}


class Client(Peer):
    """A client on standard streams."""

    closed = False
    waits = bool


@asynccontextmanager
async def served(server, client):
    """A gateway in front of one server, for a client on standard streams."""
    async with (
        open_supervisor(
            [server.spec() if isinstance(server, AskingServer) else spec(server)],
            callbacks=gateway_callbacks(),
            state=MemoryStore(),
        ) as supervisor,
        open_gateway(supervisor) as gateway,
        trio.open_nursery() as nursery,
    ):
        await supervisor.wait_connected("lab")
        nursery.start_soon(partial(serve_stdio, gateway, streams=client))
        yield
        nursery.cancel_scope.cancel()


async def large(_arguments):
    await trio.lowlevel.checkpoint()
    return LARGE


@pytest.mark.parametrize(("opening", "meta"), [(("initialize", HELLO), {}), (("subscriptions/listen", LISTEN), META)])
async def test_a_client_that_reads_late_still_learns_that_a_list_has_changed(autojump_clock, opening, meta):
    server = ScriptedServer(tools={"large": large})
    server.capabilities |= {"tools": {"listChanged": True}, "logging": {}}
    client = Client()
    async with served(server, client):
        client.say(request(1, *opening))
        await trio.sleep(1)
        client.room = 0
        client.say(request(2, "tools/call", {"name": "mcp_lab_large", "arguments": {}, "_meta": meta}))
        for number in range(2 * MOST_WAITING_NOTIFICATIONS):
            await server.notify("notifications/message", {"level": "info", "data": number})
            await trio.sleep(0.01)
        for number in range(3):
            server.tools[f"new-{number}"] = large
            await server.notify(CHANGED)
            await trio.sleep(1)
        begun = len(client.frames)
        client.take()
        await trio.sleep(1)
        changes = [message["method"] for message in client.heard[begun:] if "method" in message].count(CHANGED)
        assert 1 <= changes <= 2  # one may be on its way when the next comes


@pytest.mark.parametrize("session", [True, False])
async def test_a_server_is_told_why_a_call_is_taken_back(session, autojump_clock):
    server, client = AskingServer(), Client()
    call = {"name": "mcp_lab_work", "arguments": {"who": "Ann"}, "_meta": {"progressToken": 1}}
    async with served(server, client):
        if session:
            client.say(request(1, "initialize", HELLO))
            await trio.sleep(1)
        else:
            call["_meta"] |= META
        client.say(request(2, "tools/call", call))
        process = await server.called("Ann")
        cancelled = {"requestId": 2, "reason": "too dear"}
        client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
        await trio.sleep(1)
        assert process.cancelled == ["too dear"]
        process.say_json(method="notifications/message", params={"level": "error", "data": "perhaps of this"})
        await trio.sleep(1)
        assert [each["params"]["data"] for each in client.heard_of("notifications/message")] == [
            "perhaps of this"
        ] * session


async def test_a_question_ends_when_the_client_closes_its_end_and_its_call_is_answered(autojump_clock):
    form = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}

    async def asks(_arguments):
        await trio.lowlevel.checkpoint()
        return Ask({"who": {"method": "elicitation/create", "params": form}}, large)

    client = Client()
    client.loss_takes = 60.0
    async with served(ScriptedServer(Life(modern=True), tools={"asks": asks}), client):
        client.say(request(1, "initialize", HELLO | {"capabilities": {"elicitation": {}}}))
        client.say(request(2, "tools/call", {"name": "mcp_lab_asks", "arguments": {}}))
        await wait_all_tasks_blocked()
        assert client.heard[-1]["method"] == "elicitation/create"
        client.say(request(3, "tools/call", {"name": "mcp_lab_asks", "arguments": {}}))
        client.end()
        began = trio.current_time()
        await wait_all_tasks_blocked()
        answered = {message["id"]: message["error"]["message"] for message in client.heard if "error" in message}
        assert answered == {2: "closed its end", 3: "closed its end"}
        assert client.heard_of("notifications/cancelled") == []
        assert trio.current_time() == began


OLD_ERA, NEW_ERA = {}, {"_meta": META}
REFUSED, OTHER_ERA = -32600, -32022


@pytest.mark.parametrize(
    ("said", "codes"),
    [
        (
            [("initialize", HELLO), ("tools/list", NEW_ERA), ("initialize", HELLO), ("tools/list", OLD_ERA)],
            [0, REFUSED, REFUSED, 0],
        ),
        ([("server/discover", NEW_ERA), ("initialize", HELLO), ("tools/list", OLD_ERA)], [0, 0, 0]),
        (
            [("tools/list", NEW_ERA), ("initialize", HELLO), ("tools/list", OLD_ERA), ("tools/list", NEW_ERA)],
            [0, OTHER_ERA, OTHER_ERA, 0],
        ),
    ],
)
async def test_a_conversation_is_of_the_era_that_it_began_with(autojump_clock, said, codes):
    """To ask what there is begins none: the answer may come too late for who asks."""
    client = Client()
    async with served(ScriptedServer(), client):
        for number, (method, params) in enumerate(said):
            client.say(request(number, method, params))
            await trio.sleep(1)
        answers = {
            message["id"]: message.get("error", {"code": 0})["code"] for message in client.heard if "id" in message
        }
    assert [answers[number] for number in range(len(said))] == codes
