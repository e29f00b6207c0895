"""The HTTP client, against a peer that speaks raw bytes: whatever goes wrong, a POST gets an answer."""

import gzip
import json
from contextlib import asynccontextmanager, suppress
from functools import partial

import httpx2
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.alongside import run_alongside
from mcp_nursery.actors.connection.exchange import Exchange, current_exchange
from mcp_nursery.actors.errors import StartFailed
from mcp_nursery.actors.failures import Evidence, Fault
from mcp_nursery.actors.mailbox import ReplySlot
from mcp_nursery.actors.transports import http_client
from mcp_nursery.actors.transports.http_address import Address
from mcp_nursery.actors.transports.http_client import HttpClient

REQUEST = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {}}
NOTICE = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
JSON = b"content-type: application/json\r\n"


class Watcher:
    """Sees what a connection would."""

    def __init__(self):
        self.is_lost = False
        self.is_open = True
        self.heard = 0
        self.sessions = 0
        self.seen = []

    def hear(self):
        self.heard += 1

    def in_session(self):
        self.sessions += 1

    def see(self, evidence, *, stream=False):
        self.seen.append((evidence, stream))


class Peer:
    """Answers each request with the next of `answers`: bytes, or what to do with the stream."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.port = 0

    async def serve(self, stream):
        with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
            await self._serve(stream)

    async def _serve(self, stream):
        async with stream:
            request = b""
            while True:
                part = await stream.receive_some()
                request += part
                if not part:
                    return
                head, gap, body = request.partition(b"\r\n\r\n")
                lengths = [
                    int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
                ]
                if gap and len(body) >= sum(lengths):
                    self.requests.append(request)
                    request = b""
                    answer = self.answers.pop(0)
                    if answer is None:
                        return
                    await (stream.send_all(answer) if isinstance(answer, bytes) else answer(stream))


def answer(status, body=b"", headers=b"", length=None):
    size = len(body) if length is None else length
    return b"HTTP/1.1 %d Word\r\n%scontent-length: %d\r\n\r\n%s" % (status, headers, size, body)


@asynccontextmanager
async def serving(*answers, apart=False, query="", headers=()):
    peer, watcher = Peer(*answers), Watcher()
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, peer.serve, 0, host="127.0.0.1"))
        peer.port = listener.socket.getsockname()[1]
        address = Address.of(f"http://127.0.0.1:{peer.port}/mcp{query}")
        client = HttpClient(address, dict(headers), watcher, answers_apart=apart)
        async with client, run_alongside(client.run_errands):
            yield peer, watcher, client
        nursery.cancel_scope.cancel()


async def until(condition):
    """What the peer or an errand does, both in this process."""
    with trio.fail_after(20):
        while not condition():
            await wait_all_tasks_blocked(0.01)


async def post(client, message=REQUEST, exchange=None, headers=None):
    """As the SDK does."""
    request = client.build_request("POST", client.address.bare, json=message, headers=headers)
    exchange = exchange or Exchange(ReplySlot())
    with exchange.under_way():
        return await client.send(request, stream=True, follow_redirects=False)


@pytest.mark.parametrize(
    ("broken", "fault", "told"),
    [
        (None, Fault.BROKEN, "broke"),
        (b"HTTP/9 oh dear\r\n\r\n", Fault.BROKEN, "broke"),
        (answer(200, b'{"jsonrpc"', JSON, length=99), Fault.BROKEN, "broke"),
        (answer(500, b"<h1>", length=99), Fault.BROKEN, "broke"),
        (answer(307, b"<h1>", b"location: /other\r\n", length=99), Fault.BROKEN, "broke"),
        (answer(200, b"no gzip", JSON + b"content-encoding: gzip\r\n"), Fault.BROKEN, "broke"),
    ],
    ids=["closed", "no HTTP", "cut JSON", "cut refusal", "cut redirect", "broken coding"],
)
async def test_a_post_that_breaks_is_answered(broken, fault, told):
    """SDK-NOTES 3: by a JSON-RPC error with its id; the exchange and the connection know why."""

    async def breaking(stream):
        if broken is not None:
            await stream.send_all(broken)
        await stream.aclose()

    exchange = Exchange(ReplySlot())
    exchange.slot.sent = True
    async with serving(breaking) as (_, watcher, client):
        response = await post(client, exchange=exchange)
        assert (response.status_code, json.loads(response.content)["id"]) == (200, 7)
        assert exchange.evidence.fault is fault
        assert told in exchange.evidence.told
        assert watcher.seen == [(exchange.evidence, False)]
        assert exchange.slot.sent
        assert current_exchange() is None


async def test_nothing_was_sent_where_nobody_listens():
    """R2: then the call says so."""
    exchange = Exchange(ReplySlot())
    exchange.slot.sent = True
    async with serving() as (peer, watcher, _):
        nobody = HttpClient(Address.of("http://127.0.0.1:1/mcp"), {}, watcher)
        async with nobody:
            await post(nobody, exchange=exchange)
        assert exchange.evidence.unsent
        assert not exchange.slot.sent
        assert not peer.requests


async def test_answers_are_read_whole_and_as_they_are():
    """Whatever the coding and the number of parts."""
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"text": "ünïcode" * 1000}}).encode()
    packed = gzip.compress(body)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s\r\ncontent-encoding: gzip\r\n"
    chunked = head + b"transfer-encoding: chunked\r\n\r\n"
    for at in range(0, len(packed), 10):
        part = packed[at : at + 10]
        chunked += b"%x\r\n%s\r\n" % (len(part), part)
    async with serving(chunked + b"0\r\n\r\n") as (_, watcher, client):
        response = await post(client, headers={"mcp-session-id": "s"})
        assert await response.aread() == body
        assert response.headers["mcp-session-id"] == "s"
        assert (watcher.heard, watcher.sessions, watcher.seen) == (1, 1, [])


async def test_an_answer_without_end(monkeypatch):
    """Q25: it is cut off, and that call's error alone."""
    monkeypatch.setattr(http_client, "ANSWER_LIMIT", 2**20)
    exchange = Exchange()
    async with serving(answer(200, b"x" * 2**21, JSON)) as (_, _, client):
        await post(client, exchange=exchange)
        assert exchange.evidence == Evidence("an answer of more than 1 MiB", Fault.BROKEN)


