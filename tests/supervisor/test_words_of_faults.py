"""The words of faults: whatever goes wrong, a status, an error, an event and the log speak to a person. None has the
name of a library's class, a bare error number, or `crashed` in it."""

import sys
from contextlib import asynccontextmanager, suppress
from functools import partial

import httpx2
import pytest
import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor import (
    ConfigError,
    DockerTransport,
    HttpTransport,
    InProcessTransport,
    NurseryError,
    RestartPolicy,
    ServerSpec,
    SseTransport,
    StdioTransport,
    WebSocketTransport,
    open_supervisor,
)
from mcp_nursery.supervisor.events import StateChanged

from ..lab.plain_words import UNWANTED, unwanted
from ..lab.processes import status_of
from ..lab.proxies import lab_proxy, only

REMOTE = {"http": HttpTransport, "sse": SseTransport, "ws": WebSocketTransport}
remote = pytest.mark.parametrize("make", REMOTE.values(), ids=REMOTE)


async def words_of(transport, caplog, **settings):
    """The error of a server that cannot be started. The words of its status, of its events, of a call and of the log
    are checked: one line each."""
    caplog.set_level("INFO", "mcp_nursery")
    settings = {"policy": RestartPolicy(delays=[]), "connect_timeout": 3, **settings}
    told = []
    with trio.fail_after(30):
        async with open_supervisor([], gate=0) as supervisor, supervisor.events() as events:
            await supervisor.add_server(ServerSpec("lab", transport, **settings))
            async for event in events:
                told.append(repr(event))
                if isinstance(event, StateChanged) and event.new is ServerState.FAILED:
                    break
            with pytest.raises(NurseryError) as failed:
                await supervisor.call_tool("any", server="lab")
            status = status_of(supervisor)
    told += [str(failed.value), str(status.error)]
    told += [record.getMessage() for record in caplog.records if record.name.startswith("mcp_nursery")]
    assert unwanted(told) == []
    assert not [record for record in caplog.records if record.exc_info]
    assert status.error
    return status.error


# -- what a server does -----------------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
RAW = {
    "nothing": b"",
    "no HTTP": b"\0\1\2\xff" * 100,
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-ty",
    "an odd status": b"HTTP/1.1 abc OK\r\n\r\n",
    "status 999": b"HTTP/1.1 999 Said\r\ncontent-length: 0\r\n\r\n",
    "a bad header": b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    "an endless header": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 3000 + b"\r\n",
    "two lengths": HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    "half a body": HEAD + b"content-length: 100\r\n\r\n{}",
    "a bad chunk": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}",
    "half a chunk": HEAD + b"transfer-encoding: chunked\r\n\r\n9\r\n{}",
    "a bad encoding": HEAD + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
    "two encodings": HEAD + b"content-encoding: gzip, gzip\r\ncontent-length: 2\r\n\r\n{}",
    "no JSON": HEAD + b"content-length: 4\r\n\r\nnope",
    "JSON of another kind": HEAD + b"content-length: 2\r\n\r\n[]",
    "no body": HEAD + b"content-length: 0\r\n\r\n",
    "a page": b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<p/>",
    "half an event": EVENTS + b"\r\nevent: endpoint\ndata: /a",
    "a bad event": EVENTS + b"\r\nevent: endpoint\ndata: http://[\n\n",
    "an error page": b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops",
    "forbidden": b"HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n",
    "moved": b"HTTP/1.1 302 There\r\nlocation: http://[\r\ncontent-length: 0\r\n\r\n",
    "moved in a circle": b"HTTP/1.1 307 There\r\nlocation: /mcp\r\ncontent-length: 0\r\n\r\n",
    "moved nowhere": b"HTTP/1.1 307 There\r\nlocation: nonsense://\r\ncontent-length: 0\r\n\r\n",
    "switched": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: other\r\nconnection: upgrade\r\n\r\n",
    "no way to switch": b"HTTP/1.1 426 Upgrade\r\ncontent-length: 0\r\n\r\n",
}


