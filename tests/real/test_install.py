"""`mcp-nursery install` as a process, and a client that starts what it has written, as a host does."""

import json
import os
import subprocess
import sys

import pytest
import trio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from ..lab import PROGRAMS
from ..lab.gateways import PROGRAM, Answers
from ..lab.processes import LAB, Journal

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
            assert (await client.call_tool("lab_echo", {"text": "two"})).content[0].text == "two"
    assert journal.count("start") == 2
    install("--undo")
    assert file.read_bytes() == before


@pytest.mark.parametrize("arguments", [["serve", "--trust"], ["serve", "--no-project"]])
def test_a_gateway_that_is_one_of_its_own_servers_does_not_start_itself_for_ever(tmp_path, arguments):
    """Written by hand, into the file that it finds."""
    own = tmp_path / "config" / "mcp-nursery" / "servers.json"
    own.parent.mkdir(parents=True)
    for file in (own, tmp_path / ".mcp.json"):
        file.write_text(json.dumps({"mcpServers": {"me": {"command": PROGRAM, "args": arguments}}}))
    ran = subprocess.run(
        [PROGRAM, "status", "--trust", "--json"],
        env={**os.environ, "XDG_CONFIG_HOME": str(own.parents[1]), "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    (me,) = json.loads(ran.stdout)["servers"]
    assert me["state"] == "waiting"
    started = subprocess.run(
        [PROGRAM, *arguments],
        env={**os.environ, "MCP_NURSERY_INCARNATION": "x"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (started.returncode, started.stderr) == (
        2,
        "mcp-nursery: field '--config': mcp-nursery started this process and would start itself again; name a file\n",
    )


def test_whoever_is_killed_has_one_of_both_and_can_undo_it(tmp_path):
    """kill -9 before each time that it opens, makes, moves or removes a file."""
    (tmp_path / "home").mkdir()
    file, ours = tmp_path / "home" / ".claude.json", tmp_path / "config" / "mcp-nursery"
    file.write_text('{\n  "mcpServers": {\n    "a": {"command": "x"} // mine\n  }\n}\n')
    ran = subprocess.run(
        [sys.executable, PROGRAMS / "killed_installer.py", file, ours],
        env={**os.environ, "HOME": str(file.parent), "XDG_CONFIG_HOME": str(ours.parent)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["changed"]
    assert all(steps > 5 for steps in said["steps"])
