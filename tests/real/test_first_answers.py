"""What `serve` has loaded when it has answered a first `initialize` and `tools/list`: what it needed for that."""

import json
import os
import subprocess
import sys

import pytest

MAIN = "from mcp_nursery.supervisor.cli import main; main()"
HEAVY = (
    *("mcp", "mcp_types", "starlette", "httpx2", "keyring"),
    *("rich", "typer.rich_utils", "uvicorn", "opentelemetry.sdk"),
)
"""Modules that take long to load. pydantic alone is no such one, and typer coerces options with it."""
SERVER = """
import json, sys
answers = {
    "initialize": {
        "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "greet", "title": "Greet", "inputSchema": {"type": "object"}}]},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        said = answers.get(message["method"])
        found = {"result": said} if said else {"error": {"code": -32601, "message": "Method not found"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **found}), flush=True)
"""
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}, "clientInfo": {"name": "c", "version": "1"}}


@pytest.fixture
def config(tmp_path):
    """A server that nobody starts before its first call: nothing is loaded for a connection meanwhile."""
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    file = tmp_path / "servers.json"
    entry = {"command": sys.executable, "args": [str(program)], "lazy": True}
    file.write_text(json.dumps({"mcpServers": {"lab": entry}}))
    return file


def ask(process, request_id, method, params):
    request = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    while (answer := json.loads(process.stdout.readline())).get("id") != request_id:
        pass
    return answer["result"]


def served(config, log):
    """The names of the tools in the first list, and the modules that were loaded by then."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-c", MAIN, "serve", "--config", str(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=os.environ,
        )
    with process:
        ask(process, 1, "initialize", HELLO)
        tools = ask(process, 2, "tools/list", {})["tools"]
        loaded = [line.rpartition("|")[2].strip() for line in log.read_text().splitlines() if line.count("|") == 2]
        process.stdin.close()
    assert process.returncode == 0
    return [tool["name"] for tool in tools], loaded


@pytest.mark.slow
def test_what_is_cached_is_answered_without_the_sdk(config, tmp_path):
    subprocess.run(  # lists once, and so fills the cache
        [sys.executable, "-c", MAIN, "tools", "--config", str(config)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    tools, loaded = served(config, tmp_path / "log")
    assert tools == ["lab_greet"]
    assert "mcp_nursery.supervisor.gateway.downstream" in loaded
    heavy = {name for name in loaded if any(name == each or name.startswith(f"{each}.") for each in HEAVY)}
    assert not heavy
