"""What a server was given, or says in a broken answer, reaches neither a status nor the log of the command line."""

import json
import logging
import os
import queue
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mcp_nursery.supervisor import MemoryStore, ServerDown, ServerSpec, StdioTransport, load_config, open_supervisor

from ..lab.processes import LAB, lab, status_of, supervised

pytestmark = pytest.mark.slow

SECRET = "hunter2-hunter2"
COMMAND = [sys.executable, "-c", "from mcp_nursery.supervisor.cli import main; main()"]


async def test_what_a_server_says_of_itself(caplog):
    """T9, L16: instructions and server info are kept, without what the server was given."""
    caplog.set_level(logging.DEBUG)
    spec = lab(env={"TOKEN": SECRET}, flags={"tells": "TOKEN"})
    async with supervised(spec) as supervisor, supervisor.events() as events:
        status = status_of(supervisor)
        await supervisor.stop_server("lab")
        seen = repr([await events.receive(), await events.receive()])
    assert status.instructions == "Use [REDACTED:config] for everything."
    assert status.server_info == {
        "name": "lab",
        "version": "1",
        "title": "lab of [REDACTED:config]",
        "icons": [{"src": "https://x/[REDACTED:config]", "sizes": ["any"]}],
    }
    assert SECRET not in f"{status}{seen}{supervisor.status()}{caplog.text}"


async def test_what_a_server_says_of_a_variable(tmp_path, monkeypatch):
    """T9, L17: what a variable stood for is known once it is resolved."""
    monkeypatch.setenv("PLANTED", SECRET)
    file = tmp_path / "servers.json"
    entry = {"command": sys.executable, "args": ["-I", "-S", str(LAB), "tells=TOKEN"], "env": {"TOKEN": "${PLANTED}"}}
    file.write_text(json.dumps({"mcpServers": {"lab": entry}}))
    async with supervised(*load_config(file).servers) as supervisor:
        status = status_of(supervisor)
    assert status.instructions == "Use [REDACTED:config] for everything."
    assert SECRET not in repr(status)


REFUSES = """
import json, os, sys
for line in sys.stdin:
    said = json.loads(line)
    if "id" in said:
        error = {"code": -32000, "message": "." * int(sys.argv[1]) + os.environ["TOKEN"]}
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "error": error}), flush=True)
"""


@pytest.mark.parametrize("before", [60, 160, 260, 2000])
async def test_a_secret_at_the_end_of_what_is_shown(before, caplog):
    """T9: what a server refuses with is cut when its secrets are out, not before."""
    secret = "Zx9Cv8Bn7Mq6We5Rt4Yu" * 10
    transport = StdioTransport(sys.executable, args=["-c", REFUSES, str(before)], env={"TOKEN": secret})
    spec = ServerSpec("lab", transport, restart="temporary")
    async with open_supervisor([spec], state=MemoryStore(), gate=10) as supervisor:
        (status,) = supervisor.status()
        with pytest.raises(ServerDown) as down:
            await supervisor.call_tool("x", server="lab")
    assert "...." in str(status.error)
    assert len(str(status.error)) < 400
    assert secret[:8] not in f"{status}{down.value}{caplog.text}"


BROKEN = f'{{"jsonrpc": "2.0", "id": 1, "result": "{SECRET}", "error": 7}}'
STREAM = f"event: message\ndata: {BROKEN}\n\n"


def answering(call, said):
    return said.replace('"id": 1', f'"id": {json.dumps(call)}')


class Malformed(BaseHTTPRequestHandler):
    """Answers what it is told to, or all, with what is none of the protocol, and quotes a secret in it."""

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call, method = message.get("id"), message["method"]
        facts = {"capabilities": {"tools": {}}, "serverInfo": {"name": "far", "version": "1"}}
        tools = [{"name": "echo", "inputSchema": {"type": "object"}}]
        sound = {"initialize": {"protocolVersion": "2025-11-25", **facts}, "tools/list": {"tools": tools}}
        if method in sound and self.server.opens:
            self.reply("application/json", json.dumps({"jsonrpc": "2.0", "id": call, "result": sound[method]}))
        else:
            kind, body = self.server.answer
            self.server.asked.put(call)
            self.reply(kind, answering(call, body))

    def do_GET(self):
        self.begin("text/event-stream")
        self.wfile.write(b"event: endpoint\ndata: /messages\n\n")
        self.wfile.write(answering(self.server.asked.get(timeout=60), STREAM).encode())

    def begin(self, kind, **more):
        self.send_response(200)
        for name, value in {"Content-Type": kind, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def reply(self, kind, body):
        self.begin(kind, **{"Content-Length": str(len(body))})
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def malformed():
    """The URL of a server for a kind of answer."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Malformed)
    server.asked = queue.SimpleQueue()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def at(kind, body, *, opens=False):
        server.answer, server.opens = (kind, body), opens
        return f"http://127.0.0.1:{server.server_port}/mcp"

    yield at
    server.shutdown()
    thread.join()
    server.server_close()


NO_PROTOCOL = "an answer that is not valid JSON-RPC"
ANSWERS = {
    "stream": ("http", "text/event-stream", STREAM),
    "json": ("http", "application/json", BROKEN),
    "text": ("http", "application/json", f"{{ {SECRET}"),
    "sse": ("sse", "text/event-stream", STREAM),
}


def run(tmp_path, url, transport, *arguments):
    file = tmp_path / "servers.json"
    entry = {"type": transport, "url": url, "restartDelays": [], "connectSeconds": 5}
    file.write_text(json.dumps({"mcpServers": {"far": entry}}))
    environment = {**os.environ, "HOME": str(tmp_path)}
    command = [*COMMAND, *arguments, "--config", file]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert SECRET[5:] not in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    return ran


plainly_or_not = pytest.mark.parametrize("flags", [[], ["--verbose"]], ids=["plain", "verbose"])


@pytest.mark.parametrize("way", ANSWERS)
@plainly_or_not
def test_a_handshake_that_is_none_of_the_protocol(malformed, tmp_path, way, flags):
    """T9, L17: libraries log a traceback that quotes the answer, and so do their errors; none of it is shown."""
    transport, kind, body = ANSWERS[way]
    lines = run(tmp_path, malformed(kind, body), transport, "tools", *flags).stderr.splitlines()
    problem = NO_PROTOCOL if way == "text" else "malformed response"
    assert lines[-1].startswith(f"mcp-nursery: far: the handshake failed: {problem}")


@pytest.mark.parametrize("way", ["stream", "json", "text"])
@plainly_or_not
def test_a_call_answered_with_what_is_none_of_the_protocol(malformed, tmp_path, way, flags):
    """T9, L17: the caller's error says so, and quotes nothing."""
    transport, kind, body = ANSWERS[way]
    url = malformed(kind, body, opens=True)
    ran = run(tmp_path, url, transport, "call", "mcp_far_echo", "--yes", *flags)
    lost = f"connection lost: {NO_PROTOCOL}; the server may have acted"  # nothing in it is an answer to this call
    code, problem = (3, lost) if way == "text" else (1, "error -32603: malformed response")
    assert ran.returncode == code
    assert ran.stderr.splitlines()[-1] == f"mcp-nursery: far: echo: {problem}"
