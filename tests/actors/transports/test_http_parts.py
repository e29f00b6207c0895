"""The parts of the HTTP transports that need no conversation: addresses, layers of headers, authorities, events."""

import gzip
import ssl
import threading

import httpx2
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.errors import StartFailed
from mcp_nursery.actors.http import environment
from mcp_nursery.actors.http.address import Address
from mcp_nursery.actors.http.auth import AuthFailed, Layers
from mcp_nursery.actors.http.client import origin_of
from mcp_nursery.actors.http.responses import parts_of
from mcp_nursery.actors.transports.http.event_stream import EventParser, Oversized, ServerSentEvent, events_of

from ...lab import proxies

# addresses


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


HERE = Address.of("https://user:pass@here.example:8443/mcp?key=1")
ELSEWHERE = [
    "http://here.example:8443/mcp",
    "https://here.example/mcp",
    "https://here.example:9443/mcp",
    "https://there.example:8443/mcp",
    "https://sub.here.example:8443/mcp",
]


@pytest.mark.parametrize("url", ELSEWHERE)
def test_another_scheme_host_or_port_is_another_origin(url):
    assert not HERE.has_same_origin(httpx2.URL(url))
    assert HERE.has_same_origin(httpx2.URL("https://HERE.example:8443/other?x=1"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://x/a?b=5ecret", "http://x:80"),
        ("https://me:5ecret@x/", "https://x:443"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
        ("https://x:8443/", "https://x:8443"),
    ],
)
def test_an_origin_is_shown_with_its_port_and_nothing_else(url, shown):
    assert origin_of(httpx2.URL(url)) == shown


# headers


async def headers_to(url, given, headers=(), address=HERE):
    """What a request carries that is sent through the layers."""
    request = httpx2.Request("POST", url, headers=dict(given))
    flow = Layers(address, dict(headers)).async_auth_flow(request)
    sent = dict((await anext(flow)).headers)
    with pytest.raises(StopAsyncIteration):
        await flow.asend(httpx2.Response(200))
    return sent


@pytest.mark.parametrize("url", ELSEWHERE)
async def test_no_header_and_no_authorisation_goes_to_another_origin(url):
    """P6: also if something should send one there."""
    sent = await headers_to(url, {}, {"x-key": "5ecret"})
    assert not {"x-key", "authorization"} & set(sent)
    sent = await headers_to("https://here.example:8443/other", {}, {"x-key": "5ecret"})
    assert {"x-key", "authorization"} <= set(sent)


async def test_the_protocols_headers_stay_and_the_users_go_over_authorisation():
    """P6: user agent < authorisation < the user's; what the protocol says is not for them to say."""
    given = {"user-agent": "ours", "accept": "a", "mcp-session-id": "s", "mcp-param-x": "1"}
    users = dict.fromkeys((*given, "authorization", "mcp-param-y", "last-event-id"), "mine")
    sent = await headers_to("https://here.example:8443/mcp", given, users)
    assert (sent["accept"], sent["mcp-session-id"], sent["mcp-param-x"]) == ("a", "s", "1")
    assert (sent["user-agent"], sent["authorization"], sent["mcp-param-y"]) == ("mine", "mine", "mine")
    assert "last-event-id" not in sent


class Asking(httpx2.Auth):
    """Sends a request of its own first, and fails as told."""

    def __init__(self, error=None):
        self.error = error

    async def async_auth_flow(self, request):
        yield httpx2.Request("GET", "https://tokens.example/")
        if self.error is not None:
            raise self.error
        request.headers["authorization"] = "Bearer t"
        yield request


async def test_what_authorisation_asks_elsewhere_carries_nothing_of_the_users():
    address = Address.of("https://here.example/mcp", Asking())
    request = httpx2.Request("POST", "https://here.example/mcp")
    flow = Layers(address, {"x-key": "5ecret"}).async_auth_flow(request)
    assert "x-key" not in (await anext(flow)).headers
    sent = await flow.asend(httpx2.Response(200))
    assert (sent.headers["authorization"], sent.headers["x-key"]) == ("Bearer t", "5ecret")
    await flow.aclose()


@pytest.mark.parametrize(
    ("error", "raised"), [(LookupError("no token"), AuthFailed), (httpx2.ConnectError("no"), httpx2.ConnectError)]
)
async def test_a_failure_of_authorisation_is_told_from_one_of_the_network(error, raised):
    address = Address.of("https://here.example/mcp", Asking(error))
    flow = Layers(address, {}).async_auth_flow(httpx2.Request("POST", "https://here.example/mcp"))
    await anext(flow)
    with pytest.raises(raised):
        await flow.asend(httpx2.Response(200))


# authorities


@pytest.mark.usefixtures("authorities_not_loaded")
async def test_authorities_are_loaded_once_in_a_thread_and_only_for_tls(monkeypatch):
    """C: to load them holds up the loop for tens of milliseconds."""
    threads = []

    def load(*settings, **more):
        threads.append(threading.current_thread())
        return made(*settings, **more)

    made = httpx2.create_ssl_context
    proxies.only(monkeypatch)
    for name in environment.AUTHORITY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(httpx2, "create_ssl_context", load)
    plain = await environment.context_for("http", None)
    assert not plain.get_ca_certs()
    assert plain.verify_mode is ssl.CERT_REQUIRED
    assert not threads
    first = await environment.context_for("https", None)
    assert await environment.context_for("https", None) is first
    assert first.verify_mode is ssl.CERT_REQUIRED
    assert first.check_hostname
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
    monkeypatch.setenv("http_proxy", "https://proxy.example")
    assert await environment.context_for("http", environment.proxy_for("http://x/")) is first


# events


def events_in(*chunks, limit=1 << 20):
    parser = EventParser(limit)
    return [event for chunk in chunks for event in parser.take(parser.split(chunk))]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_what_an_event_is(end):
    """As the standard of server-sent events has it."""
    lines = [": a comment", "event: named", "data: one", "data:two", "data", "id: 7", "retry: 250", "other: x", "", ""]
    expected = ServerSentEvent("named", b"one\ntwo\n", "7", 0.25)
    assert events_in(end.join(lines).encode() + b"data: x\n\n")[0] == expected


def test_an_id_stays_and_the_rest_does_not():
    told = b"id: 1\nretry: 5\nevent: a\ndata: x\n\ndata: y\n\nid\nretry: no\ndata: z\n\nid: a\0b\ndata: w\n\n"
    assert events_in(told) == [
        ServerSentEvent("a", b"x", "1", 0.005),
        ServerSentEvent("message", b"y", "1", None),
        ServerSentEvent("message", b"z", "", None),
        ServerSentEvent("message", b"w", "", None),
    ]


def test_an_id_that_no_header_can_carry_is_none():
    """Nobody takes a stream up again by it."""
    longest, longer = b"x" * 8192, b"y" * 8193
    assert [event.id for event in events_in(b"id: %s\n\nid: %s\n\n" % (longest, longer))] == [longest.decode()] * 2


LINE = st.sampled_from([b"data: x", b"data: " + b"y" * 40, b"id: 1", b": c", b"event: e", b"", b"", b"data", b"\xff"])


@given(st.lists(st.tuples(LINE, st.sampled_from([b"\n", b"\r", b"\r\n"])), max_size=20), st.data())
def test_however_it_is_cut_it_is_the_same(lines, data):
    """And what is over the limit is passed over in the same place."""
    whole = b"".join(line + end for line, end in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    chunks = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    def told(events):
        return [event if isinstance(event, ServerSentEvent) else event.whole for event in events]

    assert told(events_in(*chunks, limit=60)) == told(events_in(whole, limit=60))


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_what_is_too_large_is_passed_over_and_shows_its_ends(step):
    body = b'{"id":1,"result":"' + b"x" * 5000 + b'","jsonrpc":"2.0"}'
    whole = b"event: message\ndata: " + body + b"\n\ndata: next\n\n"
    events = events_in(*(whole[at : at + step] for at in range(0, len(whole), step)), limit=2000)
    found, end, after = events
    assert isinstance(found, Oversized)
    assert not found.whole
    assert (end.whole, end.head[:18], end.tail.rstrip(b"\n")[-17:]) == (True, body[:18], body[-17:])
    assert abs(end.size - len(body)) < 30
    assert after == ServerSentEvent("message", b"next", "", None)


def test_what_is_too_large_in_many_lines_is_passed_over_too():
    whole = b"data: x\n" * 500 + b"\n" + b"data: next\n\n"
    found, end, after = events_in(whole, limit=100)
    assert (found.whole, end.whole, after.data) == (False, True, b"next")


def test_a_comment_may_be_of_any_length():
    assert events_in(b":" + b"x" * 5000, b"y" * 5000, b"\ndata: x\n\n", limit=100)[0].data == b"x"


@pytest.mark.parametrize(
    ("part", "events", "turns"),
    [
        pytest.param(b"data: x\n\n" * 50_000, 50_000, 200, id="events"),
        pytest.param(b"\n" * 60_000, 60_000, 120, id="empty lines"),
        pytest.param(b":\r" * 30_000, 0, 60, id="comments"),
        pytest.param(b"data: " + b"x" * 900_000 + b"\n\n", 1, 13, id="one event"),
    ],
)
async def test_a_large_part_is_taken_in_turns(part, events, turns):
    counted = 0

    async def count_turns():
        nonlocal counted
        while True:
            await trio.lowlevel.cancel_shielded_checkpoint()
            await trio.lowlevel.checkpoint_if_cancelled()
            counted += 1

    async def parts():
        yield part

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        assert len([event async for event in events_of(parts(), 1 << 20)]) == events
        nursery.cancel_scope.cancel()
    assert counted >= turns - 3


# bodies


class Body(httpx2.AsyncByteStream):
    def __init__(self, *parts):
        self.parts = parts

    async def __aiter__(self):
        for part in self.parts:
            yield part


async def test_a_body_in_tiny_parts_is_taken_in_turns():
    """One read of a socket may hold ten thousand of them."""
    others = 0

    async def take_turns():
        nonlocal others
        while True:
            others += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        response = httpx2.Response(200, stream=Body(*[b"x"] * 10_000))
        assert b"".join([part async for part in parts_of(response, lambda: None)]) == b"x" * 10_000
        nursery.cancel_scope.cancel()
    assert others > 500


@pytest.mark.parametrize(
    "headers", [[("content-encoding", "gzip, gzip")], [("content-encoding", "gzip"), ("content-encoding", "deflate")]]
)
async def test_a_body_that_is_encoded_more_than_once_is_not_decoded(headers):
    """What unfolds between one layer and the next may be without end, and come to nothing."""
    request = httpx2.Request("GET", "http://x")
    body = Body(gzip.compress(gzip.compress(b"{}")))
    response = httpx2.Response(200, headers=headers, stream=body, request=request)
    with pytest.raises(httpx2.RequestError, match="encoded more than once"):
        await anext(parts_of(response, lambda: None))
