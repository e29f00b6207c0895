"""The certificate authorities of one server: over TLS on loopback, beside those of everybody."""

import json
import ssl
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trustme

from mcp_nursery.supervisor import (
    ConfigError,
    HttpTransport,
    MemoryStore,
    OAuth,
    RestartPolicy,
    ServerDown,
    ServerSpec,
    SseTransport,
    WebSocketTransport,
    discover_config,
    load_config,
    open_supervisor,
)
from mcp_nursery.supervisor.login.login import log_in
from mcp_nursery.supervisor.login.vault import MemoryVault
from mcp_nursery.supervisor.spec import spec_digest

from ..lab import websocket_peer
from ..lab.hostile_issuer import Issuer, agree, answer
from ..lab.http_peer import HttpPeer
from ..lab.proxies import only

ONCE = RestartPolicy(delays=())
NAME = "localhost"


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    only(monkeypatch)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def context(authority):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(NAME, "127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def file(authority, tmp_path):
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path / "ca.pem"


@asynccontextmanager
async def tls(serve, context):
    """The port at which this serves connections over TLS."""
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_ssl_over_tcp, serve, 0, context, host="127.0.0.1"))
        yield listener.transport_listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def at(kind, context):
    """The URL of a server of this kind."""
    if kind == "ws":

        async def hang_up(request):
            connection = await request.accept(subprotocol="mcp")
            await connection.aclose(1001, "hung up")

        async with websocket_peer.serving(hang_up, context) as url:
            yield url
        return
    peer = HttpPeer("2025-11-25" if kind == "sse" else "2026-07-28", sse=kind == "sse")
    async with tls(peer._serve, context) as port:
        yield f"https://{NAME}:{port}/{'sse' if kind == 'sse' else 'mcp'}"


async def reached(transport):
    """None if this reaches a server, else the error of that."""
    async with open_supervisor([ServerSpec("far", transport, policy=ONCE)], state=MemoryStore(), gate=30) as supervisor:
        status = supervisor.status()[0]
        return None if status.state == "connected" else status.error


@pytest.mark.parametrize(("kind", "make"), [("http", HttpTransport), ("sse", SseTransport), ("ws", WebSocketTransport)])
async def test_a_server_that_only_its_own_authority_vouches_for(context, file, kind, make):
    """K2: over each transport, whatever else is trusted; without it there is no way in."""
    async with at(kind, context) as url:
        error = await reached(make(url, ca_file=file))
        assert error is None if kind != "ws" else "hung up" in error
        assert "certificate" in await reached(make(url))


async def test_a_renewed_file_counts_at_the_next_connect(context, file):
    """K2: nothing of the old one is kept."""
    good = file.read_bytes()
    trustme.CA().cert_pem.write_to_path(file)
    async with at("http", context) as url:
        transport = HttpTransport(url, ca_file=file)
        async with open_supervisor([ServerSpec("far", transport, policy=ONCE)], state=MemoryStore(), gate=30) as one:
            assert "is not trusted" in one.status()[0].error
            file.write_bytes(good)
            await one.reconnect("far")


class TlsIssuer(Issuer):
    @property
    def origin(self):
        return f"https://{NAME}:{self.port}"

    async def serve(self, stream):
        stream.send_eof = trio.lowlevel.checkpoint
        await self._serve(stream)


@pytest.mark.parametrize("grant", ["authorization_code", "client_credentials"])
async def test_a_login_trusts_it_as_well(context, file, grant):
    """L: the server's own metadata, its issuer's, registration and tokens."""
    issuer = TlsIssuer()
    words = {} if grant == "authorization_code" else {"client_id": "me", "client_secret": "client-5ecret"}
    async with tls(issuer.serve, context) as issuer.port:
        issuer.behave()
        transport = HttpTransport(issuer.url, auth=OAuth(grant=grant, **words), ca_file=file)
        tokens = await log_in(ServerSpec("far", transport), MemoryVault(), agree)
        assert tokens.access == "access-5ecret"
        assert issuer.count("/token") == 1


