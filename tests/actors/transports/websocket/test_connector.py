"""Reaching a server by a WebSocket: what is asked, what is refused, and one clear line when it cannot be."""

import datetime
import ipaddress
import itertools
import ssl
import threading

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mcp_nursery.actors.errors import StartFailed
from mcp_nursery.actors.transports.websocket.connector import WebSocketConnector
from mcp_nursery.actors.transports.websocket.upgrade import HEAD_LIMIT

from ....lab.websocket_peer import (
    TEXT,
    accept,
    acceptance,
    connector,
    frame,
    free_port,
    listening,
    request_of,
    reset,
    serving,
    until_end,
)


async def failure_of(url, **settings):
    """What the start of a connection comes to; its message without the URL."""
    with trio.fail_after(60), pytest.raises(StartFailed) as failure:
        async with connector(url, **settings).open():
            pytest.fail("opened")
    return failure.value


# what is asked


async def asked(suffix="", **settings):
    """The request as the server sees it: its first line, and its headers."""
    requests = []

    async def look(stream):
        requests.append(await request_of(stream))
        await stream.send_all(b"HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n")

    async with listening(look) as url:
        await failure_of(url + suffix, **settings)
        host = url.split("/")[2]
    first, *rest = requests[0].decode("latin-1").strip().split("\r\n")
    return first, {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}, host


async def test_the_subprotocol_is_offered_and_nothing_is_asked_that_was_not_meant():
    first, headers, host = await asked()
    assert first == "GET /mcp HTTP/1.1"
    assert headers.pop("sec-websocket-key")
    assert headers.pop("user-agent").startswith("mcp-nursery/")
    assert headers == {
        "host": host,
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-protocol": "mcp",
    }


async def test_headers_of_the_host_go_along():
    _, headers, _ = await asked(headers={"Authorization": "Bearer x", "user-agent": "mine", "X-Name": "café"})
    assert (headers["authorization"], headers["user-agent"], headers["x-name"]) == ("Bearer x", "mine", "café")


@pytest.mark.parametrize(
    ("suffix", "target"),
    [("", "/mcp"), ("/a%20b?c=d%26&e", "/mcp/a%20b?c=d%26&e"), ("/ü x?ü#gone", "/mcp/%C3%BC%20x?%C3%BC")],
)
async def test_path_and_query_are_the_urls(suffix, target):
    first, _, _ = await asked(suffix)
    assert first == f"GET {target} HTTP/1.1"


async def test_a_name_of_the_host_is_looked_up():
    async with serving(greet) as url, connector(url.replace("127.0.0.1", "LocalHost")).open():
        pass


def test_nothing_secret_is_shown():
    shown = repr(connector("ws://me:hunter2@host/?key=hunter2", headers={"Authorization": "hunter2"}))
    assert "hunter2" not in shown
    assert "ws://host/" in shown


# what is answered


async def greet(request):
    assert request.proposed_subprotocols == ("mcp",)
    await request.accept(subprotocol="mcp")
    await trio.sleep_forever()


async def greet_plainly(request):
    await request.accept()
    await trio.sleep_forever()


@pytest.mark.parametrize("handler", [greet, greet_plainly])
async def test_a_server_may_take_the_subprotocol_or_leave_it(handler):
    async with serving(handler) as url, connector(url).open():
        pass


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        *itertools.product([401, 403, 404, 500, 503], ["length", "close", "endless"]),
        (401, "never"),  # five seconds each
        (503, "never"),
    ],
)
async def test_a_status_is_told_however_its_body_ends(status, ending):
    """P5, L12: at once, and that authorisation is missing is known."""

    async def refuse(stream):
        await request_of(stream)
        length = b"Content-Length: 4\r\n" if ending == "length" else b""
        await stream.send_all(b"HTTP/1.1 %d No\r\n%s\r\nbody" % (status, length))
        if ending == "close":
            await stream.aclose()
        while ending == "endless":
            await stream.send_all(b"body" * 1000)

    async with listening(refuse) as url:
        with trio.fail_after(10):
            failure = await failure_of(url)
    assert failure.needs_auth == (status == 401)
    assert failure.retriable == (status >= 404)
    assert str(failure).startswith(f"url '{url}' answered {status} ")


async def test_a_redirect_is_not_followed():
    async def redirect(stream):
        await request_of(stream)
        await stream.send_all(
            b"HTTP/1.1 308 There\r\nLocation: wss://me:hunter2@there/x?hunter2\r\nContent-Length: 0\r\n\r\n"
        )

    async with listening(redirect) as url:
        failure = await failure_of(url)
    assert not failure.retriable
    assert str(failure) == f"url '{url}' redirects (308) to 'wss://there/x', which is not followed: configure that url"


