"""Servers behind proxies of the environment: the way to each, and one line for a way that there is not."""

import os
import ssl
import sys
from functools import partial

import httpx2
import pytest
import trio
import trustme

from mcp_nursery.actors.errors import StartFailed
from mcp_nursery.actors.http import environment
from mcp_nursery.actors.http.environment import EnvironmentUnusable, authorities, proxy_for
from mcp_nursery.actors.oauth.token_endpoint import Passing, send
from mcp_nursery.actors.outcomes import Answered
from mcp_nursery.actors.transports.http.connectors import SseConnector, StreamableHttpConnector

from ...lab import websocket_peer
from ...lab.http_peer import WIRES, HttpPeer, anyhow, call, outcome_of, serving
from ...lab.proxies import lab_proxy, only

FAR = "far.test"
KINDS = pytest.mark.parametrize("scheme", ["http", "socks5", "socks5h"])


def far(peer, origin=f"http://{FAR}"):
    make = SseConnector if peer.sse else StreamableHttpConnector
    return make(f"{origin}/{'sse' if peer.sse else 'mcp'}", {}, close_grace=1)


async def works(connector):
    async with connector.connect() as connection:
        await connection.handshake(None)
        await connection.list_tools()
        assert isinstance(await outcome_of(connection, call()), Answered)


async def problem_of(connector):
    """The loss of a connection that cannot be opened, and whether another try may help."""
    with trio.fail_after(20):
        try:
            async with connector.connect() as connection:
                with pytest.raises(Exception) as failed:  # noqa: PT011
                    await connection.handshake(None)
            return failed.value.loss.message, not failed.value.loss.unusable
        except StartFailed as failed:
            return str(failed), failed.retriable


# ways that there are


@KINDS
@anyhow
async def test_a_server_behind_a_proxy(monkeypatch, wire, scheme):
    """K2."""
    async with serving(**wire) as peer, lab_proxy(scheme, {FAR: peer.port}) as proxy:
        only(monkeypatch, ALL_PROXY=proxy.url)
        await works(far(peer))
        assert proxy.asked[0] == (FAR if scheme == "http" else f"{FAR}:80")
        assert peer.ledger == ["once"]


@pytest.fixture
def trusted(monkeypatch, tmp_path, authorities_not_loaded):
    """The authority of the tests, trusted by the environment; and the context of a server that it vouches for."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(FAR).configure_cert(context)
    return context


@KINDS
async def test_a_server_with_tls_behind_a_proxy(monkeypatch, trusted, scheme):
    """K2: and the requests to an issuer of tokens take the same way."""
    peer = HttpPeer()
    async with trio.open_nursery() as nursery:
        start = partial(trio.serve_ssl_over_tcp, peer._serve, 0, trusted, host="127.0.0.1")
        (listener,) = await nursery.start(start)
        port = listener.transport_listener.socket.getsockname()[1]
        async with lab_proxy(scheme, {FAR: port}) as proxy:
            only(monkeypatch, https_proxy=proxy.url, http_proxy="http://127.0.0.1:1")
            await works(far(peer, f"https://{FAR}"))
            assert (await send(httpx2.Request("POST", f"https://{FAR}/token"), None)).status_code == 202
            assert set(proxy.asked) == {f"{FAR}:443"}
        nursery.cancel_scope.cancel()


@KINDS
@pytest.mark.parametrize("tls", [False, True], ids=["ws", "wss"])
async def test_a_websocket_behind_a_proxy(monkeypatch, trusted, scheme, tls):
    """K2."""

    async def greet(request):
        await request.accept(subprotocol="mcp")
        await trio.sleep_forever()

    async with websocket_peer.serving(greet, trusted if tls else None) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        async with lab_proxy(scheme, {FAR: port}) as proxy:
            variable = "https_proxy" if tls else "http_proxy"
            only(
                monkeypatch, **{variable: proxy.url.replace("//", "//me:5ecret%21@") if scheme == "http" else proxy.url}
            )
            async with websocket_peer.connector(f"{'wss' if tls else 'ws'}://{FAR}/mcp").open():
                assert proxy.asked == [f"{FAR}:{443 if tls else 80}"]
            if scheme == "http":
                assert b"Proxy-Authorization: Basic bWU6NWVjcmV0IQ==\r\n" in proxy.heads[0]


async def test_credentials_for_a_proxy_are_in_no_log(monkeypatch, caplog):
    """L17: whatever the level of the libraries' logs."""
    caplog.set_level("DEBUG")
    async with serving() as peer, lab_proxy("socks5", {FAR: peer.port}, wants=("me", "5ecret!")) as proxy:
        only(monkeypatch, ALL_PROXY=proxy.url.replace("//", "//me:5ecret%21@"))
        await works(far(peer))
        async with websocket_peer.listening(websocket_peer.accept) as url:
            proxy._ports[FAR] = int(url.rpartition(":")[2].partition("/")[0])
            async with websocket_peer.connector(f"ws://{FAR}/mcp").open():
                pass
        only(monkeypatch, ALL_PROXY=proxy.url.replace("//", "//me:another@"))
        problem, again = await problem_of(far(peer))
        assert (problem.endswith(" it wants other credentials"), again) == (True, False)
    assert len(proxy.asked) == 2
    assert "5ecret" not in caplog.text
    assert "another" not in caplog.text


