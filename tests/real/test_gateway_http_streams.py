"""Answers and streams over HTTP, and who may end them: seen from clients that do what the SDK's never do."""

import json
import signal
import socket

import pytest
import trio

from ..lab.gateways import served_over_http
from ..lab.processes import Journal, eventually
from ..lab.raw_clients import NEW, OLD, http_client, opened, request
from .test_gateway_limits import LAB_COMMAND
from .test_gateway_vanishing import Socket, gateway_of_lab, in_flight

pytestmark = pytest.mark.slow

LARGE = 16 << 20
"""Bytes of an answer that no buffer of the system holds."""


class Usual(Socket):
    """With the buffers that the system gives it."""

    def __init__(self, url):
        host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
        self.socket = socket.create_connection((host, int(port)))


async def read_all(connection):
    """All that a socket has to say."""
    connection.socket.setblocking(False)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection.socket))
    got = bytearray()
    async for data in stream:
        got += data
    return got


async def asked(client, url, number, tool, **arguments):
    """A call on a connection of its own, whose answer is not read."""
    frame = request(client._version, number, "tools/call", name=tool, arguments=arguments)
    connection = Usual(url)
    connection.send("POST", frame, client.headers(frame))
    return connection


async def test_the_stream_of_news_begins_at_once(tmp_path):
    """Also if there is no news."""
    async with gateway_of_lab(tmp_path) as (_, url, _), http_client(url, OLD) as client, trio.open_nursery() as nursery:
        await opened(client, OLD)
        with trio.fail_after(5):
            await nursery.start(client.listen)
        nursery.cancel_scope.cancel()


async def test_the_end_of_a_session_ends_its_calls(tmp_path):
    async with gateway_of_lab(tmp_path) as (gateway, url, journal), http_client(url, OLD) as client:
        await opened(client, OLD)
        connection = await asked(client, url, 2, "sleep", seconds=600)
        await eventually(lambda: in_flight(gateway) == 1)
        await client.end()
        await eventually(lambda: journal.count("cancelled") == 1, within=5)
        connection.socket.settimeout(5)
        assert (await trio.to_thread.run_sync(connection.socket.recv, 65536)).startswith(b"HTTP/1.1 404")
        connection.socket.close()


async def test_a_number_and_its_digits_are_two_ids(tmp_path):
    async with gateway_of_lab(tmp_path) as (gateway, url, journal), http_client(url, OLD) as client:
        await opened(client, OLD)
        connections = [await asked(client, url, number, "sleep", seconds=600) for number in (7, "7")]
        await eventually(lambda: in_flight(gateway) == 2)
        for left, own in enumerate((7, "7")):
            params = {"requestId": own}
            await client.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))
            await eventually(lambda left=left: in_flight(gateway) == 1 - left)
            await eventually(lambda left=left: journal.count("cancelled") == 1 + left)
        for connection in connections:
            connection.socket.close()


@pytest.mark.parametrize("reads", [True, False])
async def test_an_answer_that_is_being_written_at_sigterm(tmp_path, reads):
    """Its client gets it whole if it reads within `--drain`; one that does not holds up nobody for longer."""
    journal = Journal(tmp_path / "journal")
    with trio.fail_after(60):
        async with (
            served_over_http("--drain", "20" if reads else "2", *LAB_COMMAND, f"journal={journal.path}") as served,
            http_client(served[1], NEW) as client,
        ):
            process, url = served
            [said] = await client.ask(request(NEW, 1, "tools/call", name="echo", arguments={"text": "here"}))
            assert "result" in json.loads(said)
            connection = await asked(client, url, 1, "big", size=LARGE)
            await trio.lowlevel.wait_readable(connection.socket)
            process.send_signal(signal.SIGTERM)
            with trio.move_on_after(1.5 if reads else 10):
                await process.wait()
            if reads:
                said = await read_all(connection)
                assert len(said.partition(b"\r\n\r\n")[2]) > LARGE
                assert json.loads(said.partition(b"\r\n\r\n")[2])["result"]
                await process.wait()
            assert process.returncode == 0
            connection.socket.close()
