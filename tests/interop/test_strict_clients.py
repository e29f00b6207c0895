"""Clients that refuse a whole list for one definition that is not as their schema has it."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import trio

from ..lab import PROGRAMS
from ..lab.gateways import serving
from . import installing
from .test_client_libraries import IN_TYPESCRIPT

pytestmark = pytest.mark.interop

CLIENT = Path(__file__).with_name("strict_client.mjs")
LIBRARIES = {**IN_TYPESCRIPT, "typescript_2_legacy": IN_TYPESCRIPT["typescript_2"]}
COMMAND = [sys.executable, "-I", "-S", str(PROGRAMS / "nursery_agent.py")]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("together", [True, False])
async def test_one_odd_definition_costs_no_tool(library, together, tmp_path):
    """T19: of no server, whether two are served as one or one alone. The odd tool can be called."""
    with installing.needed_by_test(library):
        node, modules = installing.npm_modules(LIBRARIES[library])
    program = shutil.copy(CLIENT, tmp_path)  # node looks for packages beside it
    (tmp_path / "node_modules").symlink_to(modules)
    served, name = ["--", *COMMAND], "refused"
    if together:
        entry = {"command": COMMAND[0], "args": COMMAND[1:]}
        config = tmp_path / "servers.json"
        config.write_text(json.dumps({"mcpServers": dict.fromkeys(["agent", "other"], entry)}))
        served, name = ["--config", str(config)], "agent_refused"
    with trio.fail_after(120):
        command = [str(node), program, library, json.dumps(serving(*served)), name]
        ran = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()[-3000:]
    said = json.loads(ran.stdout)
    assert len(said["names"]) == (28 if together else 14)
    tool, result = said["tool"], said["result"]
    assert tool["inputSchema"]["type"] == "object"
    assert len(tool["inputSchema"]["anyOf"]) == 2
    assert "title" not in tool
    assert tool["annotations"] == {}
    assert json.loads(result["content"][0]["text"]) == {"a": 1}
    modern = library == "typescript_2"
    assert ("outputSchema" in tool, "structuredContent" in result) == (modern, modern)
