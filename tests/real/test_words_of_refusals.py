"""What a remote server says in the body of a refusal is part of the error, on every way to it: one line, no secret."""

import json
from functools import partial

import pytest
import trio

from mcp_nursery.supervisor import (
    HttpTransport,
    RestartPolicy,
    ServerDown,
    ServerError,
    ServerSpec,
    SseTransport,
    WebSocketTransport,
    open_supervisor,
)
from mcp_nursery.supervisor.tools.outcome import error_content

from ..lab.http_peer import WIRES, response, serving
from ..lab.specs import status

TOKEN = "tok-5ecret-of-this-server"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
ONCE = RestartPolicy(delays=[])
WORDS = f"Your trial\n ended: <b>{TOKEN}</b> " + "and so on " * 50
SHOWN = "Your trial ended: <b>"
BODIES = {
    "text": WORDS.encode(),
    "json": json.dumps({"error": "trial", "message": WORDS}).encode(),
    "json-rpc": json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": WORDS}}).encode(),
}
TRANSPORTS = {"http": HttpTransport, "sse": SseTransport, "websocket": WebSocketTransport}
bodies = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)


@bodies
@pytest.mark.parametrize("code", [403, 500, 503])
@pytest.mark.parametrize("kind", TRANSPORTS)
async def test_at_a_connect(kind, code, body):
    async with serving() as peer:

        async def refuse(asked):
            await asked.send(response(code, body, b"text/plain"))
            return True

        peer.on_other = refuse
        url = peer.url.replace("http:", "ws:") if kind == "websocket" else peer.url
        async with open_supervisor([ServerSpec("far", TRANSPORTS[kind](url, headers=HEADERS), policy=ONCE)]) as nursery:
            with pytest.raises(ServerDown), trio.fail_after(20):
                await nursery.wait_connected("far")
            error = status(nursery, "far").error
    assert str(code) in error or b"jsonrpc" in body  # whose error has a code of its own
    assert SHOWN in error
    assert TOKEN not in error
    assert len(error) <= 300
    assert error.endswith("…")


@bodies
@pytest.mark.parametrize("code", [403, 500, 503])
@pytest.mark.parametrize("wire", WIRES)
async def test_of_a_call(wire, code, body):
    async with serving(**WIRES[wire]) as peer:

        async def refuse(asked):
            await asked.send(response(code, body, b"text/plain"))

        peer.on_call = refuse
        make = SseTransport if peer.sse else HttpTransport
        async with open_supervisor([ServerSpec("far", make(peer.url, headers=HEADERS))]) as nursery:
            await nursery.wait_connected("far")
            with pytest.raises(ServerError, match=SHOWN) as failed:
                await nursery.call_tool("once", server="far")
            assert TOKEN not in str(failed.value)
            assert SHOWN in error_content(failed.value)


@pytest.mark.parametrize(
    ("head", "body", "shown"),
    [
        (b"content-length: 3\r\n", b"why", ": why"),
        (b"transfer-encoding: chunked\r\n", b"2\r\nwh\r\n1\r\ny\r\n0\r\n\r\n", ": why"),
        (b"connection: close\r\n", b"why", ": why"),
        (b"content-length: 9\r\n", b"why", ""),
        (b"content-length: x\r\n", b"why", ""),
        (b"content-type: text/html\r\ncontent-length: 9\r\n", b"<p>why</p", ""),
        (b"content-length: 99999\r\n", b"x" * 99999, ""),
    ],
)
async def test_a_refused_websocket_however_its_body_comes(head, body, shown):
    async def refuse(stream):
        await stream.receive_some(1 << 16)
        await stream.send_all(b"HTTP/1.1 403 Forbidden\r\n" + head + b"\r\n" + body)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), refuse, 0)
        url = f"ws://127.0.0.1:{listener.socket.getsockname()[1]}/"
        async with open_supervisor([ServerSpec("far", WebSocketTransport(url), policy=ONCE)]) as supervisor:
            with pytest.raises(ServerDown), trio.fail_after(20):
                await supervisor.wait_connected("far")
            assert status(supervisor, "far").error.endswith(f"and opened no WebSocket{shown}")
        nursery.cancel_scope.cancel()