@anyhow
async def test_loopback_is_reached_without_a_proxy(monkeypatch, wire):
    """Whatever the environment holds; WebSockets too."""
    only(monkeypatch, all_proxy="socks4://127.0.0.1:1", http_proxy="nonsense://", HTTPS_PROXY="http://[")
    async with serving(**wire) as peer:
        await works(far(peer, peer.origin))
        await works(far(peer, peer.origin.replace("127.0.0.1", "localhost")))
    async with (
        websocket_peer.listening(websocket_peer.accept) as url,
        websocket_peer.connector(url).open(),
    ):
        pass


async def test_loopback_through_a_proxy_if_asked_for(monkeypatch):
    async with serving() as peer, lab_proxy("http", {"127.0.0.1": peer.port}) as proxy:
        only(monkeypatch, http_proxy=proxy.url, no_proxy="far.test,<-loopback>")
        await works(far(peer, peer.origin))
        assert proxy.asked[0] == f"127.0.0.1:{peer.port}"


@pytest.mark.parametrize(
    ("excepted", "straight", "not_straight"),
    [
        ("", [], ["http://a.test", "https://a.test", "ws://a.test", "wss://a.test", "http://10.0.0.1"]),
        ("*", ["http://a.test", "wss://a.test"], []),
        ("a.test", ["http://a.test", "http://A.test:8", "http://b.a.test", "ws://a.test"], ["http://ba.test"]),
        (".a.test, *.c.test", ["http://b.a.test", "http://b.c.test"], ["http://a.test", "http://c.test"]),
        ("a.test:8", ["http://a.test:8", "http://b.a.test:8"], ["http://a.test"]),
        ("a.test:443", ["https://a.test", "wss://a.test"], ["http://a.test"]),
        ("https://a.test", ["https://a.test"], ["http://a.test"]),
        ("10.0.0.0/8", ["http://10.1.2.3:8"], ["http://11.0.0.1", "http://a.test"]),
        ("10.0.0.1", ["http://10.0.0.1"], ["http://10.0.0.11", "http://1.10.0.0.1.test"]),
        ("fd00::/8,[fe80::1]", ["http://[fd00::1]:8", "http://[fe80::1]"], ["http://[fe80::2]"]),
        ("[fd00::1]:8", ["http://[fd00::1]:8"], ["http://[fd00::1]:9"]),
        ("10.0.0.0/99, ::, http://[, :8, .", [], ["http://a.test", "http://10.0.0.1", "http://a.test:8"]),
    ],
)
def test_what_is_excepted(monkeypatch, excepted, straight, not_straight):
    only(monkeypatch, ALL_PROXY="http://proxy.test:8", NO_PROXY=excepted)
    assert [url for url in straight if proxy_for(url) is not None] == []
    assert [url for url in not_straight if proxy_for(url) is None] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost", "LOCALHOST.", "app.localhost"])
def test_what_is_loopback(monkeypatch, host):
    only(monkeypatch, ALL_PROXY="nonsense")
    assert proxy_for(f"http://{host}:80/") is None


