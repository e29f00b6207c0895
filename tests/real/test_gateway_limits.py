"""What clients may cost a gateway over HTTP, with real sockets that send and read slowly, and how it ends."""

import json
import os
import signal
import ssl
import sys
from contextlib import AsyncExitStack
from functools import partial

import httpx2
import psutil
import pytest
import trio
import trustme
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.cli.serve_http import HttpFront
from mcp_nursery.supervisor.gateway import HttpLimits
from mcp_nursery.supervisor.gateway.auth.bearer_tokens import add_token
from mcp_nursery.supervisor.http_server import http_connection, server
from mcp_nursery.supervisor.http_server.parser import HEAD
from mcp_nursery.supervisor.http_server.server import Tls

from ..lab.gateways import served, served_over_http
from ..lab.processes import LAB, Journal, eventually, lab
from .test_gateway import call_of, headers_of
from .test_gateway_access import BOTH, INITIALIZE

pytestmark = pytest.mark.slow

ENVIRONMENT = dict(os.environ)
LAB_COMMAND = ["--", sys.executable, "-I", "-S", str(LAB)]


def place_of(url):
    return httpx2.URL(url).host, httpx2.URL(url).port


async def rest_of(stream):
    """All that comes until the other side ends it, however."""
    got = b""
    try:
        while data := await stream.receive_some():
            got += data
    except trio.BrokenResourceError:
        pass
    await stream.aclose()
    return got


@pytest.mark.parametrize("password", [None, "hidden words"])
async def test_it_is_served_over_tls(tmp_path, password):
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes() if password is None else locked(issued, password))
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    env = {} if password is None else {"MCP_NURSERY_TLS_KEY_PASSWORD": password}
    options = ["--tls-cert", str(certificate), "--tls-key", str(key)]
    with trio.fail_after(60):
        async with (
            served_over_http(*options, *LAB_COMMAND, env=ENVIRONMENT | env, scheme="https") as (process, url),
            httpx2.AsyncClient(timeout=60, verify=trusting) as http,
            Client(streamable_http_client(url, http_client=http), mode="legacy") as client,
        ):
            assert (await client.call_tool("echo", {"text": "x"})).content[0].text == "x"
            with pytest.raises(httpx2.ConnectError):
                async with httpx2.AsyncClient(timeout=60) as strange:
                    await strange.get(url)
            with pytest.raises(httpx2.RemoteProtocolError):
                async with httpx2.AsyncClient(timeout=60) as clear:
                    await clear.get(url.replace("https", "http"))
            renewed = authority.issue_cert("renewed.example", "127.0.0.1")
            certificate.write_bytes(b"".join(pem.bytes() for pem in renewed.cert_chain_pems))
            key.write_bytes(renewed.private_key_pem.bytes())
            process.send_signal(signal.SIGHUP)
            await until(lambda: has_name("renewed.example", url, trusting))


def locked(issued, password):
    from cryptography.hazmat.primitives import serialization as pem

    key = pem.load_pem_private_key(issued.private_key_pem.bytes(), None)
    return key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(password.encode()))


async def has_name(name, url, context):
    host, port = place_of(url)
    async with await trio.open_ssl_over_tcp_stream(host, port, ssl_context=context, https_compatible=True) as stream:
        await stream.do_handshake()
        return ("DNS", name) in stream.getpeercert()["subjectAltName"]


async def until(holds):
    while not await holds():  # noqa: ASYNC110 - another process changes it
        await trio.sleep(0.05)


async def is_ready(http, url, status):
    alone = {"connection": "close"}  # one that is idle may be closed just when it is to be used again
    try:
        return (await http.get(url.replace("/mcp", "/readyz"), headers=alone)).status_code == status
    except (httpx2.RemoteProtocolError, httpx2.ReadError):
        return (
            False  # closed before it had asked, or reset as it asked: a gateway that begins to end closes who is silent
        )


def test_a_certificate_that_cannot_be_used_is_refused(tmp_path):
    issued = trustme.CA().issue_cert("localhost")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(issued.cert_chain_pems[0].bytes())
    key.write_bytes(locked(issued, "hidden words"))
    with pytest.raises(ConfigError, match="this password opens"):
        Tls(certificate, key, "other words")
    with pytest.raises(ConfigError, match="this password opens"):
        Tls(certificate, key, None)
    with pytest.raises(ConfigError, match="this password opens"):
        Tls(certificate, key, "x" * 2000)
    with pytest.raises(ConfigError, match=r"nowhere.pem: field '--tls-cert': cannot be read: No such file"):
        Tls(tmp_path / "nowhere.pem", key, None)
    with pytest.raises(ConfigError, match=r"nowhere.pem: field '--tls-key': cannot be read: No such file"):
        Tls(certificate, tmp_path / "nowhere.pem", None)
    with pytest.raises(ConfigError, match="field '--tls-cert': its key is not in it: name that with --tls-key"):
        Tls(certificate, None, None)
    os.mkfifo(tmp_path / "pipe.pem")
    with pytest.raises(ConfigError, match=r"pipe.pem: field '--tls-key': cannot be read: not a regular file"):
        Tls(certificate, tmp_path / "pipe.pem", None)
    with pytest.raises(ConfigError, match="needs --tls-cert"):
        HttpFront("127.0.0.1:0", tls_key=key)


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        ("nothing=1", "must be NAME=NUMBER with one of connections"),
        ("sessions", "sessions must be a whole number, not ''"),
        ("sessions=0", "sessions must be at least 1, not 0"),
        ("sessions=1.5", "sessions must be a whole number, not '1.5'"),
        ("idle=-1", "idle must be seconds >= 0, not -1.0"),
        ("idle=0", "idle must be seconds > 0, not 0.0"),
        ("request-seconds=0", "request_seconds must be seconds > 0, not 0.0"),
        ("body-seconds=nan", "body_seconds must be seconds >= 0, not nan"),
        ("body-seconds=x", "body_seconds must be a number, not 'x'"),
    ],
)
def test_a_limit_that_is_none_is_refused(limit, problem):
    with pytest.raises(ConfigError, match=f"field '--limit'.*{problem}"):
        HttpFront("127.0.0.1:0", limit=[limit])


