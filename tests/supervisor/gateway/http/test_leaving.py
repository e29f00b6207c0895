"""The end of a gateway on a port of its own: what it answers until then, and when. Real sockets, virtual time."""

import json
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway, open_http
from mcp_nursery.supervisor.gateway.http.application import serve_http
from mcp_nursery.supervisor.http_server.listening import bind_socket, listen
from mcp_nursery.supervisor.testing import ScriptedServer

from ....lab.gateway_clients import ENVELOPE, NEW
from ....lab.specs import spec
from ....lab.web_clients import BOTH

READY = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n"


def call_of(tool):
    params = {"name": tool, "arguments": {}, "_meta": ENVELOPE}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    lines = ["POST /mcp/lab HTTP/1.1", "host: localhost", "content-type: application/json", f"accept: {BOTH}"]
    lines += [f"mcp-protocol-version: {NEW}", "mcp-method: tools/call", f"mcp-name: {tool}"]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


class Port:
    """A gateway that ends when it is told to, and who connects to it."""

    def __init__(self, address, nursery):
        self.stop, self.ended, self.called = trio.Event(), trio.Event(), trio.Event()
        self.release = trio.Event()
        self._address = address
        self._nursery = nursery
        self._open = []

    async def connect(self):
        stream = await trio.open_tcp_stream(*self._address)
        self._open.append(stream)
        return stream

    async def echo(self, arguments):
        await trio.lowlevel.checkpoint()
        return "a word"

    async def wait(self, arguments):
        self.called.set()
        await self.release.wait()
        return "done"

    async def aclose(self):
        for stream in self._open:
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def served(*, shared=False, **options):
    listening = bind_socket("127.0.0.1", 0, reuse_port=shared)
    if shared:
        listen(listening)
    async with trio.open_nursery() as nursery:
        port = Port(listening.getsockname(), nursery)
        server = ScriptedServer(tools={"echo": port.echo, "wait": port.wait})

        async def serve():
            async with (
                open_supervisor([spec(server)], callbacks=gateway_callbacks()) as supervisor,
                open_gateway(supervisor) as gateway,
                open_http(gateway) as application,
            ):
                await supervisor.wait_connected("lab")
                started.set()
                await serve_http(gateway, application, listening, stop=port.stop.wait, shared=shared, **options)
            port.ended.set()

        started = trio.Event()
        nursery.start_soon(serve)
        await started.wait()
        yield port
        await port.aclose()
        nursery.cancel_scope.cancel()


async def said(stream):
    """What comes next, as far as it has come; empty at the end."""
    return await stream.receive_some(1 << 16)


async def ask(stream, request):
    await stream.send_all(request)
    return await said(stream)


async def test_a_lame_duck_answers_all_and_says_that_it_leaves(mock_clock):
    """First `/readyz`, with all else as before but that each answer is the last of its connection; then new requests
    are refused, and whoever refuses says that another may try; the call that was begun has its time."""
    async with served(lame_duck=10, drain=5) as port:
        idle, spoken, busy = [await port.connect() for _ in range(3)]
        assert b"200 OK" in await ask(idle, READY)
        assert b"connection: close" not in await ask(spoken, call_of("echo"))
        await busy.send_all(call_of("wait"))
        await port.called.wait()
        port.stop.set()
        await trio.testing.wait_all_tasks_blocked()

        assert b"503 Service" in await ask(await port.connect(), READY)
        answered = await ask(spoken, call_of("echo"))
        assert b"a word" in answered
        assert b"connection: close" in answered
        assert await said(spoken) == b""
        mock_clock.jump(9.9)
        await trio.testing.wait_all_tasks_blocked()
        assert b"a word" in await ask(await port.connect(), call_of("echo"))

        mock_clock.jump(0.2)
        assert await said(idle) == b""
        refused = await ask(await port.connect(), call_of("echo"))
        assert b"503 Service" in refused
        assert b"retry-after: 1" in refused
        assert b"connection: close" in refused
        assert not port.ended.is_set()
        port.release.set()
        assert b"done" in await said(busy)
        assert await said(busy) == b""
        await port.ended.wait()


async def test_without_a_lame_duck_it_drains_at_once(mock_clock):
    async with served(drain=5) as port:
        idle, busy = [await port.connect() for _ in range(2)]
        assert b"200 OK" in await ask(idle, READY)
        await busy.send_all(call_of("wait"))
        await port.called.wait()
        port.stop.set()
        assert await said(idle) == b""
        assert b"503 Service" in await ask(await port.connect(), call_of("echo"))
        port.release.set()
        assert b"done" in await said(busy)
        await port.ended.wait()


@pytest.mark.parametrize("leaves", ["the client goes", "the time is over"])
async def test_a_shared_port_is_left_at_once_and_all_that_came_is_served(mock_clock, leaves):
    """Until the last connection is closed, or the time is over."""
    async with served(shared=True, lame_duck=10, drain=5) as port:
        idle, spoken = [await port.connect() for _ in range(2)]
        for stream in (idle, spoken):
            assert b"200 OK" in await ask(stream, READY)
        silent = await port.connect()
        port.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(OSError, match="connect"):
            await port.connect()
        for stream in (spoken, silent):
            assert b"connection: close" in await ask(stream, call_of("echo"))
            assert await said(stream) == b""
        assert not port.ended.is_set()
        if leaves == "the client goes":
            await idle.send_eof()
        else:
            mock_clock.jump(10)
            assert await said(idle) == b""
        await port.ended.wait()
        assert trio.current_time() == pytest.approx(0 if leaves == "the client goes" else 10)
