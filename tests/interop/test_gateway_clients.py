"""Clients that others wrote, in front of the gateway, over stdio and HTTP."""

import json
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from ..lab import PROGRAMS
from ..lab.gateways import served_over_http, serving
from . import installing

pytestmark = pytest.mark.interop

CLIENT = Path(__file__).with_name("foreign_client.py")
SERVER = PROGRAMS / "nursery_features.py"
FASTMCP, FIRST_LINE = "fastmcp==4.1.2", "mcp[ws]==1.30.0"
INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"

SAID = {
    "tools": ["count", "fail", "greet", "think", "weather", "where"],
    "weather failed": False,
    "count": "counted to 3",
    "count failed": False,
    "fail failed": True,
    "progress": [1, 2, 3],
    "note": "Buy milk.",
    "prompt": "Summarise what you know of tea.",
}
"""What every client gets of every server here."""


def python_with(requirement):
    """The Python that has it; None is this one."""
    if requirement is None:
        return sys.executable
    with installing.needed_by_test(requirement):
        return str(installing.python_with(requirement))


@asynccontextmanager
async def reached(front, server):
    """What a client is told to talk to: a URL, or a command."""
    if front == "stdio":
        yield serving("--", *server)
    else:
        async with served_over_http("--", *server) as (_, url):
            yield url


@pytest.mark.parametrize("client", [None, FASTMCP, FIRST_LINE], ids=["sdk 2", "fastmcp 4", "sdk 1.x"])
@pytest.mark.parametrize("server", [FASTMCP, FIRST_LINE], ids=["fastmcp 4 behind", "sdk 1.x behind"])
@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_a_client_in_python(front, server, client):
    behind = [python_with(server), "-I", str(SERVER)]
    with trio.fail_after(60):
        async with reached(front, behind) as target:
            command = [python_with(client), str(CLIENT), json.dumps(target)]
            ran = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    said = json.loads(ran.stdout)
    assert {key: said[key] for key in SAID} == SAID
    assert "degrees" in said["weather"]
    assert "not today" in said["fail"]
    if client is not None:  # the second line of the SDK asks for logs call by call
        assert [f"step {step}" in line for step, line in enumerate(said["logged"], 1)] == [True] * 3
    if server == FIRST_LINE or (client == FIRST_LINE and front == "stdio"):  # spoken to as by its only client
        assert (said["greet"], said["asked"]) == ("hello Ada", ["What is your name?"])


USES = {
    "tools/list": ([], '"weather"'),
    "tools/call": (["--tool-name", "weather", "--tool-arg", "city=Oslo"], '"degrees"'),
    "resources/list": ([], "note://today"),
    "resources/read": (["--uri", "note://today"], "Buy milk."),
    "prompts/get": (["--prompt-name", "summarise", "--prompt-args", "topic=tea"], "Summarise what you know of tea."),
}


@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_the_inspector(front, tmp_path):
    with installing.needed_by_test("MCP Inspector"):
        inspector = [*installing.npm_package(INSPECTOR, least_node=22), "--cli"]
    config = tmp_path / "servers.json"
    run = partial(trio.run_process, capture_stdout=True, stderr=subprocess.DEVNULL, check=False)
    with trio.fail_after(120):
        async with reached(front, [python_with(FIRST_LINE), "-I", str(SERVER)]) as target:
            entry = {"url": target, "type": "http"} if front == "http" else {"command": target[0], "args": target[1:]}
            config.write_text(json.dumps({"mcpServers": {"it": entry}}))
            for method, (options, expected) in USES.items():
                ran = await run([*inspector, "--config", str(config), "--server", "it", "--method", method, *options])
                assert ran.returncode == 0, (method, ran.stdout)
                assert expected in ran.stdout.decode().replace('\\"', '"'), method
