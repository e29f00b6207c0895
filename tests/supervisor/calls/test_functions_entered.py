"""Budgets of the functions that a call goes through, there and back: each small step looks free, and many of them made
a call cost a third more.

Counted is each entry into a function of ours, also of a coroutine that goes on, in the round that has the fewest: in
others work of other tasks may come between. Not counted is what depends on the version of Python or of a library:
comprehensions, what attrs generates, other packages. A budget is what there is; who gets below it lowers it.
"""

import json
import sys
from contextlib import asynccontextmanager, contextmanager

import trio
import trio.testing
from attrs import frozen

from mcp_nursery.actors.transports.base import StreamConnector
from mcp_nursery.supervisor import MemoryStore, ServerSpec, open_supervisor
from mcp_nursery.supervisor.gateway import open_gateway
from mcp_nursery.supervisor.gateway.http.application import open_http
from mcp_nursery.supervisor.http_server.http_connection import HttpConnection

from ...lab.gateway_clients import ENVELOPE, NEW, OLD
from ...lab.talker import Talker

ONE_CALL = 96
ONE_GATEWAY_CALL = 383

ROUNDS = 25
"""Trio picks the order of tasks that are ready at random, and some orders cost a function more."""
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Echo(Talker):
    """A server on a wire whose one tool has an output schema."""

    def take(self, message):
        if message["method"] == "initialize":
            info = {"name": "echo", "version": "1"}
            self.answer(message, {"protocolVersion": OLD, "capabilities": {"tools": {}}, "serverInfo": info})
        elif message["method"] == "tools/list":
            self.answer(message, {"tools": [{"name": "echo", "inputSchema": TEXT, "outputSchema": TEXT}]})
        elif message["method"] == "tools/call":
            given = message["params"]["arguments"]
            self.answer(message, {"content": [{"type": "text", "text": given["text"]}], "structuredContent": given})
        elif "id" in message:
            self.write({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})

    def answer(self, request, result):
        self.write({"id": request["id"], "result": result})

    def write(self, message):
        self.say(json.dumps({"jsonrpc": "2.0", **message}).encode())


@frozen
class Transport:
    kind = "scripted"

    def connector(self, *, close_grace):
        return Connector()


@frozen
class Connector(StreamConnector):
    @asynccontextmanager
    async def open(self):
        yield Echo()


@contextmanager
def entries():
    """The entries into functions of ours within the block."""
    found = []

    def enter(frame, event, _):
        name, code = frame.f_globals.get("__name__", ""), frame.f_code
        if event == "call" and name.startswith("mcp_nursery.") and not f"{code.co_filename}{code.co_name}".count("<"):
            found.append(f"{name}.{code.co_name}")

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        yield found
    finally:
        sys.setprofile(before)


async def fewest(supervisor, once):
    """Of some rounds in front of a warm server."""
    await supervisor.wait_connected("lab")
    for _ in range(3):
        await once()
    rounds = []
    for _ in range(ROUNDS):
        await trio.testing.wait_all_tasks_blocked()
        with entries() as found:
            await once()
        rounds.append(found)
    return min(rounds, key=len)


async def test_a_call_enters_no_more_functions_than_its_budget(autojump_clock):
    async with open_supervisor([ServerSpec("lab", Transport())], state=MemoryStore()) as supervisor:

        async def call():
            result = await supervisor.call_tool("mcp_lab_echo", {"text": "hello"}, timeout=30)
            assert result.structured == {"text": "hello"}

        found = await fewest(supervisor, call)
        assert "mcp_nursery.actors.router.submit" in found
        assert len(found) <= ONE_CALL, "\n".join(found)


def post():
    params = {"name": "echo", "arguments": {"text": "hello"}, "_meta": ENVELOPE}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = (
        "POST /mcp/lab HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"accept: application/json, text/event-stream\r\nmcp-protocol-version: {NEW}\r\n"
        f"mcp-method: tools/call\r\nmcp-name: echo\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def test_a_call_through_the_gateway_enters_no_more_functions_than_its_budget(autojump_clock):
    async with (
        open_supervisor([ServerSpec("lab", Transport())], state=MemoryStore()) as supervisor,
        open_gateway(supervisor) as gateway,
        open_http(gateway) as application,
        trio.open_nursery() as nursery,
    ):
        ours, client = trio.testing.memory_stream_pair()
        nursery.start_soon(HttpConnection(application, ours, "http", ("127.0.0.1", 1)).serve)

        async def call():
            answer = b""
            await client.send_all(post())
            while not answer.endswith(b"}"):
                answer += await client.receive_some()
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["result"]["structuredContent"] == {"text": "hello"}

        found = await fewest(supervisor, call)
        assert "mcp_nursery.actors.router.submit" in found
        assert len(found) <= ONE_GATEWAY_CALL, "\n".join(found)
        nursery.cancel_scope.cancel()