@asynccontextmanager
async def saying(raw):
    """A server that answers each connection with these bytes, once it has heard something, and closes it."""

    async def say(stream):
        with suppress(trio.BrokenResourceError):
            await stream.receive_some()
            await stream.send_all(raw)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, say, 0, host="127.0.0.1"))
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        nursery.cancel_scope.cancel()


@remote
@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
async def test_a_server_that_answers_nonsense(caplog, make, raw):
    async with saying(raw) as place:
        await words_of(make(f"{make.schemes[0]}://{place}"), caplog)


@remote
@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 400 Bad\r\n\r\n"], ids=["nothing", "no TLS"])
async def test_a_server_that_does_not_speak_tls(caplog, make, raw):
    async with saying(raw) as place:
        await words_of(make(f"{make.schemes[1]}://{place}"), caplog)


@remote
@pytest.mark.parametrize("place", ["127.0.0.1:1", "nowhere.invalid", "[::1]:1", "xn--a.test"])
async def test_a_server_that_is_not_there(caplog, make, place):
    await words_of(make(f"{make.schemes[0]}://{place}/mcp"), caplog)


# -- what is configured -----------------------------------------------------------------------------------------------


@remote
@pytest.mark.parametrize(
    "headers",
    [
        {"X-Key": "Bearer "},
        {"X-Key": " x"},
        {"X-Key": "\tx"},
        {"X-Key": "a\nb"},
        {"X-Key": "a\r\nX-Evil: b"},
        {"X-Key": "a\0b"},
        {"X-Key": "a\x7fb"},
        {"X-Key": "caf\u00e9 \u2713"},
        {"X Key": "x"},
        {"": "x"},
        {"X-Key:": "x"},
        {"X-Key": None},
        {"X-Key": b"x"},
        lambda: {"X-Key": "Bearer "},
    ],
)
async def test_a_header_that_cannot_be_sent(caplog, make, headers):
    """K5, L12: named, and not tried again."""
    error = await words_of(make(f"{make.schemes[0]}://127.0.0.1:1/mcp", headers), caplog, policy=RestartPolicy())
    assert "header" in error
    if callable(headers) or "X-Key" in headers:
        assert "X-Key" in error


class BadAuth(httpx2.Auth):
    """Sets a header that h11 does not send."""

    def auth_flow(self, request):
        request.headers["X-Token"] = "5ecret "
        yield request


@pytest.mark.parametrize("make", [HttpTransport, SseTransport])
async def test_a_header_of_authorisation_that_cannot_be_sent(caplog, make):
    async with saying(b"") as place:
        error = await words_of(make(f"http://{place}", auth=BadAuth()), caplog, policy=RestartPolicy())
    assert error == "the header X-Token begins or ends with a blank"


@remote
@pytest.mark.parametrize(
    "value", ["socks4://x", "http://", "http://[", "nonsense://x", "socks5://127.0.0.1:1", "127.0.0.1:1"]
)
async def test_a_proxy_that_is_none(caplog, make, value, monkeypatch):
    only(monkeypatch, ALL_PROXY=value)
    assert "ALL_PROXY" in await words_of(make(f"{make.schemes[0]}://far.test/mcp"), caplog)


@remote
@pytest.mark.parametrize("scheme", ["http", "socks5"])
@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
async def test_a_proxy_that_answers_nonsense(caplog, make, scheme, raw, monkeypatch):
    async with lab_proxy(scheme, answer=raw) as proxy:
        only(monkeypatch, ALL_PROXY=proxy.url)
        error = await words_of(make(f"{make.schemes[1]}://far.test/mcp"), caplog)
    # A head that is refused for its size is nobody's word.
    assert f"the proxy {proxy.url} (ALL_PROXY)" in error or raw is RAW["many headers"]


