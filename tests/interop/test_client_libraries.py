"""Libraries that others wrote: all tools at the first try, a kill -9 of a server, and a tool that it learns."""

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import trio

from ..lab import PROGRAMS
from ..lab.gateways import served_over_http, serving
from . import installing
from .test_gateway_clients import FASTMCP, FIRST_LINE, INSPECTOR, python_with

pytestmark = pytest.mark.interop

CLIENT = Path(__file__).with_name("client_libraries.py")
SERVER = PROGRAMS / "nursery_learning.py"
IN_PYTHON = {
    "sdk_1": FIRST_LINE,
    "sdk_2_auto": None,
    "sdk_2_legacy": None,
    "fastmcp": FASTMCP,
    "openai_agents": "openai-agents==0.24.0",
    "pydantic_ai": "pydantic-ai-slim[mcp]==2.68.0",
    "langchain": "langchain-mcp-adapters==0.3.2",
}
"""What each is installed as; None: it is here."""
IN_TYPESCRIPT = {
    "typescript_1": "@modelcontextprotocol/sdk@1.32.2",
    "typescript_2": "@modelcontextprotocol/client@2.4.0",
}

OF_A_PUSH = ("sdk_2_auto", "typescript_2")
"""One for each language; the others are for the night."""

run = partial(trio.run_process, capture_stdout=True, capture_stderr=True, check=False)


@pytest.fixture
def config(tmp_path):
    """The options that have a server that learns served."""
    file = tmp_path / "servers.json"
    entry = {"command": python_with(FIRST_LINE), "args": ["-I", str(SERVER)]}
    file.write_text(json.dumps({"mcpServers": {"school": entry}}))
    return ["--config", str(file)]


def client_of(library, folder):
    """The command of a client."""
    if library in IN_PYTHON:
        return [python_with(IN_PYTHON[library]), str(CLIENT), library]
    with installing.needed_by_test(library):
        node, modules = installing.npm_modules(IN_TYPESCRIPT[library])
    program = shutil.copy(CLIENT.with_suffix(".mjs"), folder)  # node looks for packages beside it
    (folder / "node_modules").symlink_to(modules)
    return [str(node), program, library]


@pytest.mark.parametrize(("front", "announced"), [("stdio", "unannounced"), ("http", "announced")])
@pytest.mark.parametrize(
    "library",
    [
        pytest.param(each, marks=[] if each in OF_A_PUSH else [pytest.mark.night])
        for each in (*IN_PYTHON, *IN_TYPESCRIPT)
    ],
)
async def test_a_library_outlasts_a_kill_and_sees_a_new_tool(library, front, announced, config, tmp_path):
    client = client_of(library, tmp_path)
    with trio.fail_after(120):
        if front == "stdio":
            ran = await run([*client, json.dumps(serving(*config)), announced])
        else:
            async with served_over_http(*config) as (_, url):
                ran = await run([*client, json.dumps(url), announced])
    assert ran.returncode == 0, ran.stderr.decode()[-3000:]
    said = json.loads(ran.stdout)
    assert said["first"] == ["school_learn", "school_pid"]
    assert said["last"] == ["school_learn", "school_learned", "school_pid"]
    assert said["learned"] == "learned"
    assert all("restarts in" in each for each in said["answers"]), said["answers"]


@pytest.mark.night
async def test_the_inspector_outlasts_a_kill_and_sees_a_new_tool_between_its_runs(config, tmp_path):
    """Each of its runs is a session of its own."""
    with installing.needed_by_test("MCP Inspector"):
        inspector = [*installing.npm_package(INSPECTOR, least_node=22), "--cli"]
    of_inspector = tmp_path / "inspector.json"

    async def ask(target, method, *options):
        kind = (
            {"url": target, "type": "http"} if isinstance(target, str) else {"command": target[0], "args": target[1:]}
        )
        of_inspector.write_text(json.dumps({"mcpServers": {"it": kind}}))
        chosen = ["--config", str(of_inspector), "--server", "it", "--method", method]
        ran = await run([*inspector, *chosen, *options])
        return json.loads(ran.stdout)

    async def names(target):
        return sorted(tool["name"] for tool in (await ask(target, "tools/list"))["tools"])

    async def call(target, name, *options):
        said = await ask(target, "tools/call", "--tool-name", name, *options)
        return said["content"][0]["text"]

    with trio.fail_after(120):
        assert await names(serving(*config)) == ["school_learn", "school_pid"]
        assert (await call(serving(*config), "school_pid")).isdigit()
        async with served_over_http(*config) as (_, url):
            assert await names(url) == ["school_learn", "school_pid"]
            before = await call(url, "school_pid")
            os.kill(int(before), signal.SIGKILL)
            while not (after := await call(url, "school_pid")).isdigit():
                assert "restarts in" in after
            assert after != before
            assert await call(url, "school_learn", "--tool-arg", "announced=true") == "learned"
            while "school_learned" not in (last := await names(url)):
                pass
            assert last == ["school_learn", "school_learned", "school_pid"]