def test_which_variable_counts(monkeypatch):
    only(monkeypatch, all_proxy="http://a", HTTP_PROXY="http://b", http_proxy="c:8")
    assert [str(proxy_for(url)) for url in ("http://x", "wss://x")] == [
        "the proxy http://c:8 (http_proxy)",
        "the proxy http://a (all_proxy)",
    ]
    only(monkeypatch, HTTP_PROXY="http://b", http_proxy="")
    assert proxy_for("http://x") is None


# ways that there are not

UNUSABLE = [
    (
        "socks4://me:5ecret@127.0.0.1:1080/x",
        "socks4://127.0.0.1:1080",
        "proxies are http://, https://, socks5://, socks5h://",
    ),
    ("http://", "http://", "it names no host"),
    ("http://me:5ecret", "http://me:…", "it is not a URL"),
    ("http://me:5ecret@[", "http://[", "it is not a URL"),
    ("http://proxy:0", "http://proxy:0", "it names no port"),
    ("http://proxy:0?key=5ecret", "http://proxy:0", "it names no port"),
    ("http://proxy:0#5ecret", "http://proxy:0", "it names no port"),
]


@pytest.mark.parametrize(("value", "shown", "problem"), UNUSABLE)
async def test_a_proxy_that_cannot_be_used_is_one_line_and_not_retried(monkeypatch, caplog, value, shown, problem):
    """K5, L12: on every transport, and for requests to issuers."""
    only(monkeypatch, ALL_PROXY=value)
    line = f"ALL_PROXY={shown} cannot be used: {problem}; correct or unset it, or name far.test in NO_PROXY"
    for wire in WIRES.values():
        peer = HttpPeer(**wire)
        assert await problem_of(far(peer)) == (line, False)
    ws = f"url 'ws://far.test/mcp' cannot be reached: {line}"
    assert await problem_of(websocket_peer.connector(f"ws://{FAR}/mcp")) == (ws, False)
    with pytest.raises(Passing) as passing:
        await send(httpx2.Request("POST", f"https://{FAR}/token"), None)
    assert str(passing.value) == line
    assert caplog.text == ""


@anyhow
async def test_socks_without_the_extra(monkeypatch, wire):
    only(monkeypatch, ALL_PROXY="socks5h://me:5ecret@127.0.0.1:1080")
    monkeypatch.setitem(sys.modules, "socksio", None)
    line = "ALL_PROXY=socks5h://127.0.0.1:1080 cannot be used: SOCKS needs an extra; pip install 'mcp-nursery[socks]'"
    line += ", or name far.test in NO_PROXY"
    assert await problem_of(far(HttpPeer(**wire))) == (line, False)
    ws = f"url 'ws://far.test/mcp' cannot be reached: {line}"
    assert await problem_of(websocket_peer.connector(f"ws://{FAR}/mcp")) == (ws, False)


ANSWERS = [
    ("http", b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "502 Bad Gateway", True),
    ("http", b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407 Proxy Authentication Required", False),
    ("socks5", b"\x05\xff", "it wants other credentials", False),
    ("socks5", b"\x05\x02", "it wants other credentials", False),
    ("socks5", b"HTTP/1.1 400 Bad Request\r\n\r\n", "it does not speak SOCKS5", True),
    ("socks5", b"", "it does not speak SOCKS5", True),
]


@pytest.mark.parametrize("answered", ANSWERS)
async def test_what_a_proxy_says_is_not_the_servers_word(monkeypatch, caplog, answered):
    """K5: an error names the proxy and its variable."""
    scheme, answer, problem, retriable = answered
    async with lab_proxy(scheme, answer=answer) as proxy:
        only(monkeypatch, https_proxy=proxy.url)
        named = f"the proxy {proxy.url} (https_proxy) did not connect to"
        for wire in WIRES.values():
            found, again = await problem_of(far(HttpPeer(**wire), f"https://{FAR}"))
            assert found.startswith(f"{named} far.test: {problem}")
            assert again is retriable
        found, again = await problem_of(websocket_peer.connector(f"wss://{FAR}/mcp"))
        assert found.startswith(f"url 'wss://far.test/mcp' cannot be reached: {named} it: {problem}")
        assert again is retriable
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("scheme", ["http", "https", "socks5"])
async def test_a_proxy_that_is_not_there(monkeypatch, scheme):
    only(monkeypatch, all_proxy=f"{scheme}://127.0.0.1:1")
    through = f"through the proxy {scheme}://127.0.0.1:1 (all_proxy)"
    for wire in WIRES.values():
        found = await problem_of(far(HttpPeer(**wire)))
        assert found == (f"cannot connect to far.test {through}: Connection refused", True)
    found = await problem_of(websocket_peer.connector(f"ws://{FAR}/mcp"))
    assert found == (f"url 'ws://far.test/mcp' cannot be reached {through}: Connection refused", True)


@anyhow
async def test_a_plain_request_that_a_proxy_answers(monkeypatch, wire):
    for status, words, again in (
        (
            b"407 Proxy Authentication Required",
            "{} wants other credentials: HTTP 407 Proxy Authentication Required",
            False,
        ),
        (b"502 Bad Gateway", "HTTP 502 Bad Gateway, of the server or of {}", True),
    ):
        async with lab_proxy(answer=b"HTTP/1.1 %s\r\ncontent-length: 0\r\n\r\n" % status) as proxy:
            only(monkeypatch, http_proxy=proxy.url)
            found, retriable = await problem_of(far(HttpPeer(**wire)))
            assert words.format(f"the proxy {proxy.url} (http_proxy)") in found
            assert retriable is again


# authorities

EMPTY, ABSENT, TEXT, PIPE, FOLDER, HASHED = "empty", "absent", "text", "pipe", "folder", "folder-of-hashes"


@pytest.fixture
def places(tmp_path):
    (tmp_path / EMPTY).touch()
    (tmp_path / TEXT).write_text("no certificate")
    os.mkfifo(tmp_path / PIPE)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / HASHED).mkdir()
    (tmp_path / HASHED / "0a1b2c3d.0").touch()
    return tmp_path