@remote
@pytest.mark.parametrize("name", ["absent", "empty", "text", ".", "a\nb"])
async def test_authorities_that_are_none(caplog, make, name, monkeypatch, tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("text")
    only(monkeypatch)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / name))
    error = await words_of(make(f"{make.schemes[1]}://127.0.0.1:1/mcp"), caplog)
    assert "SSL_CERT_FILE" in error or make is WebSocketTransport  # which connects first


def program(text):
    return StdioTransport(sys.executable, ["-c", text])


LOCAL = {
    "ends": program(""),
    "fails": program("raise SystemExit(3)"),
    "says nonsense": program("print('nonsense')"),
    "is not there": StdioTransport("/nonesuch/server"),
    "is on no PATH": StdioTransport("nonesuch"),
    "is a folder": StdioTransport("/"),
    "is no program": StdioTransport("/etc/passwd"),
    "has a NUL": StdioTransport(sys.executable, ["a\0b"]),
    "has a name with a NUL": StdioTransport("a\0b"),
    "has a variable with a NUL": StdioTransport(sys.executable, env={"A": "a\0b"}),
    "has a variable without a name": StdioTransport(sys.executable, env={"": "x"}),
    "has a variable with a =": StdioTransport(sys.executable, env={"A=B": "x"}),
    "has a folder with a NUL": StdioTransport(sys.executable, cwd="a\0b"),
    "has no folder": StdioTransport(sys.executable, cwd="/nonesuch"),
    "has a file for a folder": StdioTransport(sys.executable, cwd="/etc/passwd"),
    "has half a character": StdioTransport(sys.executable, ["\ud800"]),
    "has too many arguments": StdioTransport(sys.executable, ["x" * 3_000_000]),
    "has a long name": StdioTransport("/" + "x" * 300),
    "is in no container": DockerTransport("mcp/x", command="/nonesuch/docker"),
    "is in no container of this name": DockerTransport("mcp/x", command="false"),
    "is no server object": InProcessTransport(object()),
}


@pytest.mark.slow
@pytest.mark.parametrize("transport", LOCAL.values(), ids=LOCAL)
async def test_a_program_that_is_no_server(caplog, transport):
    await words_of(transport, caplog)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file or directory", "/a/key"),
        httpx2.ConnectError("no"),
        trio.ClosedResourceError(),
    ],
)
async def test_a_transport_that_raises(caplog, error):
    """Q4: what nobody foresaw is logged with its origin."""

    class Raising:
        kind = "in-process"

        def connector(self, *, close_grace):
            raise error

    caplog.set_level("INFO", "mcp_nursery")
    async with open_supervisor([ServerSpec("lab", Raising(), policy=RestartPolicy(delays=[]))]) as supervisor:
        status = status_of(supervisor)
    assert UNWANTED.search(status.error) is None
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.getMessage() == "lab: an incarnation ended with an unforeseen error; please report it"
    if isinstance(error, OSError):
        assert status.error == "an unforeseen error: No such file or directory: '/a/key'"


@pytest.mark.parametrize(
    "make",
    [
        lambda: HttpTransport("http://x:99999/"),
        lambda: HttpTransport("http://[::1/"),
        lambda: HttpTransport("http://a b/"),
        lambda: HttpTransport("x"),
        lambda: SseTransport("http://\n/"),
        lambda: WebSocketTransport("ws://x:port/"),
        lambda: WebSocketTransport("http://x/"),
        lambda: DockerTransport("--privileged"),
        lambda: ServerSpec("", HttpTransport("http://x")),
        lambda: ServerSpec("lab", object()),
        lambda: ServerSpec("lab", HttpTransport("http://x"), connect_timeout="soon"),
        lambda: HttpTransport(f"http://{'a' * 64}.test"),
        lambda: WebSocketTransport("ws://a..b/"),
    ],
)
def test_a_setting_that_is_none(make):
    with pytest.raises(ConfigError) as failed:
        make()
    assert unwanted([str(failed.value)]) == []