SWITCH = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


@pytest.mark.parametrize(
    ("answer", "problem", "retriable"),
    [
        (b"SSH-2.0-OpenSSH_9.9\r\n", "does not speak HTTP", False),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * HEAD_LIMIT, "sent more than 64 KiB without an end of its headers", False),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "broke the protocol: Missing header", False),
        (
            SWITCH + b"Sec-WebSocket-Accept: forged\r\n\r\n",
            "broke the protocol: Bad accept token",
            False,
        ),
        (
            SWITCH.replace(b"Connection: Upgrade", b"Connection: \xff") + b"\r\n",
            "broke the protocol: ",
            False,
        ),
        (b"HTTP/1.1 101 Switching\r\nno header\r\n\r\n", "broke the protocol: ", False),
    ],
)
async def test_an_answer_that_is_no_handshake(answer, problem, retriable):
    async def say(stream):
        await request_of(stream)
        await stream.send_all(answer)

    async with listening(say) as url:
        with trio.fail_after(10):
            failure = await failure_of(url)
    assert str(failure).startswith(f"url '{url}' {problem}")
    assert (failure.retriable, failure.needs_auth) == (retriable, False)


async def test_a_subprotocol_nobody_offered_is_refused():
    async def chat(stream):
        answer = await acceptance(stream)
        await stream.send_all(answer.replace(b"mcp", b"chat"))

    async with listening(chat) as url:
        failure = await failure_of(url)
    assert str(failure) == f"url '{url}' chose the subprotocol 'chat', and only 'mcp' was offered"
    assert not failure.retriable


async def test_an_extension_nobody_offered_is_refused():
    async def deflate(stream):
        await accept(stream, extra_headers=[(b"Sec-WebSocket-Extensions", b"permessage-deflate")])

    async with listening(deflate) as url:
        failure = await failure_of(url)
    assert "unrecognized extension permessage-deflate" in str(failure)


@pytest.mark.parametrize(
    ("leave", "problem"),
    [
        (trio.SocketStream.aclose, "closed the connection before it answered"),
        (reset, "opened no WebSocket: the connection broke: Connection reset by peer"),
    ],
)
async def test_a_server_that_leaves_before_it_answers(leave, problem):
    async def go(stream):
        await request_of(stream)
        await leave(stream)

    async with listening(go) as url:
        with trio.fail_after(10):
            failure = await failure_of(url)
    assert (str(failure), failure.retriable) == (f"url '{url}' {problem}", True)


async def test_a_server_that_never_answers_is_left_when_told():
    """L14: whoever bounds the start bounds all of it."""
    async with listening(request_of) as url:
        with trio.move_on_after(0.2) as scope:
            async with connector(url, close_grace=30).open():
                pytest.fail("opened")
    assert scope.cancelled_caught


# what cannot be asked


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://host/x", "url 'http://host/x' must be ws://host… or wss://host…"),
        ("host/x", "url '<malformed>' must be ws://host… or wss://host…"),
        ("ws:///x", "url '<malformed>' must be ws://host… or wss://host…"),
        ("ws://host:hunter2/", "url '<malformed>' is malformed"),
        ("ws://host:99999/", "url '<malformed>' is malformed"),
        ("ws://a..b/", "url 'ws://a..b/' is malformed"),
        (
            "ws://me:hunter2@host/",
            "url 'ws://host/' has a user or password in it, which is not sent: use the header Authorization",
        ),
    ],
)
async def test_a_url_that_cannot_work_is_not_retried(url, problem):
    """L12"""
    failure = await failure_of(url)
    assert (str(failure), failure.retriable) == (problem, False)


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({"X-Key": "hunter2\r\nX-More: y"}, "the header X-Key has a character that headers cannot hold"),
        ({"X-Key": "hunter2 ✓"}, "the header X-Key has a character that headers cannot hold"),
        ({"X-Key": "hunter2 "}, "the header X-Key begins or ends with a blank"),
        ({"X-Key": 7}, "the header X-Key must be text, not int"),
        ({"X Key": "hunter2"}, "'X Key' is not a valid header name"),
        ({7: "hunter2"}, "7 is not a valid header name"),
        ({"HOST": "hunter2"}, "the header HOST is set by the WebSocket handshake"),
        ({"Sec-WebSocket-Protocol": "hunter2"}, "the header Sec-WebSocket-Protocol is set by the WebSocket handshake"),
    ],
)
async def test_a_header_that_cannot_be_sent_is_named_and_its_value_is_not(headers, problem):
    failure = await failure_of("ws://host/", headers=headers)
    assert (str(failure), failure.retriable) == (f"url 'ws://host/' cannot be requested: {problem}", False)