async def test_a_long_error_page_is_an_error_all_the_same():
    exchange = Exchange()
    async with serving(answer(500, b"x" * 2**20)) as (_, watcher, client):
        await post(client, exchange=exchange)
        assert exchange.evidence == Evidence("HTTP 500 Internal Server Error", status=500)
        assert watcher.heard == 0  # it may be the gateway's


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b'{"error": 1}', b'{"error": {"code": "x", "message": 1}}', b"\xff"]
)
async def test_a_refusal_that_is_no_error_of_the_protocol(body):
    exchange = Exchange()
    async with serving(answer(499, body, JSON)) as (_, _, client):
        response = await post(client, exchange=exchange, headers={"mcp-session-id": "s"})
        assert exchange.evidence == Evidence("HTTP 499", status=499, in_session=True)
        assert json.loads(response.content)["error"] == {"code": 499, "message": "HTTP 499"}


async def test_what_nobody_waits_for_is_sent_beside():
    """Q19: also when it is not answered; a failure is seen, and raises nothing."""

    async def hold(stream):
        await trio.sleep_forever()

    async with serving(hold, answer(500)) as (peer, watcher, client):
        with trio.fail_after(20):
            assert (await post(client, NOTICE)).status_code == 202
            await wait_all_tasks_blocked(0.05)
            await post(client, NOTICE)
            await until(lambda: watcher.seen)
        assert watcher.seen == [(Evidence("HTTP 500 Internal Server Error", status=500), False)]
        assert len(peer.requests) == 2


async def test_a_failed_word_of_readiness_is_seen_and_raises_nothing():
    """SDK-NOTES 3: `notifications/initialized` is waited for, since the first request must not overtake it."""
    async with serving(answer(403)) as (_, watcher, client):
        response = await post(client, {**NOTICE, "method": "notifications/initialized"})
        assert response.status_code == 202
        assert watcher.seen[0][0].status == 403


async def test_answers_apart_end_the_wait_when_the_post_fails():
    """On SSE the answer to the POST is not the answer."""
    exchange = Exchange()
    moved = answer(308, b"", b"location: /mcp\r\n")
    async with serving(answer(202), moved, answer(418), apart=True) as (peer, _, client):
        assert (await post(client)).status_code == 202
        await until(lambda: peer.requests)
        request = client.build_request("POST", client.address.bare, json=REQUEST)
        with trio.fail_after(20), exchange.under_way():
            assert (await client.send(request, stream=True)).status_code == 202
            await trio.sleep_forever()
        assert exchange.evidence == Evidence("HTTP 418 I'm a Teapot", status=418, in_session=True)
        assert len(peer.requests) == 3


async def test_redirects_elsewhere_and_without_end_are_not_followed():
    exchange = Exchange()
    loop = [answer(308, b"", b"location: /mcp\r\n")] * 5
    elsewhere = answer(308, b"", b"location: http://127.0.0.1:1/mcp\r\n")
    async with serving(elsewhere, *loop, apart=True) as (peer, watcher, client):
        await post(client, exchange=exchange)
        await until(lambda: peer.requests)
        await post(client)
        await until(lambda: len(peer.requests) == 6)
        assert exchange.evidence.told == "HTTP 308 redirect to http://127.0.0.1, which is not followed"
        assert watcher.seen == []


