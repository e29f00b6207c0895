"""Servers that speak both eras and take their time."""

import json
import shlex
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trio

from mcp_nursery.actors.http.limits import READ_LIMIT
from mcp_nursery.supervisor import HttpTransport, RestartPolicy, ServerSpec, StdioTransport, open_supervisor

from ..lab import PROGRAMS
from ..lab.processes import status_of, supervised
from ..lab.programs.both_eras import Server

pytestmark = pytest.mark.slow

SERVER = PROGRAMS / "both_eras.py"
MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"


class Started:
    """Such a server, started by a shell that sleeps first."""

    def __init__(self, folder, manner, delay, *, behind=""):
        self.name = f"{manner}-{delay}{'-behind' if behind else ''}"
        self.journal = folder / self.name
        command = shlex.join([sys.executable, "-I", "-S", str(SERVER), manner, str(self.journal)])
        self.line = f"{behind} (sleep {delay}; exec {command})"

    @property
    def spec(self):
        never_again = RestartPolicy(delays=[])
        return ServerSpec(self.name, StdioTransport("sh", ["-c", self.line]), policy=never_again)

    @property
    def asked(self):
        return [word for word in self.journal.read_text().split() if word in ("server/discover", "initialize")]


async def protocols_of(servers):
    """What each speaks, once all are connected and have answered a call."""
    spoken = {}
    with trio.fail_after(60):
        async with open_supervisor([server.spec for server in servers]) as supervisor:
            for server in servers:
                await supervisor.wait_connected(server.name)
                result = await supervisor.call_tool("echo", {"text": server.name}, server=server.name)
                assert result.full_text == server.name
                spoken[server.name] = status_of(supervisor, server.name).protocol_version
    return spoken


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a pipe does not tell what is left in it")
async def test_who_speaks_both_eras_and_starts_slowly_connects_at_the_first_attempt(tmp_path):
    """Q35: it is not asked for the older era as long as it has not read the question for the newer one."""
    servers = [Started(tmp_path, manner, delay) for manner in ("fickle", "firm") for delay in (0, 2, 5)]
    spoken = await protocols_of(servers)
    assert spoken == {server.name: MODERN for server in servers}
    assert all(server.asked == ["server/discover"] for server in servers)


async def test_who_was_asked_for_both_eras_is_spoken_with_as_it_sees_itself(tmp_path):
    """Q35: a client of docker, or here `cat`, reads both questions before the server does."""
    servers = [Started(tmp_path, manner, 2, behind="cat |") for manner in ("fickle", "firm")]
    spoken = await protocols_of(servers)
    assert spoken == {servers[0].name: HANDSHAKE, servers[1].name: MODERN}
    assert all(server.asked == ["server/discover", "initialize"] for server in servers)


@contextmanager
def over_http(probe_takes, initialize_takes):
    """Such a server over HTTP: who brings the session of a handshake is of that era, and what is not of it is a 404."""
    session = "a-session"
    asked = []
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_POST(self):
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            method = message["method"]
            in_session = self.headers["Mcp-Session-Id"] == session
            asked.append(method)
            over.wait({"server/discover": probe_takes, "initialize": initialize_takes}.get(method, 0))
            modern = "io.modelcontextprotocol/protocolVersion" in message.get("params", {}).get("_meta", {})
            if modern and in_session:
                self.reply(404)
            elif "id" not in message:
                self.reply(202)
            else:
                server = Server("fickle", MODERN if modern else HANDSHAKE)
                answer = server.reply(method, message.get("params", {}))
                headers = {"Mcp-Session-Id": session} if method == "initialize" else {}
                self.reply(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode(), headers)

        def do_GET(self):
            self.reply(405)

        def do_DELETE(self):
            self.reply(200)

        def reply(self, status, body=b"", headers=None):
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):
            """Whoever has gone away needs no answer."""

    with Quiet(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp", asked
        finally:
            over.set()
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("probe_takes", "initialize_takes"), [(READ_LIMIT + 1.8, 0.2), (READ_LIMIT + 1.3, 0.8)], ids=["first", "last"]
)
async def test_over_http_too_the_answer_to_initialize_decides_and_its_session_is_no_surprise(
    probe_takes, initialize_takes
):
    with over_http(probe_takes, initialize_takes) as (url, asked):
        spec = ServerSpec("far", HttpTransport(url), policy=RestartPolicy(delays=[]))
        async with supervised(spec) as supervisor:
            assert status_of(supervisor, "far").protocol_version == HANDSHAKE
            assert (await supervisor.call_tool("echo", {"text": "hi"}, server="far")).full_text == "hi"
            assert status_of(supervisor, "far").incarnation == 1
        assert (asked.count("server/discover"), asked.count("initialize")) == (1, 1)