async def test_one_client_cannot_take_what_is_for_all(tmp_path):
    tokens = tmp_path / "tokens.toml"
    ann, bob = ({"authorization": f"Bearer {add_token(tokens, name)}"} for name in ("ann", "bob"))
    limits = ["--limit", "sessions=3", "--limit", "sessions-of-client=2", "--limit", "requests-of-client=2"]
    with trio.fail_after(60):
        async with (
            served_over_http("--token-file", str(tokens), *limits, *LAB_COMMAND) as (_, url),
            httpx2.AsyncClient(timeout=30) as http,
        ):
            post = partial(http.post, url, json=INITIALIZE)
            begun = [await post(headers=BOTH | ann) for _ in range(3)]
            assert [said.status_code for said in begun] == [200, 200, 429]
            assert [(await post(headers=BOTH | bob)).status_code for _ in range(2)] == [200, 503]
            echo = partial(http.post, url, json=call_of("echo", text="x"))
            async with AsyncExitStack() as streams:
                for said in begun[:2]:
                    session = {"mcp-session-id": said.headers["mcp-session-id"]}
                    await streams.enter_async_context(http.stream("GET", url, headers=BOTH | ann | session))
                assert (await echo(headers=headers_of("echo") | ann)).status_code == 429
                assert (await echo(headers=headers_of("echo") | bob)).status_code == 200
            await until(partial(succeeds, partial(echo, headers=headers_of("echo") | ann)))


async def succeeds(request):
    return (await request()).is_success


async def test_a_request_without_an_answer_is_cancelled_in_time():
    with trio.fail_after(60):
        async with (
            served_over_http("--limit", "request-seconds=0.5", *LAB_COMMAND) as (_, url),
            httpx2.AsyncClient(timeout=60) as http,
        ):
            said = await http.post(url, json=call_of("sleep", seconds=60), headers=headers_of("sleep"))
            assert "no answer within 0.5 s" in said.json()["error"]["message"]


