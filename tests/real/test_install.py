"""`mcp-nursery install` as a process, and a client that starts what it has written, as a host does."""

import json
import os
import subprocess
import sys

import pytest
import trio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from .gateways import PROGRAM, Answers
from .harness import LAB, Journal

pytestmark = pytest.mark.slow


async def test_a_host_starts_what_was_installed(tmp_path):
    """Its servers behind the gateway, one of which dies, and then without it again."""
    journal, file = Journal(tmp_path / "journal"), tmp_path / ".claude.json"
    file.write_text(
        json.dumps(
            {
                "mcpServers": {
                    "lab": {"command": sys.executable, "args": ["-I", "-S", str(LAB), f"journal={journal.path}"]},
                    "off": {"command": "nonesuch", "disabled": True},
                }
            }
        )
    )
    before = file.read_bytes()
    surroundings = {**os.environ, "HOME": str(tmp_path)}

    def install(*options):
        subprocess.run(
            [PROGRAM, "install", "claude-code", "--yes", *options], env=surroundings, check=True, capture_output=True
        )

    install("--adopt")
    ((_, entry),) = json.loads(file.read_text())["mcpServers"].items()
    parameters = StdioServerParameters(command=entry["command"], args=entry["args"], env=surroundings)
    with trio.fail_after(60):
        host = Answers()
        async with Client(stdio_client(parameters), mode="legacy", message_handler=host.message) as client:
            await host.changed.wait()  # it comes before its servers are ready
            tools = (await client.list_tools()).tools
            assert tools
            assert all(tool.name.startswith("lab_") for tool in tools)
            assert (await client.call_tool("lab_crash", {})).is_error
            while (again := await client.call_tool("lab_echo", {"text": "two"})).is_error:
                assert "It restarts in" in again.content[0].text
                await trio.sleep(0.25)
            assert again.content[0].text == "two"
    assert journal.count("start") == 2
    install("--undo")
    assert file.read_bytes() == before
