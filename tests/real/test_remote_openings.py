"""A remote server that cannot be reached, refuses us, or sends us elsewhere: one line each, and no secret anywhere."""

import logging
import shutil
import ssl
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from mcp_nursery.actors.callbacks import NO_HOST
from mcp_nursery.actors.session.base import HandshakeFailed
from mcp_nursery.supervisor import (
    HttpTransport,
    RestartPolicy,
    ServerDown,
    ServerSpec,
    SseTransport,
    StdioTransport,
    open_supervisor,
)
from mcp_nursery.supervisor.status import ServerState

from ..lab.processes import eventually, lab, status_of, supervised
from ..lab.remote import IN_SESSION, KINDS, free_port

pytestmark = pytest.mark.slow

ONCE = RestartPolicy(delays=[])
SECRETS = {"Authorization": "Bearer tok-5ecret", "X-Key": "key-5ecret"}
ANY = {"times": 1000}


async def failure_of(transport, *, policy=ONCE):
    """How a server stands that nobody could connect to."""
    with trio.fail_after(60):
        async with open_supervisor([ServerSpec("lab", transport, policy=policy)]) as supervisor:
            with pytest.raises(ServerDown):
                await supervisor.wait_connected("lab")
            status = status_of(supervisor)
    assert "\n" not in status.error
    assert "5ecret" not in status.error
    return status


@asynccontextmanager
async def tcp(handler, context=None):
    """A server of our own on loopback; gives its port."""

    async def handle(stream):
        async with stream:
            if context is not None:
                stream = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
            try:
                await handler(stream)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("make", [HttpTransport, SseTransport])
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:{closed}/mcp?key=5ecret", "cannot connect to 127.0.0.1:{closed}: Connection refused"),
        ("http://user:5ecret@nobody.invalid/mcp", "nobody.invalid cannot be resolved: "),
        ("https://127.0.0.1:{open}/mcp", "TLS with 127.0.0.1:{open} failed: "),
    ],
)
async def test_nobody_there(modern, make, url, told):
    """L12, K2: refused, no such name, no TLS: retried by the ladder, told in a line that shows no secret."""
    ports = {"closed": free_port(), "open": modern.port}
    status = await failure_of(make(url.format(**ports)), policy=RestartPolicy(delays=[0.01]))
    assert (status.state, status.incarnation) == (ServerState.FAILED, 2)
    assert told.format(**ports) in status.error


