"""A connect over HTTP that takes too long: its error names what has not come."""

import socket
from contextlib import ExitStack

import pytest
import trio

from mcp_nursery.actors.transports.http.connectors import SseConnector, StreamableHttpConnector
from mcp_nursery.actors.transports.websocket.connector import WebSocketConnector

from ...lab.actors import living
from ...lab.http_peer import HANDSHAKE, MODERN, STREAM, RenewingAuth, chunk, connector, response, serving


async def missing_of(connecting, **settings):
    """What the error of a connect names that takes half a second."""
    async with living(connecting, connect_timeout=0.5, **settings) as seen:
        with trio.fail_after(20):
            await seen.ended.wait()
    problem = seen.reason.loss.message
    begin, end = "not connected within 0.5 s: no ", " (connect_timeout, or connectSeconds in a file, gives it more)"
    assert problem.startswith(begin)
    assert problem.endswith(end)
    return problem.removeprefix(begin).removesuffix(end)


@pytest.mark.parametrize(("sse", "missing"), [(False, "answer to server/discover"), (True, "stream of")])
async def test_a_server_that_says_nothing(sse, missing):
    async with serving(sse=sse) as peer:

        async def mute(_asked):
            await trio.sleep_forever()

        peer.on_other = mute
        found = await missing_of(connector(peer))
    assert found == (f"{missing} 127.0.0.1:{peer.port}" if sse else missing)


async def test_a_stream_that_names_no_endpoint():
    async with serving(sse=True) as peer:

        async def open_alone(asked):
            await asked.send(STREAM + chunk(b": welcome\n\n"))
            await trio.sleep_forever()

        peer.on_other = open_alone
        assert await missing_of(connector(peer)) == f"endpoint on the stream of 127.0.0.1:{peer.port}"


@pytest.mark.parametrize(
    ("era", "sse", "method"),
    [
        (MODERN, False, "tools/list"),
        (HANDSHAKE, False, "initialize"),
        (HANDSHAKE, False, "tools/list"),
        (HANDSHAKE, True, "initialize"),
        (HANDSHAKE, True, "tools/list"),
        (HANDSHAKE, True, "notifications/initialized"),
    ],
)
async def test_a_request_that_gets_no_answer(era, sse, method):
    async with serving(era, sse=sse) as peer:

        async def mute(asked):
            if asked.message.get("method") == method:
                await trio.sleep_forever()

        peer.on_other = mute
        assert await missing_of(connector(peer)) == f"answer to {method}"


async def test_a_token_that_does_not_come():
    async with serving() as peer:

        async def refuse(asked):
            await asked.send(response(401))
            return True

        peer.on_other = refuse
        assert await missing_of(connector(peer, auth=RenewingAuth())) == f"token that 127.0.0.1:{peer.port} accepts"


@pytest.fixture
def full():
    """A port that takes no connection: those that wait to be accepted are as many as may."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.parametrize("make", [StreamableHttpConnector, SseConnector, WebSocketConnector])
async def test_a_connection_that_does_not_come(make, full):
    """As behind a firewall."""
    scheme = "ws" if make is WebSocketConnector else "http"
    words = {
        StreamableHttpConnector: f"connection to 127.0.0.1:{full}",
        SseConnector: f"stream of 127.0.0.1:{full}",
        WebSocketConnector: "connection",
    }
    assert await missing_of(make(f"{scheme}://127.0.0.1:{full}/", {}, close_grace=1)) == words[make]