async def test_the_page_of_a_known_client_is_looked_at_by_it(context, file):
    """L: before a person is sent there."""
    issuer, vault = TlsIssuer(), MemoryVault()
    async with tls(issuer.serve, context) as issuer.port:
        issuer.behave()
        issuer.says["/authorize"] = answer(200, {})
        spec = ServerSpec("far", HttpTransport(issuer.url, auth=OAuth(), ca_file=file))
        await log_in(spec, vault, agree)
        assert issuer.count("/authorize") == 0
        await log_in(spec, vault, agree)
        assert issuer.count("/authorize") == 1


BROKEN = {
    "absent": (None, "it does not exist"),
    "empty": ("", "it is no file of certificates in PEM format"),
    "text": ("no certificate", "it is no file of certificates in PEM format"),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_file_that_cannot_be_used(tmp_path, kind):
    """K5: one line: where the entry is, whose it is, which field, and why; nothing is tried again."""
    text, problem = BROKEN[kind]
    path, config = tmp_path / "ca.pem", tmp_path / "servers.json"
    if text is not None:
        path.write_text(text)
    config.write_text(json.dumps({"mcpServers": {"far": {"url": "https://localhost:1", "caFile": str(path)}}}))
    async with open_supervisor(load_config(config), state=MemoryStore(), gate=30) as supervisor:
        status = supervisor.status()[0]
        assert status.state == "failed"
        assert status.error == f"{config}: server 'far': field 'caFile' is unusable: {path}: {problem}"
        with pytest.raises(ServerDown, match="field 'caFile' is unusable"):
            await supervisor.call_tool("x", server="far")
    said = f"ca_file={path} cannot be used: {problem}; correct it, or leave it out for the system's authorities"
    assert said in await reached(HttpTransport("https://localhost:1", ca_file=path))
    async with websocket_peer.listening(trio.aclose_forcefully) as url:
        assert said in await reached(WebSocketTransport(url.replace("ws:", "wss:"), ca_file=path))


async def test_a_path_with_a_variable(context, file, tmp_path, monkeypatch):
    """K2: as any text of an entry."""
    monkeypatch.setenv("CERTS", str(tmp_path))
    async with at("http", context) as url:
        config = tmp_path / "servers.json"
        config.write_text(json.dumps({"mcpServers": {"far": {"url": url, "caFile": "${CERTS}/ca.pem"}}}))
        async with open_supervisor(load_config(config), state=MemoryStore(), gate=30) as supervisor:
            assert supervisor.status()[0].state == "connected"


async def test_a_path_in_a_project_s_file_is_agreed_to_and_stands_in_the_project(context, file, tmp_path):
    """K7: it is read, and it changes whom one trusts."""
    async with at("http", context) as url:
        config = tmp_path / ".mcp.json"
        config.write_text(json.dumps({"mcpServers": {"far": {"url": url, "caFile": "ca.pem"}}}))
        given = discover_config(tmp_path, user=False)
        (spec,) = given.servers
        assert spec.trust_request.reasons == ("trusts the certificate authorities of a file",)
        async with open_supervisor(given, state=MemoryStore(), gate=30) as supervisor:
            assert supervisor.status()[0].state == "blocked"

        async def trust(request):
            return True

        async with open_supervisor(given, state=MemoryStore(), gate=30, trust=trust) as supervisor:
            assert supervisor.status()[0].state == "connected"


def test_what_is_known_of_servers_without_one_still_holds():
    """Q: state files of earlier versions name them by the digest of their transports."""
    assert spec_digest(ServerSpec("far", HttpTransport("https://far.test/mcp"))) == (
        "8fb61c065284961c8acecbe49f876114280efa9b4efa9f6c859f70d7edbbb586"
    )
    one, other = (HttpTransport("https://far.test/mcp", ca_file=path) for path in ("/a.pem", "/b.pem"))
    assert spec_digest(ServerSpec("far", one)) != spec_digest(ServerSpec("far", other))


@pytest.mark.parametrize("path", ["", " ", 1, b"x"])
def test_what_is_no_path(path):
    """K5."""
    with pytest.raises(ConfigError, match="must be the path of a file"):
        HttpTransport("https://far.test", ca_file=path)
