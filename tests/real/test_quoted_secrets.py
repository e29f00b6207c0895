"""A server that quotes what it was given wherever it can: no error, status, event, span, metric or log shows it."""

import json
import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import pytest
import trio

from mcp_nursery.supervisor import MemoryStore, NurseryError, load_config, open_supervisor

from ..lab import PROGRAMS
from ..lab.programs.quoting import answer
from ..lab.recording import Recording

SERVER = PROGRAMS / "quoting.py"

SECRET = "Zq8 hunter2@/:&+%41"
TOKEN = "Zq8-hunter2-hunter2"
"""Where not every character can stand."""
QUOTED = quote(SECRET, safe="")


def what_is_told(error):
    """An error as a traceback shows it, with what it came of."""
    while error is not None:
        yield f"{error} {error!r} {vars(error)}"
        error = error.__cause__ or error.__context__


async def said_of(file, caplog):
    """All that is told of a server that is called, quotes, and dies."""
    caplog.set_level(logging.DEBUG)
    config = load_config(file, inputs={"token": TOKEN})
    told, recording = [repr(config)], Recording()
    options = {"state": MemoryStore(), "gate": 10, **recording.providers}
    with trio.fail_after(60):
        async with open_supervisor(config, **options) as supervisor, supervisor.events() as events:
            for arguments in ({}, {"die": True}):
                try:
                    told.append(repr(await supervisor.call_tool("quote", arguments, server="s", timeout=10)))
                except NurseryError as error:
                    told += what_is_told(error)
                told.append(repr(supervisor.status()))
            await supervisor.stop_server("s")
            async for event in events:
                told.append(repr(event))
                if getattr(event, "new", None) == "stopped":
                    break
    assert recording.spans
    told.append(recording.everything())
    ours = [record for record in caplog.records if record.name.startswith("mcp_nursery")]
    return "\n".join([*told, *(f"{record.getMessage()} {record.exc_text}" for record in ours)])


def check(told, secret):
    """The server was heard, and none of it is left; nor is it in another spelling."""
    assert "[REDACTED:" in told
    for form in {secret, quote(secret), quote(secret, safe=""), secret[3:], secret[:10]}:
        assert form not in told


LOCAL = {
    "env": lambda: {"env": {"ANY": SECRET}},
    "option": lambda: {"args": ["--api-key", SECRET]},
    "url": lambda: {"args": [f"https://me:{QUOTED}@host/"]},
    "command": lambda: {"env": {"ANY": f"!printf %s '{SECRET}'"}},
    "variable": lambda: {"args": ["--any", "${env:PLANTED}"]},
    "input": lambda: {"args": ["--any", "${input:token}"]},
    "file": lambda: {"envFile": ".env"},
}


@pytest.mark.parametrize("place", LOCAL)
async def test_a_process_quotes_what_it_was_given(tmp_path, monkeypatch, caplog, place):
    """T9, L17: wherever an entry has it from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANTED", SECRET)
    secret = TOKEN if place == "input" else SECRET
    (tmp_path / ".env").write_text(f'ANY="{SECRET}"\n')
    (tmp_path / "secret").write_text(secret)
    said = LOCAL[place]()
    arguments = ["-I", str(SERVER), str(tmp_path / "secret"), *said.pop("args", [])]
    entry = {"command": sys.executable, "args": arguments, "restart": "temporary", **said}
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"s": entry}}))
    told = await said_of(file, caplog)
    check(told, secret)
    assert "dropped a tool named" in told
    assert "exit_code': 3" in told


class Quoting(BaseHTTPRequestHandler):
    """The same over HTTP."""

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if message.get("params", {}).get("arguments", {}).get("die"):
            self.reply(500, {"error": f"dying of {self.server.secret}"})
        elif "id" in message:
            self.reply(200, answer(self.server.secret, message))
        else:
            self.reply(202, {})

    def do_GET(self):
        self.reply(405, {"error": self.server.secret})

    do_DELETE = do_GET  # noqa: N815

    def reply(self, status, said):
        body = json.dumps(said).encode()
        self.send_response(status, f"for {quote(self.server.secret)}")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def quoting():
    """A server that knows a secret."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Quoting)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


REMOTE = {
    "password": lambda host: {"url": f"http://me:{QUOTED}@{host}/mcp"},
    "user": lambda host: {"url": f"http://{QUOTED}@{host}/mcp"},
    "query": lambda host: {"url": f"http://{host}/mcp?a=b&key={QUOTED}"},
    "variable": lambda host: {"url": f"http://{host}/mcp?key=${{env:PLANTED}}"},
    "path": lambda host: {"url": f"http://{host}/${{env:PLANTED}}/mcp"},
    "header": lambda host: {"url": f"http://{host}/mcp", "headers": {"X-Any": TOKEN}},
    "bearer": lambda host: {"url": f"http://{host}/mcp", "headers": {"Authorization": f"Bearer {TOKEN}"}},
    "command": lambda host: {"url": f"http://{host}/mcp", "headers": {"X-Any": f"!printf %s {TOKEN}"}},
    "input": lambda host: {"url": f"http://{host}/mcp", "headers": {"Authorization": "Bearer ${input:token}"}},
}


@pytest.mark.parametrize("place", REMOTE)
async def test_a_remote_server_quotes_what_it_was_given(tmp_path, monkeypatch, caplog, quoting, place):
    """T9, L17: also user, password and query of its URL, decoded."""
    monkeypatch.setenv("PLANTED", TOKEN)
    entry = REMOTE[place](f"127.0.0.1:{quoting.server_port}")
    quoting.secret = SECRET if QUOTED in str(entry) else TOKEN
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"s": {**entry, "restart": "temporary"}}}))
    told = await said_of(file, caplog)
    check(told, quoting.secret)
    assert "dropped a tool named" in told
