"""Clients that go away in the middle of a call, without a word: in the newer era the call is cancelled at its server,
in the older era with its session. Sessions go in their time, and nobody else notices."""

import contextlib
import json
import signal
import socket
import struct
import subprocess
import sys

import psutil
import pytest
import trio

from mcp_nursery.supervisor.gateway import HttpLimits
from mcp_nursery.supervisor.http_server import server as web_server

from ..lab.gateways import PROGRAM, served
from ..lab.processes import LAB, Journal, eventually, lab
from ..lab.raw_clients import NEW, OLD, http_client, opened, request

pytestmark = pytest.mark.slow

IDLE = 0.5
CALLS = {
    "document": ("sleep", {"seconds": 600}),
    "events": ("tick", {"steps": 100_000, "every": 0.01}),
}
"""A call that is answered by one JSON document, and one that has something to say before its answer."""


@contextlib.asynccontextmanager
async def gateway_of_lab(tmp_path):
    journal = Journal(tmp_path / "journal")
    async with served([lab(journal=journal)], only="lab", limits=HttpLimits(idle=IDLE)) as (gateway, url):
        yield gateway, url, journal


def in_flight(gateway):
    return gateway.supervisor.status()[0].calls.in_flight


class Socket:
    """A connection that is not closed as it should be."""

    def __init__(self, url):
        host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def send(self, verb, body, headers):
        lines = [f"{verb} /mcp HTTP/1.1", "host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers.items())]
        lines += [f"content-length: {len(body.encode())}", "", body]
        self.socket.sendall("\r\n".join(lines).encode())

    def reset(self):
        """As a machine does whose process is gone."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def close(connection):
    connection.socket.close()


def half_close(connection):
    connection.socket.shutdown(socket.SHUT_WR)


async def call_on_socket(client, url, version, kind):
    """Send a call on a connection of its own."""
    tool, arguments = CALLS[kind]
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 1}}
    frame = request(version, 77, "tools/call", **params)
    connection = Socket(url)
    connection.send("POST", frame, client.headers(frame))
    return connection


@pytest.mark.parametrize("vanish", [Socket.reset, close, half_close])
@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("version", [OLD, NEW])
async def test_a_call_whose_client_vanishes_is_cancelled_at_once_or_with_its_session(tmp_path, version, kind, vanish):
    async with gateway_of_lab(tmp_path) as (gateway, url, journal), http_client(url, version) as client:
        await opened(client, version)
        connection = await call_on_socket(client, url, version, kind)
        await eventually(lambda: in_flight(gateway) == 1)
        async with http_client(url, NEW) as other:
            vanish(connection)
            [said] = await other.ask(request(NEW, 1, "tools/call", name="echo", arguments={"text": "here"}))
            assert json.loads(said)["result"]["content"][0]["text"] == "here"
        if version == OLD:
            with trio.fail_after(5):
                assert json.loads((await client.ask(request(OLD, 2, "tools/list")))[0])["result"]  # it has its session
            assert (in_flight(gateway), journal.count("cancelled")) == (1, 0)
        await eventually(lambda: journal.count("cancelled") == 1, within=IDLE + 5)
        connection.socket.close()
        assert in_flight(gateway) == 0
        await eventually(lambda: not gateway.news._sessions, within=IDLE + 5)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux alone ends such connections")
@pytest.mark.parametrize("version", [OLD, NEW])
async def test_a_client_that_stops_reading_costs_little_and_is_given_up(tmp_path, version, monkeypatch):
    monkeypatch.setattr(web_server, "UNREAD", 2.0)
    async with gateway_of_lab(tmp_path) as (gateway, url, journal), http_client(url, version) as client:
        await opened(client, version)
        before = psutil.Process().memory_info().rss
        connections = [await call_on_socket(client, url, version, "events") for _ in range(10)]
        await eventually(lambda: in_flight(gateway) == 10)
        async with http_client(url, NEW) as other:
            with trio.fail_after(5):
                await other.ask(request(NEW, 1, "tools/call", name="echo", arguments={"text": "here"}))
        await eventually(lambda: journal.count("cancelled") == 10, within=60)
        assert in_flight(gateway) == 0
        assert psutil.Process().memory_info().rss - before < 64 << 20
        for connection in connections:
            connection.socket.close()
        await eventually(lambda: not gateway.news._sessions, within=IDLE + 5)


async def test_a_stream_of_news_that_nobody_reads_holds_up_nobody(tmp_path):
    async with gateway_of_lab(tmp_path) as (gateway, url, _), http_client(url, OLD) as client:
        await opened(client, OLD)
        deaf = Socket(url)
        deaf.send("GET", "", {"accept": "text/event-stream", "mcp-session-id": client.session})
        async with http_client(url, OLD) as other, trio.open_nursery() as nursery:
            await opened(other, OLD)
            await nursery.start(other.listen)
            names = [f"tool{number}" for number in range(50)]
            for name in names:  # each a change, and a list that is told of
                grown = await other.ask(request(OLD, 5, "tools/call", name="grow", arguments={"names": [name]}))
                assert "result" in json.loads(grown[-1])
            await other.until(lambda message: "list_changed" in message.get("method", ""))
            nursery.cancel_scope.cancel()
        deaf.reset()
        await eventually(lambda: not gateway.news._sessions, within=IDLE + 5)


CLIENT = """
import subprocess, sys
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
server.stdin.write(sys.stdin.buffer.read())
server.stdin.flush()
print(server.pid, flush=True)
server.wait()
"""


async def test_the_death_of_a_client_on_standard_streams_ends_all_that_was_for_it(tmp_path):
    journal = Journal(tmp_path / "journal")
    command = [PROGRAM, "serve", "--", sys.executable, "-I", "-S", str(LAB), f"journal={journal.path}"]
    about = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    call = request(OLD, 2, "tools/call", name="sleep", arguments={"seconds": 600, "label": "call", "says": "begun"})
    written = "\n".join([request(OLD, 1, "initialize", **about), call, ""]).encode()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    client = await trio.lowlevel.open_process([sys.executable, "-c", CLIENT, *command], **pipes)
    async with client.stdin, client.stdout:
        await client.stdin.send_all(written)
        await client.stdin.aclose()
        await client.stdout.receive_some()  # the pid, or the first answer
        gateway = psutil.Process(client.pid).children()[0]
        await eventually(lambda: journal.count("list"))
        processes = [gateway, *gateway.children(recursive=True)]
        assert any(str(LAB) in each.cmdline() for each in processes)
        client.send_signal(signal.SIGKILL)
        await client.wait()
    await eventually(lambda: not any(each.is_running() for each in processes), within=10)