async def test_heads_and_bodies_that_are_slow_or_large_end(monkeypatch):
    monkeypatch.setattr(http_connection, "HEAD_SECONDS", 0.5)
    with trio.fail_after(60):
        async with served([lab()], only="lab", limits=HttpLimits(body_seconds=0.5, body=1000)) as (_, url):
            host, port = place_of(url)
            slow = await trio.open_tcp_stream(host, port)
            await slow.send_all(b"POST /mcp HTTP/1.1\r\nHost: local")
            assert await rest_of(slow) == b""  # nobody waits for the rest of a head
            large = await trio.open_tcp_stream(host, port)
            await large.send_all(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (HEAD + 1))
            assert (await rest_of(large)).startswith(b"HTTP/1.1 431")
            head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: */*\r\n"
            head += b"Content-Length: "
            body = await trio.open_tcp_stream(host, port)
            await body.send_all(head + b"500\r\n\r\n{")
            assert (await rest_of(body)).startswith(b"HTTP/1.1 408")
            body = await trio.open_tcp_stream(host, port)
            await body.send_all(head + b"5000\r\n\r\n" + b" " * 2000)
            assert (await rest_of(body)).startswith(b"HTTP/1.1 413")


async def test_connections_beyond_the_limit_wait():
    """Where requests are under way on all others: these two send the rest of theirs when they like."""
    head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Accept: application/json, text/event-stream\r\nContent-Length: 100\r\n\r\n"
    with trio.fail_after(60):
        async with served_over_http("--limit", "connections=2", *LAB_COMMAND) as (_, url):
            host, port = place_of(url)
            busy = [await trio.open_tcp_stream(host, port) for _ in range(2)]
            for stream in busy:
                await stream.send_all(head)
            third = await trio.open_tcp_stream(host, port)
            await third.send_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            with trio.move_on_after(0.5) as early:
                await third.receive_some()
            assert early.cancelled_caught
            await busy[0].aclose()
            assert (await rest_of(third)).startswith(b"HTTP/1.1 200")
            await busy[1].aclose()


async def test_a_client_that_does_not_read_is_disconnected(monkeypatch):
    """Whatever is to be sent: what waits for it ends."""
    monkeypatch.setattr(server, "UNREAD", 0.5)
    monkeypatch.setattr(server, "SLOWEST", 64 << 20)
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    client = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
    stream = server.ClientStream(await listener.accept())
    with trio.fail_after(30), pytest.raises(trio.BrokenResourceError, match="does not read"):
        await stream.send_all(b"x" * server.SLOWEST)
    with trio.fail_after(30):
        assert len(await rest_of(client)) < server.SLOWEST
    await client.aclose()
    await listener.aclose()


async def test_it_drains_at_sigterm(tmp_path):
    journal, answers = Journal(tmp_path / "journal"), []
    with trio.fail_after(60):
        async with (
            served_over_http("--drain", "20", *LAB_COMMAND, f"journal={journal.path}") as (process, url),
            httpx2.AsyncClient(timeout=30) as http,
        ):
            begun = await http.post(url, headers=BOTH, json=INITIALIZE)
            session = {"mcp-session-id": begun.headers["mcp-session-id"]}

            async def listen():
                async with http.stream("GET", url, headers=BOTH | session) as stream:
                    listening.set()
                    async for _ in stream.aiter_bytes():
                        pass
                    answers.append("stream ended")

            async def call():
                said = await http.post(url, headers=headers_of("commit"), json=call_of("commit", takes=2))
                answers.append(said.json()["result"]["content"][0]["text"])
                assert said.headers["connection"] == "close"

            listening = trio.Event()
            await until(lambda: is_ready(http, url, 200))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen)
                await listening.wait()
                nursery.start_soon(call)
                await eventually(lambda: journal.count("commit"))
                idle = await trio.open_tcp_stream(*place_of(url))
                await idle.send_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert b"close" not in await idle.receive_some()
                process.send_signal(signal.SIGTERM)
                assert await rest_of(idle) == b""
                await until(lambda: is_ready(http, url, 503))
                said = (await http.post(url, headers=BOTH, json=INITIALIZE)).json()
                assert "it takes no more requests" in said["error"]["message"]
            await process.wait()
    assert answers == ["committed", "stream ended"]
    assert process.returncode == 0


@pytest.mark.parametrize("option", ["--drain", "--lame-duck"])
async def test_the_second_sigterm_ends_it_at_once(tmp_path, option):
    journal = Journal(tmp_path / "journal")
    with trio.fail_after(60):
        async with (
            served_over_http(option, "600", *LAB_COMMAND, f"journal={journal.path}") as (process, url),
            httpx2.AsyncClient(timeout=600) as http,
            trio.open_nursery() as nursery,
        ):

            async def call():
                with pytest.raises(httpx2.TransportError):
                    await http.post(url, headers=headers_of("commit"), json=call_of("commit", takes=600))

            nursery.start_soon(call)
            await eventually(lambda: journal.count("commit"))
            process.send_signal(signal.SIGTERM)
            await until(lambda: is_ready(http, url, 503))
            process.send_signal(signal.SIGTERM)
            await process.wait()
    assert process.returncode == 0


async def test_answers_that_nobody_reads_are_kept_within_a_bound():
    """Beyond it an answer is an error, whoever reads; small ones, and the rest of the clients, notice nothing."""
    size, kept, count = 8 << 20, 64 << 20, 16
    body = json.dumps(call_of("big", size=size)).encode()
    lines = [f"{name}: {value}" for name, value in headers_of("big").items()]
    lines += ["host: localhost", "content-type: application/json", f"content-length: {len(body)}", "connection: close"]
    request = "\r\n".join(["POST /mcp HTTP/1.1", *lines, "", ""]).encode() + body
    with trio.fail_after(120):
        async with (
            served_over_http("--limit", f"kept={kept}", *LAB_COMMAND) as (process, url),
            httpx2.AsyncClient(timeout=60) as http,
            AsyncExitStack() as clients,
        ):
            await until(lambda: is_ready(http, url, 200))
            await http.post(url, headers=headers_of("big"), json=call_of("big", size=1))  # loads all that calls need
            before, unread, lost = psutil.Process(process.pid).memory_info().rss, [], 0
            while not lost:
                assert len(unread) < count
                client = await clients.enter_async_context(await trio.open_tcp_stream(*place_of(url)))
                await client.send_all(request)
                first = await client.receive_some(4096)
                lost += b"the answer is lost" in first
                unread.append(client)
            assert len(unread) == kept // size
            small = await http.post(url, headers=headers_of("big"), json=call_of("big", size=1))
            assert small.json()["result"]["content"][0]["text"] == "x"
            assert psutil.Process(process.pid).memory_info().rss - before < 2 * kept
            for client in unread:
                await rest_of(client)
            again = await http.post(url, headers=headers_of("big"), json=call_of("big", size=size))
            assert len(again.json()["result"]["content"][0]["text"]) == size