async def test_nobody_listens():
    url = f"ws://127.0.0.1:{free_port()}/"
    failure = await failure_of(url)
    assert (str(failure), failure.retriable) == (f"url '{url}' cannot be reached: Connection refused", True)


async def test_a_host_that_is_not_known_is_retried():
    failure = await failure_of("ws://nowhere.invalid/")
    assert str(failure).startswith("url 'ws://nowhere.invalid/' cannot be reached: the host is not known: ")
    assert failure.retriable


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate that signs itself, for 127.0.0.1, with its key: the path of one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "throw-away")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("ws") / "certificate.pem"
    pem = serialization.Encoding.PEM
    bare = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(bare + signed.public_bytes(pem))
    return path


@pytest.fixture
def server_context(certificate):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


async def echo_once(request):
    connection = await request.accept(subprotocol="mcp")
    await connection.send_message(await connection.get_message())
    await connection.aclose(1001, "enough")


async def test_frames_cross_in_tls(certificate, server_context):
    trusted = ssl.create_default_context(cafile=certificate)
    async with serving(echo_once, server_context) as url:
        assert url.startswith("wss://")
        async with connector(url, ssl_context=trusted).open() as frames:
            assert frames.write_nowait([b"x" * (1 << 20)]) == 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(frames.writable)
                assert await frames.read() == [b"x" * (1 << 20)]
            assert await frames.read() == []
            assert (await frames.loss()).message == "closed with code 1001 (going away): enough"


@pytest.mark.usefixtures("authorities_not_loaded")
async def test_the_systems_authorities_are_asked_by_default(certificate, server_context, monkeypatch):
    """Loaded once for the process: for one connection that takes tens of milliseconds of a thread, and a megabyte."""
    loads = []

    def load(*settings, **more):
        loads.append(threading.current_thread())
        return made(*settings, **more)

    made = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", load)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with serving(greet, server_context) as url:
        for _ in range(2):
            async with connector(url).open():
                pass
    (thread,) = loads
    assert thread is not threading.main_thread()


async def test_a_certificate_nobody_vouches_for_is_not_retried(server_context):
    async with serving(greet, server_context) as url:
        failure = await failure_of(url)
    problem = (
        "has a certificate that cannot be trusted: self-signed certificate; name its authority in ca_file (caFile in a "
        "file), or for all servers in SSL_CERT_FILE"
    )
    assert (str(failure), failure.retriable) == (f"url '{url}' {problem}", False)


async def test_a_certificate_of_somebody_else_is_not_retried(certificate, server_context):
    trusted = ssl.create_default_context(cafile=certificate)
    async with serving(greet, server_context) as url:
        failure = await failure_of(url.replace("127.0.0.1", "localhost"), ssl_context=trusted)
    assert "has a certificate that cannot be trusted: Hostname mismatch" in str(failure)
    assert "SSL_CERT_FILE" not in str(failure)
    assert not failure.retriable


async def test_a_server_without_tls():
    async def plain(stream):
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad\r\n\r\n")

    async with listening(plain) as plain_url:
        url = plain_url.replace("ws:", "wss:")
        failure = await failure_of(url)
    assert (str(failure), failure.retriable) == (f"url '{url}' failed the TLS handshake: wrong version number", True)


@pytest.mark.parametrize("leave", [trio.SocketStream.aclose, reset])
async def test_a_server_that_leaves_during_tls(leave):
    async def go(stream):
        await stream.receive_some()
        await leave(stream)

    async with listening(go) as plain_url:
        url = plain_url.replace("ws:", "wss:")
        failure = await failure_of(url)
    assert str(failure).startswith(f"url '{url}' failed the TLS handshake: ")
    assert failure.retriable


async def test_a_tls_handshake_that_hangs_is_left_when_told():
    async with listening(until_end) as url:
        with trio.move_on_after(0.2) as scope:
            async with connector(url.replace("ws:", "wss:")).open():
                pytest.fail("opened")
    assert scope.cancelled_caught


@pytest.mark.slow
async def test_each_connection_is_its_own():
    async def say(stream):
        await accept(stream)
        await stream.send_all(frame(TEXT, b"hello"))

    async with listening(say) as url:
        same: WebSocketConnector = connector(url)
        async with same.open() as one, same.open() as two:
            assert await one.read() == await two.read() == [b"hello"]
