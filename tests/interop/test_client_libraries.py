"""Libraries that others wrote: all tools at the first try, a kill -9 of a server, and a tool that it learns."""

import json
from pathlib import Path

import pytest
import trio

from ..real.gateways import PROGRAM, served_over_http
from .test_gateway_clients import FASTMCP, FIRST_LINE, python_with

pytestmark = [pytest.mark.interop, pytest.mark.ci]

CLIENT = Path(__file__).with_name("client_libraries.py")
SERVER = Path(__file__).parents[1] / "servers" / "nursery_learning.py"
LIBRARIES = {
    "sdk_1": FIRST_LINE,
    "sdk_2_auto": None,
    "sdk_2_legacy": None,
    "fastmcp": FASTMCP,
    "openai_agents": "openai-agents==0.24.0",
    "pydantic_ai": "pydantic-ai-slim[mcp]==2.68.0",
    "langchain": "langchain-mcp-adapters==0.3.2",
}
"""What each is installed as; None: it is here."""


@pytest.mark.parametrize(("front", "announced"), [("stdio", "unannounced"), ("http", "announced")])
@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_library_outlasts_a_kill_and_sees_a_new_tool(library, front, announced, tmp_path):
    client, server = python_with(LIBRARIES[library]), python_with(FIRST_LINE)
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({"mcpServers": {"school": {"command": server, "args": ["-I", str(SERVER)]}}}))

    async def use(target):
        command = [client, str(CLIENT), library, json.dumps(target), announced]
        return await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)

    with trio.fail_after(120):
        if front == "stdio":
            state = f"XDG_STATE_HOME={tmp_path}"  # not all clients hand on their environment
            ran = await use(["env", state, PROGRAM, "serve", "--config", str(config)])
        else:
            async with served_over_http("--config", str(config)) as (_, url):
                ran = await use(url)
    assert ran.returncode == 0, ran.stderr.decode()[-3000:]
    said = json.loads(ran.stdout)
    assert said["first"] == ["school_learn", "school_pid"]
    assert said["last"] == ["school_learn", "school_learned", "school_pid"]
    assert said["learned"] == "learned"
    assert all("restarts in" in each for each in said["answers"]), said["answers"]
