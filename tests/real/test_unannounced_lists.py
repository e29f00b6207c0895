"""W4: a real server that gains tools and announces nothing: in both eras, for the library and clients of a gateway."""

import json
import sys

import pytest
import trio

from mcp_nursery.supervisor import MemoryStore, ServerSpec, StdioTransport, open_supervisor

from ..lab import PROGRAMS
from ..lab.gateways import client_on

pytestmark = pytest.mark.slow

GROWING = [sys.executable, "-I", str(PROGRAMS / "growing.py")]
PROTOCOLS = {"handshake": "2025-11-25", "auto": "2026-07-28"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_library(protocol):
    spec = ServerSpec("lab", StdioTransport(GROWING[0], GROWING[1:]), protocol=protocol)
    with trio.fail_after(60):
        async with open_supervisor([spec], template="{tool}", state=MemoryStore()) as supervisor:
            await supervisor.call_tool("grow", {"name": "one"})
            assert supervisor.status()[0].protocol_version == PROTOCOLS[protocol]
            assert {tool.name for tool in await supervisor.list_tools()} == {"grow", "one"}
            await supervisor.call_tool("grow", {"name": "two"})
            assert (await supervisor.call_tool("two")).full_text == "two said"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_a_client_of_all_servers(front, protocol, mode, tmp_path):
    file = tmp_path / "servers.json"
    entry = {"command": GROWING[0], "args": GROWING[1:], "protocol": protocol}
    file.write_text(json.dumps({"mcpServers": {"lab": entry}}))
    with trio.fail_after(60):
        async with client_on(front, ["--config", str(file)], mode) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {"lab_grow"}
            await client.call_tool("lab_grow", {"name": "one"})
            assert {tool.name for tool in (await client.list_tools()).tools} == {"lab_grow", "lab_one"}
            await client.call_tool("lab_grow", {"name": "two"})
            assert (await client.call_tool("lab_two", {})).content[0].text == "two said"