async def test_a_lost_connection_says_nothing_more():
    """R8: no DELETE of a session that is gone, no cancel to a server that is."""
    async with serving() as (peer, watcher, client):
        watcher.is_lost = True
        assert (await post(client)).status_code == 202
        assert (await client.request("DELETE", client.address.bare)).status_code == 204
        assert not peer.requests


async def test_a_session_that_cannot_be_ended_is_left():
    async with serving(None) as (peer, watcher, client):
        assert (await client.request("DELETE", client.address.bare)).status_code == 204
        assert len(peer.requests) == 1
        assert watcher.seen == []


async def test_the_stream_is_watched_and_its_failures_raise():
    """L6: the SDK reopens it; what ended it is seen."""
    events = b"content-type: text/event-stream\r\n"
    cut = answer(200, b": hello\n\n", events, length=99)

    async def cut_off(stream):
        await stream.send_all(cut)
        await stream.aclose()

    whole = answer(200, b": hello\n\n", events)
    async with serving(whole, cut_off, None, answer(405)) as (_, watcher, client):
        async with client.stream("GET", client.address.bare) as response:
            assert await response.aread() == b": hello\n\n"
        with pytest.raises(httpx2.RemoteProtocolError):
            async with client.stream("GET", client.address.bare) as response:
                await response.aread()
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(client.address.bare)
        assert (await client.get(client.address.bare)).status_code == 405
        faults = [(evidence.fault, evidence.status, stream) for evidence, stream in watcher.seen]
        assert faults == [
            (Fault.ENDED, None, True),
            (Fault.BROKEN, None, True),
            (Fault.BROKEN, None, True),
            (None, 405, True),
        ]
        assert watcher.heard >= 4


async def test_a_mute_peer_is_given_up(monkeypatch):
    """P6: by the POST's own limit, unless the caller has set one; Q16: who waits ends its wait, so the server hears."""
    monkeypatch.setattr(http_client, "POST_LIMIT", 0.2)

    async def hold(stream):
        await trio.sleep_forever()

    async def late(stream):
        await trio.sleep(0.6)
        await stream.send_all(answer(200, b"{}", JSON))

    exchange = Exchange()
    async with serving(hold, late) as (_, _, client):
        await post(client, exchange=exchange)
        assert exchange.evidence.fault is Fault.MUTE
        assert exchange.scope.cancel_called
        response = await post(client, exchange=Exchange(limited=True))
        assert response.content == b"{}"


async def test_the_query_goes_to_the_endpoint_only():
    """L17: and into no text."""
    async with serving(answer(200, b"{}", JSON), answer(202), query="?key=5ecret") as (peer, _, client):
        response = await post(client)
        assert "5ecret" not in f"{response.request.url} {response.request.url!r} {client.address!r}"
        await client.post(f"{client.address.bare}/other?mine=1", json=NOTICE | {"method": "notifications/initialized"})
        first, second = (request.split(b"\r\n")[0] for request in peer.requests)
        assert first == b"POST /mcp?key=5ecret HTTP/1.1"
        assert second == b"POST /mcp/other?mine=1 HTTP/1.1"


async def test_proxies_of_the_environment_are_used(monkeypatch):
    """K2: as other programs do."""
    async with serving(answer(200, b"{}", JSON), answer(403)) as (peer, watcher, _):
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{peer.port}")
        monkeypatch.setenv("no_proxy", "")
        async with HttpClient(Address.of("http://far.invalid/mcp"), {}, watcher) as client:
            assert (await post(client)).content == b"{}"
        assert peer.requests[0].startswith(b"POST http://far.invalid/mcp HTTP/1.1\r\n")
        exchange = Exchange()
        async with HttpClient(Address.of("https://far.invalid/mcp"), {}, watcher) as client:
            await post(client, exchange=exchange)
        assert peer.requests[1].startswith(b"CONNECT far.invalid:443 HTTP/1.1\r\n")
        assert exchange.evidence == Evidence("the proxy did not connect to far.invalid: 403 Word", Fault.UNREACHED)


@pytest.mark.parametrize("url", ["http://x:y/", "http://\x00/"])
def test_an_address_that_is_none(url):
    with pytest.raises(StartFailed, match="the url is not valid") as caught:
        Address.of(url)
    assert not caught.value.retriable


@pytest.mark.parametrize(
    ("url", "bare", "host"),
    [
        ("https://me:5ecret@Far.example/a/b?c=d#e", "https://far.example/a/b", "far.example"),
        ("http://[::1]:8080/mcp", "http://[::1]:8080/mcp", "[::1]:8080"),
        ("http://x", "http://x/", "x"),
        ("http://x/ü?q", "http://x/%C3%BC", "x"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url, bare, host):
    address = Address.of(url)
    assert (address.bare, address.host) == (bare, host)
    assert "5ecret" not in repr(address)
    assert str(address.complete(httpx2.URL(bare))) == bare