@pytest.mark.usefixtures("authorities_not_loaded")
@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        (("SSL_CERT_FILE", ABSENT), "it does not exist"),
        (("SSL_CERT_FILE", EMPTY), "it is no file of certificates in PEM format"),
        (("SSL_CERT_FILE", TEXT), "it is no file of certificates in PEM format"),
        (("SSL_CERT_FILE", PIPE), "it is not a file"),
        (("SSL_CERT_FILE", FOLDER), "Is a directory"),
        (("SSL_CERT_DIR", ABSENT), "it does not exist"),
        (("SSL_CERT_DIR", EMPTY), "Not a directory"),
        (("SSL_CERT_DIR", FOLDER), "no certificate in it is named by its hash, as `openssl rehash` does"),
    ],
)
async def test_authorities_that_cannot_be_used(monkeypatch, caplog, places, setting, problem):
    """K5, L12: one line, only where TLS is spoken, and nothing of it is kept."""
    only(monkeypatch)
    for each in environment.AUTHORITY_VARIABLES:
        monkeypatch.delenv(each, raising=False)
    variable, name = setting
    monkeypatch.setenv(variable, str(places / name))
    line = f"{variable}={places / name} cannot be used: {problem}; correct it, or unset it for the system's authorities"
    async with websocket_peer.listening(trio.aclose_forcefully) as url:
        for wire in WIRES.values():
            assert await problem_of(far(HttpPeer(**wire), "https://127.0.0.1:1")) == (line, False)
        secured = url.replace("ws://", "wss://")
        found = await problem_of(websocket_peer.connector(secured))
        assert found == (f"url '{secured}' cannot be reached: {line}", False)
    async with serving() as peer:
        await works(far(peer, peer.origin))
    monkeypatch.setenv(variable, "")
    assert (await authorities()).verify_mode is ssl.CERT_REQUIRED
    assert caplog.text == ""


@pytest.mark.usefixtures("authorities_not_loaded")
async def test_authorities_on_a_disk_that_has_gone(monkeypatch):
    """Nobody waits for them longer than for a connection."""
    only(monkeypatch)
    with environment._LOADING:  # as another load holds it that does not end
        with trio.move_on_after(0.1) as waiting:
            await authorities()
    assert waiting.cancelled_caught


@pytest.mark.usefixtures("authorities_not_loaded")
async def test_folders_of_authorities(monkeypatch, places):
    """One of several is enough, as for OpenSSL."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", f"{places / ABSENT}:{places / HASHED}")
    await authorities()
    monkeypatch.setenv("SSL_CERT_DIR", f"{places / ABSENT}:{places / FOLDER}")
    with pytest.raises(EnvironmentUnusable):
        await authorities()