@pytest.mark.parametrize("make", [HttpTransport, SseTransport])
async def test_a_certificate_nobody_trusts(make, tmp_path):
    """L12: not worth retrying."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate")
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    request = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"]
    await trio.run_process([*request, "-keyout", key, "-out", certificate], capture_stderr=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def handshake(stream):
        await stream.do_handshake()

    async with tcp(handshake, context) as port:
        status = await failure_of(make(f"https://127.0.0.1:{port}/mcp"), policy=RestartPolicy(delays=[0.01]))
    assert (status.state, status.incarnation) == (ServerState.FAILED, 1)
    assert (
        f"the certificate of 127.0.0.1:{port} is not trusted: self-signed certificate; name its authority in"
        in status.error
    )


@pytest.mark.parametrize(("code", "attempts"), [(403, 1), (404, 2), (405, 1), (410, 1), (429, 2), (500, 2), (503, 2)])
async def test_a_status_in_the_opening(remote, code, attempts):
    """L12, SDK-NOTES 4: what may pass is tried again, what will not is not."""
    remote.faults({**ANY, "status": code}, {**ANY, "http": "GET", "method": "", "status": code})
    status = await failure_of(remote.transport(), policy=RestartPolicy(delays=[0.01]))
    assert (status.state, status.incarnation) == (ServerState.FAILED, attempts)
    assert f"HTTP {code} " in status.error


async def test_a_missing_authorisation(remote):
    """L12, P5, Q4: 401 is asked for once, and the siblings are none the wiser."""
    remote.faults({**ANY, "status": 401}, {**ANY, "http": "GET", "method": "", "status": 401})
    missing = ServerSpec("missing", StdioTransport("no-such-command-anywhere"))
    refusing = ServerSpec("refusing", remote.transport())
    with trio.fail_after(60):
        async with open_supervisor([missing, refusing, lab("good")]) as supervisor:
            await supervisor.wait_connected("good")
            with pytest.raises(ServerDown, match="HTTP 401 Unauthorized"):
                await supervisor.wait_connected("refusing")
            status = status_of(supervisor, "refusing")
            assert status.state in (ServerState.NEEDS_AUTH, ServerState.FAILED)
            assert (status.incarnation, status.retry_in) == (1, None)
            assert (await supervisor.call_tool("echo", {"text": "here"}, server="good")).full_text == "here"
    assert len(remote.requests()) == (2 if remote.kind in IN_SESSION else 1)  # those have answered the first


async def test_headers_go_to_the_server_and_nowhere_else(remote, caplog):
    """P6, L17: ours under the user's, the protocol's over them; a redirect elsewhere is refused, without a request."""
    caplog.set_level(logging.DEBUG)
    headers = {
        **SECRETS,
        "User-Agent": "mine",
        "Accept": "text/none",
        "Mcp-Protocol-Version": "1",
        "Content-Type": "no",
    }
    url = remote.url.replace("://", "://user:5ecret@") + "?key=q-5ecret"
    spec = ServerSpec("lab", remote.transport(url, headers=headers), policy=ONCE)
    async with supervised(spec) as supervisor:
        await supervisor.call_tool("look", server="lab")
        assert "5ecret" not in repr((supervisor.status(), spec, supervisor.tools))
    for request in remote.requests():
        sent = request["headers"]
        assert (sent["authorization"], sent["x-key"], sent["user-agent"]) == (*SECRETS.values(), "mine")
        assert sent["accept"] != "text/none"
        assert sent.get("content-type", "application/json") == "application/json"
        assert sent.get("mcp-protocol-version") != "1"
        assert ("q-5ecret" in request["query"]) == (request["path"] in ("/mcp", "/sse"))
    assert "5ecret" not in caplog.text
    assert len(caplog.records) > 10


async def test_the_user_of_a_url_is_basic_authorisation(remote):
    """P6: authorisation comes before static headers."""
    url = remote.url.replace("://", "://user:5ecret@")
    async with supervised(ServerSpec("lab", remote.transport(url))):
        pass
    sent = {request["headers"]["authorization"] for request in remote.requests()}
    assert sent == {"Basic dXNlcjo1ZWNyZXQ="}
    assert all(request["headers"]["user-agent"].startswith("mcp-nursery/") for request in remote.requests())


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_computed_headers_are_computed_at_each_connect(remote, asynchronous):
    """P6, L17: and kept nowhere."""
    computed = []

    def compute():
        computed.append(f"{len(computed)}-5ecret")
        return {"X-Key": computed[-1]}

    async def compute_later():
        await trio.lowlevel.checkpoint()
        return compute()

    spec = remote.spec(headers=compute_later if asynchronous else compute)
    async with supervised(spec) as supervisor:
        await supervisor.reconnect("lab")
    assert {request["headers"]["x-key"] for request in remote.requests()} == set(computed)
    assert len(computed) == 2
    assert "<computed>" in repr(spec)


def _fail():
    raise RuntimeError("5ecret")


@pytest.mark.parametrize(
    ("headers", "told", "attempts"),
    [
        ({"X-Key": 5}, "the header X-Key must be text, not int", 1),
        ({"X-Key": "5ecret\r\nX-More: 1"}, "the header X-Key has a character that headers cannot hold", 1),
        ({"X Key": "5ecret"}, "'X Key' is not a valid header name", 1),
        (lambda: None, "the headers must be a mapping, not NoneType", 1),
        (_fail, "the headers could not be computed: RuntimeError", 2),
    ],
)
@pytest.mark.parametrize("make", [HttpTransport, SseTransport])
async def test_headers_that_are_none(modern, make, headers, told, attempts):
    """K2, L17: one line that names the header and not its value; nothing is sent."""
    status = await failure_of(make(modern.url, headers=headers), policy=RestartPolicy(delays=[0.01]))
    assert (status.error, status.incarnation) == (told, attempts)
    assert not modern.requests()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_redirect_to_another_origin_is_refused(remotes, modern, kind):
    """P6: no header leaks; the message says where to."""
    remote = remotes(kind)
    remote.reset()
    elsewhere = []

    async def hear(stream):
        elsewhere.append(await stream.receive_some())

    async with tcp(hear) as port:
        target = {"status": 307, "location": f"http://127.0.0.1:{port}/mcp?key=5ecret"}
        remote.faults({**ANY, **target}, {**ANY, **target, "http": "GET", "method": ""})
        transport = remote.transport(headers=SECRETS)
        status = await failure_of(transport, policy=RestartPolicy(delays=[0.01]))
    assert (status.state, status.incarnation) == (ServerState.FAILED, 1)
    assert "HTTP 307 redirect to http://127.0.0.1" in status.error
    assert not elsewhere


async def test_a_redirect_within_the_origin_is_followed(remote):
    """P6: with headers and query."""
    query = "?key=q-5ecret"
    target = {"status": 307, "location": f"/{remote.url.rpartition('/')[2]}{query}", "times": 2}
    remote.faults({**target, "method": "tools/list"}, {**target, "http": "GET", "method": "", "times": 1})
    if remote.kind == "sse":
        remote.faults({**target, "http": "GET", "method": "", "times": 1})
    spec = ServerSpec("lab", remote.transport(remote.url + query, headers=SECRETS))
    async with supervised(spec) as supervisor:
        assert (await supervisor.call_tool("look", server="lab")).full_text == "seen"
    assert {request["headers"]["x-key"] for request in remote.requests()} == {"key-5ecret"}


async def test_a_mute_server_runs_into_the_connect_timeout():
    """L14, P7: it accepts and says nothing; the end of it is quick."""

    async def say_nothing(stream):
        await trio.sleep_forever()

    async with tcp(say_nothing) as port:
        for make in (HttpTransport, SseTransport):
            spec = ServerSpec("lab", make(f"http://127.0.0.1:{port}/mcp"), policy=ONCE, connect_timeout=0.5)
            began = trio.current_time()
            async with open_supervisor([spec], shutdown_timeout=20) as supervisor:
                with pytest.raises(ServerDown, match=r"not connected within 0\.5 s"):
                    await supervisor.wait_connected("lab")
            assert trio.current_time() - began < 10  # of the 20 that it may take


async def test_a_stream_that_ends_before_it_began(modern):
    """L6: an SSE server that closes at once, and one that is no such server."""
    modern.faults({"http": "GET", "method": "", "status": 200, "type": "text/event-stream", "body": ": hello\n\n"})
    status = await failure_of(SseTransport(modern.url))
    assert "closed the stream" in status.error
    modern.faults({"http": "GET", "method": "", "status": 200, "type": "text/html", "body": "<h1>hello</h1>"})
    status = await failure_of(SseTransport(modern.url))
    assert "HTTP 200 with text/html instead of a stream of events" in status.error


async def test_a_probe_reaches_the_server(remote):
    """L6: in every era; a server that is gone is a loss, and a gateway's error is no sign of life."""
    connector = remote.transport().connector(close_grace=1)
    async with connector.connect(NO_HOST) as connection:
        await connection.handshake(None)
        await connection.list_tools()
        heard = connection.heard_at
        await connection.probe()
        assert connection.heard_at > heard
        method = "server/discover" if remote.kind == "modern" else "ping"
        assert remote.journal.count(f"POST_{method}") >= 1
        remote.faults({"method": method, "status": 503})
        heard = connection.heard_at
        with pytest.raises(HandshakeFailed, match="the probe failed: HTTP 503"):
            await connection.probe()
        if remote.kind != "sse":  # whose stream may speak meanwhile
            assert connection.heard_at == heard
        remote.kill()
        with pytest.raises(HandshakeFailed):
            await connection.probe()
        with trio.fail_after(30):
            await connection.lost()


async def test_restarts_are_by_the_ladder(remote):
    """L3, Q5: an outage of some attempts, then back."""
    spec = ServerSpec("lab", remote.transport(), policy=RestartPolicy(delays=[0.2] * 50))
    async with supervised(spec) as supervisor:
        remote.kill()
        await eventually(lambda: status_of(supervisor).incarnation > 3)
        remote.start()
        await supervisor.wait_connected("lab")
        assert (await supervisor.call_tool("look", server="lab")).full_text == "seen"
