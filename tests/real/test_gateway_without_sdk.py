"""A gateway whose clients and servers say what most say never loads the SDK: it answers its first call at once, and
takes half of the memory."""

import json
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mcp_nursery.actors.protocol import INVALID_PARAMS

from ..lab import PROGRAMS
from ..lab.gateways import served_over_http, serving
from ..lab.processes import LAB
from ..lab.raw_clients import NEW, OLD, answer_in, http_client, opened, request, stdio_client
from ..lab.remote import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has maps of a process"),
]

PLAIN = [sys.executable, "-I", "-S"]
SERVERS = {"handshake": [*PLAIN, str(LAB)], "modern": [*PLAIN, str(PROGRAMS / "told.py"), "modern"]}


def has_sdk(pid):
    """Whether the process has loaded the models of the SDK, which need a library."""
    return "pydantic_core" in Path(f"/proc/{pid}/maps").read_text()


@asynccontextmanager
async def behind(upstream, tmp_path):
    """The arguments of a gateway in front of one server, and the name of a tool."""
    if upstream in SERVERS:
        yield ["--", *SERVERS[upstream]], "told" if upstream == "modern" else "echo"
        return
    port = free_port()
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({"mcpServers": {"far": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}}))
    server = await trio.lowlevel.open_process([*SERVERS["handshake"], f"port={port}"])
    try:
        yield ["--config", str(config), "--template", "{tool}"], "echo"
    finally:
        server.kill()
        with trio.CancelScope(shield=True):
            await server.wait()


@asynccontextmanager
async def client_of(front, args, version):
    """The process of a gateway, and a client of it."""
    if front == "stdio":
        async with stdio_client(serving(*args)) as client:
            yield client.pid, client
    else:
        async with served_over_http(*args) as (process, url), http_client(url, version) as client:
            yield process.pid, client


async def answer(client, frame):
    return answer_in(await client.ask(frame), json.loads(frame)["id"])


@pytest.mark.parametrize("upstream", ["handshake", "modern", "http"])
@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_an_ordinary_conversation_needs_no_sdk(front, version, upstream, tmp_path):
    with trio.fail_after(60):
        async with behind(upstream, tmp_path) as (args, tool), client_of(front, args, version) as (pid, client):
            await opened(client, version)
            while True:
                listed = await answer(client, request(version, 2, "tools/list"))
                if any(each["name"] == tool for each in listed["result"]["tools"]):
                    break
            call = {"name": tool, "arguments": {"text": "x"}}
            for number, meta in enumerate([{}, {"progressToken": "a"}], start=3):
                said = await answer(client, request(version, number, "tools/call", **call, _meta=meta))
                assert said["result"]["content"][0]["type"] == "text"
            for number, method in enumerate(["resources/list", "resources/templates/list", "prompts/list"], start=5):
                await answer(client, request(version, number, method))
            missing = await answer(client, request(version, 8, "resources/read", uri="note://nothing"))
            assert "error" in missing
            assert not has_sdk(pid)
            wrong = await answer(client, request(version, 9, "tools/call", name=tool, arguments=5))
            assert wrong["error"]["code"] == INVALID_PARAMS
            assert has_sdk(pid)


RICH = """
import json, sys

TOOL = {
    "name": "plain", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"},
    "annotations": {"title": "Plain", "readOnlyHint": True},
}
ABILITIES = {"tools": {}, "resources": {}}
ABOUT = {"protocolVersion": "2025-11-25", "capabilities": ABILITIES, "serverInfo": {"name": "rich", "version": "1"}}
ANSWERS = {
    "initialize": ABOUT,
    "tools/list": {"tools": [TOOL]},
    "tools/call": {"content": [{"type": "text", "text": "heard"}]},
    "resources/list": {"resources": [{"uri": "note://today", "name": "today", "annotations": {"priority": 1}}]},
    "resources/templates/list": {"resourceTemplates": []},
}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        known = asked["method"] in ANSWERS
        said = {"result": ANSWERS[asked["method"]]} if known else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""


@pytest.mark.parametrize("options", [[], ["--search"], ["--mark"], ["--search", "--mark"]], ids=" ".join)
async def test_what_needs_the_sdk_has_it_loaded_in_a_thread(options):
    """Its clients would stand still for a second otherwise."""
    command = [sys.executable, str(PROGRAMS / "watched_gateway.py"), "serve", *options, "--", *PLAIN, "-c", RICH]
    with trio.fail_after(60):
        async with stdio_client(command, stderr=subprocess.PIPE) as client:
            await opened(client, OLD)
            await answer(client, request(OLD, 2, "tools/list"))
            if "--search" in options:
                found = await answer(
                    client, request(OLD, 3, "tools/call", name="find_tools", arguments={"query": "plain"})
                )
                assert "plain" in found["result"]["content"][0]["text"]
                call = {"name": "call_tool", "arguments": {"name": "plain", "arguments": {}}}
            else:
                call = {"name": "plain", "arguments": {}}
            said = await answer(client, request(OLD, 4, "tools/call", **call))
            assert "heard" in said["result"]["content"][0]["text"]
