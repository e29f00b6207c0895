"""What a command has loaded when it has its first answer: what it needed for that."""

import json
import os
import subprocess
import sys
import time

import httpx2
import pytest

from ..lab.raw_clients import NEW, HttpClient, request

MAIN = "from mcp_nursery.supervisor.cli import main; main()"
UNNEEDED = (
    *("starlette", "httpx2", "keyring", "prometheus_client", "opentelemetry.sdk"),
    *("rich", "uvicorn", "mcp", "opentelemetry"),
)
"""Modules that take long to load, and that nothing needs before its first answer."""
HEAVY = (*UNNEEDED, "mcp_types", "pydantic", "pydantic_core", "importlib.metadata")
OF_FILES = ("cattrs", "mcp_nursery.supervisor.config.loader", "mcp_nursery.supervisor.config.dialects")
"""What reads configuration files: a command that is given needs none."""
SERVER = """
import json, sys
modern = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if "modern" in sys.argv else {}
tool = {
    "name": "greet", "title": "Greet", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True},
}
answers = {
    "tools/list": {"tools": [tool], **modern},
    "tools/call": {"content": [{"type": "text", "text": "hello"}], **modern},
}
if modern:
    answers["server/discover"] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **modern}
else:
    answers["initialize"] = {
        "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"},
    }
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        said = answers.get(message["method"])
        found = {"result": said} if said else {"error": {"code": -32601, "message": "Method not found"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **found}), flush=True)
"""
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}, "clientInfo": {"name": "c", "version": "1"}}


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "server.py"
    file.write_text(SERVER)
    return file


@pytest.fixture
def config(program, tmp_path):
    """A server that nobody starts before its first call."""
    return configured(tmp_path, program, lazy=True)


def configured(folder, program, *args, **more):
    file = folder / "servers.json"
    entry = {"command": sys.executable, "args": [str(program), *args], **more}
    file.write_text(json.dumps({"mcpServers": {"lab": entry}}))
    return file


def watched(*args):
    """A command that writes to standard error what it loads."""
    return [sys.executable, "-X", "importtime", "-c", MAIN, *args]


def modules_in(written):
    return [line.rpartition("|")[2].strip() for line in written.splitlines() if line.count("|") == 2]


def heavy_in(loaded, heavy=HEAVY):
    return {name for name in loaded if any(name == each or name.startswith(f"{each}.") for each in heavy)}


def ask(process, request_id, method, params):
    request = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    while (answer := json.loads(process.stdout.readline())).get("id") != request_id:
        pass
    return answer["result"]


def served(log, *args, client="handshake"):
    """The names of the tools in the first list of a client, and the modules that were loaded by then."""
    opening, meta = ("initialize", HELLO), {}
    if client == "modern":
        meta = {"_meta": ENVELOPE}
        opening = "server/discover", meta
    with log.open("wb") as file:
        process = subprocess.Popen(
            watched("serve", *args),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=os.environ,
        )
    with process:
        ask(process, 1, *opening)
        tools = ask(process, 2, "tools/list", meta)["tools"]
        loaded = modules_in(log.read_text())
        process.stdin.close()
    assert process.returncode == 0
    assert "mcp_nursery.supervisor.gateway.clients" in loaded
    return [tool["name"] for tool in tools], loaded


@pytest.mark.slow
@pytest.mark.parametrize("client", ["modern", "handshake"])
def test_what_is_cached_is_answered_without_the_sdk(client, config, tmp_path):
    subprocess.run(  # lists once, and so fills the cache
        [sys.executable, "-c", MAIN, "tools", "--config", str(config)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    tools, loaded = served(tmp_path / "log", "--config", str(config), client=client)
    assert tools == ["lab_greet"]
    assert not heavy_in(loaded)


@pytest.mark.slow
@pytest.mark.parametrize("client", ["modern", "handshake"])
@pytest.mark.parametrize("era", ["modern", "handshake"])
def test_a_server_that_was_never_started_is_listed_without_the_sdk(era, client, program, tmp_path):
    log = tmp_path / "log"
    tools, loaded = served(log, "--gate", "60", "--", sys.executable, str(program), era, client=client)
    assert tools == ["greet"]
    assert not heavy_in(loaded, (*HEAVY, *OF_FILES))


@pytest.mark.slow
@pytest.mark.parametrize("era", ["modern", "handshake"])
def test_where_servers_stand_is_said_without_the_sdk(era, program, tmp_path):
    """Also the second time, when what they list is held against what is cached."""
    file = configured(tmp_path, program, era)
    for _ in range(2):
        ran = subprocess.run(
            watched("status", "--config", str(file)), capture_output=True, text=True, timeout=120, check=True
        )
        assert "connected" in ran.stdout
        assert not heavy_in(modules_in(ran.stderr))


@pytest.mark.slow
@pytest.mark.parametrize("era", ["modern", "handshake"])
def test_a_call_loads_the_types_of_results_and_no_more(era, program, tmp_path):
    file = configured(tmp_path, program, era)
    ran = subprocess.run(
        watched("call", "mcp_lab_greet", "--yes", "--config", str(file)),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "hello" in ran.stdout
    loaded = modules_in(ran.stderr)
    assert "mcp_types._types" in loaded
    assert not heavy_in(loaded, UNNEEDED)


@pytest.mark.slow
def test_what_only_watches_its_servers_loads_no_models(program, tmp_path):
    """Nor does it begin to load them: an ending process waits for what is being loaded."""
    log, config = tmp_path / "log", configured(tmp_path, program, "handshake")
    with (
        log.open("wb") as file,
        subprocess.Popen(
            watched("run", "--config", str(config)), stdout=subprocess.PIPE, stderr=file, text=True
        ) as process,
    ):
        while "lab: connected" not in process.stdout.readline():
            pass
        process.terminate()
    loaded = modules_in(log.read_text())
    assert "mcp_nursery.supervisor.cli.screen.viewer" in loaded
    assert not heavy_in(loaded, ("mcp_types", "mcp", "pydantic", "httpx2"))


def ready_url(log):
    """The URL of a gateway over HTTP that writes this log, once it says that it is ready."""
    for _ in range(1200):
        for line in log.read_text().splitlines():
            if line.startswith("serving on "):
                url = line.removeprefix("serving on ")
                if httpx2.get(url.replace("/mcp", "/readyz"), timeout=60).status_code == 200:
                    return url
        time.sleep(0.05)  # another process sets no event of ours
    raise AssertionError(log.read_text()[-1000:])


@pytest.mark.slow
@pytest.mark.parametrize("era", ["modern", "handshake"])
def test_the_first_call_of_a_replica_loads_no_models(era, program, tmp_path):
    """Its first clients have listed elsewhere: their calls would wait for a second."""
    log = tmp_path / "log"
    command = watched("serve", "--http", "127.0.0.1:0", "--", sys.executable, str(program), era)
    with log.open("wb") as file, subprocess.Popen(command, stderr=file) as process:
        try:
            url = ready_url(log)
            frame = request(NEW, 1, "tools/call", name="greet", arguments={})
            headers = HttpClient(None, url, NEW).headers(frame)
            said = httpx2.post(url, content=frame, headers=headers, timeout=60).json()
            assert said["result"]["content"][0]["text"] == "hello"
            after = modules_in(log.read_text())
        finally:
            process.terminate()
    assert "mcp_nursery.supervisor.gateway.http.routing_headers" in after
    assert not heavy_in(after)
