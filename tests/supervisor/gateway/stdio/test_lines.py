"""What a client on standard streams may write, and what it is told of a line that is no message."""

import json
import os
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.supervisor import MemoryStore, open_supervisor
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway, serve_stdio
from mcp_nursery.supervisor.gateway.stdio.streams import ClientStreams, capabilities_in
from mcp_nursery.supervisor.testing import ScriptedServer

from ....lab.specs import spec
from ....lab.wire_peer import notice, request, result
from .test_streams import HELLO, LARGE, META, Client, large, served

MARK = b"\xef\xbb\xbf"
INITIALIZE = json.dumps(request(1, "initialize", HELLO)).encode()
DISCOVER = json.dumps(request(1, "server/discover", {"_meta": META})).encode()


async def opening(*lines):
    """Whether a client that writes this is taken for one of a handshake; the lines that are kept, and the codes of
    what it is told at once."""
    (reading, theirs), (said, writing) = os.pipe(), os.pipe()
    os.set_blocking(reading, False)
    try:
        streams = ClientStreams(reading, writing)
        os.write(theirs, b"\n".join([*lines, b""]))
        os.close(theirs)
        opens = await streams.opens_with_handshake()
        kept = await streams.read() if opens is not None else []
        os.close(writing)
        told = os.read(said, 1 << 16).splitlines()
        return opens, kept, [json.loads(line)["error"]["code"] for line in told]
    finally:
        os.close(reading)
        os.close(said)


@pytest.mark.parametrize(
    ("before", "codes"),
    [([], []), ([b"hello", b"[]", b"5"], [-32700, -32600, -32600]), ([b'{"id":1,"result":{}}'], [-32600])],
)
@pytest.mark.parametrize(
    ("first", "handshake"), [(INITIALIZE, True), (json.dumps(request(1, "ping")).encode(), True), (DISCOVER, False)]
)
@pytest.mark.parametrize("mark", [b"", MARK])
async def test_the_first_message_says_whether_there_is_a_handshake_whatever_comes_before(
    before, codes, first, handshake, mark
):
    lines = [*before, first, b"more"]
    lines[0] = mark + lines[0]
    assert await opening(*lines) == (handshake, [first, b"more"], codes)


@pytest.mark.parametrize("levels", [100, 450])
@pytest.mark.parametrize("method", ["initialize", "server/discover"])
async def test_no_server_is_told_of_capabilities_that_are_refused(levels, method):
    """They could not be written again: the start of each server would fail with them."""
    settings = json.loads('{"a":' * levels + "1" + "}" * levels)
    able, key = {"experimental": {"x": settings}}, "io.modelcontextprotocol/clientCapabilities"
    params = HELLO | {"capabilities": able} if method == "initialize" else {"_meta": META | {key: able}}
    line = json.dumps(request(1, method, params)).encode()
    assert capabilities_in(line) == (able if levels == 100 else None)


async def test_a_client_that_writes_no_message_opens_with_none():
    assert await opening(b"hello", b"hello") == (False, [], [-32700, -32700])


async def test_an_answer_that_is_ready_at_the_end_is_read_whole():
    server, stop = ScriptedServer(tools={"large": large}), trio.Event()
    (reading, theirs), (said, writing) = os.pipe(), os.pipe()
    for fd in (reading, writing):
        os.set_blocking(fd, False)
    call = request(2, "tools/call", {"name": "mcp_lab_large", "arguments": {}})
    os.write(theirs, b"".join(json.dumps(each).encode() + b"\n" for each in (request(1, "initialize", HELLO), call)))
    async with (
        trio.lowlevel.FdStream(theirs),
        trio.lowlevel.FdStream(said) as answers,
        open_supervisor([spec(server)], callbacks=gateway_callbacks(), state=MemoryStore()) as supervisor,
        open_gateway(supervisor) as gateway,
        trio.open_nursery() as nursery,
    ):
        streams = ClientStreams(reading, writing)
        nursery.start_soon(partial(serve_stdio, gateway, streams=streams, stop=stop.wait))
        while not streams.unfinished:  # noqa: ASYNC110 - it sets no event
            await trio.sleep(0.01)
        stop.set()
        heard = b""
        with trio.fail_after(20):
            while heard.count(b"\n") < 2:
                heard += await answers.receive_some()
    os.close(reading)
    os.close(writing)
    assert json.loads(heard.splitlines()[1])["result"]["content"][0]["text"] == LARGE


BATCHES = [
    ([], [(None, -32600)]),
    ([5], [(None, -32600)]),
    ([5, request(7, "ping"), [], request(8, "ping")], [(None, -32600), (7, None), (None, -32600), (8, None)]),
    ([notice("notifications/x"), request(9, "ping"), {"id": 1.5, "method": "ping"}], [(9, None), (None, -32600)]),
    ([{"id": 3, "method": 5}, request(4, "ping")], [(3, -32600), (4, None)]),
]


@pytest.mark.parametrize("version", ["2025-03-26", "2025-11-25"])
@pytest.mark.parametrize(("batch", "answers"), BATCHES)
async def test_a_batch_is_answered_message_by_message_in_the_version_that_has_them(
    autojump_clock, version, batch, answers
):
    server, client = ScriptedServer(), Client()
    async with served(server, client):
        client.say(request(1, "initialize", HELLO | {"protocolVersion": version}))
        await wait_all_tasks_blocked()
        begun = len(client.frames)
        client.say(json.dumps(batch).encode())
        await wait_all_tasks_blocked()
        told = [(message["id"], message.get("error", {}).get("code")) for message in client.heard[begun:]]
        expected = answers if version == "2025-03-26" else [(None, -32600)]
        assert sorted(told, key=str) == sorted(expected, key=str)
        client.say(request(2, "ping"))
        await wait_all_tasks_blocked()
        assert client.heard[-1] == result(2)
