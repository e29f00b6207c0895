"""What a server is told that its client can be asked, and what it lists for such a client: behind `serve` over stdio
both are as without it."""

import json
import os
import sys

import pytest
import trio

from mcp_nursery.actors.extensions import OFFERED, TASKS
from mcp_nursery.supervisor import ServerSpec, StdioTransport

from ..lab import PROGRAMS
from ..lab.gateways import PROGRAM, served
from ..lab.raw_clients import NEW, OLD, answer_in, http_client, request, stdio_client

pytestmark = pytest.mark.slow

CAPABILITIES = [
    {},
    {"elicitation": {}, "sampling": {"tools": {}}},
    {"elicitation": {"url": {}}, "roots": {"listChanged": False}},
    {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]}}, "experimental": {"own": {"a": 1}}},
]
ALL = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {"listChanged": True}}
CASES = [*(("--", each) for each in CAPABILITIES), ("--config", CAPABILITIES[2])]


def server(era):
    return [sys.executable, "-I", str(PROGRAMS / "told.py"), era]


def serving(front, command, folder):
    if front == "--":
        return [PROGRAM, "serve", "--restart-delays", "0.1", "--", *command]
    file = folder / "servers.json"
    entry = {"command": command[0], "args": command[1:], "restartDelays": [0.1]}
    file.write_text(json.dumps({"mcpServers": {"told": entry}}))
    return [PROGRAM, "serve", "--template", "{tool}", "--config", str(file)]


FOR_TASKS = "for_extensions_io_modelcontextprotocol_tasks"
"""The tool that is listed for a client that follows tasks."""
BESIDE_TASKS = {f"{FOR_TASKS}_io_mo": "for_extensions_io_modelcontextprotocol_ui"}
"""The tool of a client with another extension besides, by the beginning of its name, which is cut."""


def without_tasks(capabilities):
    """The capabilities without the extension that the gateway declares for each client, as it follows tasks for it."""
    extensions = {name: each for name, each in capabilities.get("extensions", {}).items() if name != TASKS}
    others = {name: each for name, each in capabilities.items() if name != "extensions"}
    return others | ({"extensions": extensions} if extensions else {})


async def opened(client, version, capabilities):
    """The first messages of a client that can be asked so much; what makes its later ones."""
    if version == OLD:
        about = {"protocolVersion": OLD, "capabilities": capabilities, "clientInfo": {"name": "raw", "version": "1"}}
        assert "result" in answer_in(await client.ask(request(OLD, 1, "initialize", **about)), 1)
        await client.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        return lambda number, method, **params: request(OLD, number, method, **params)

    def make(number, method, **params):
        message = json.loads(request(NEW, number, method, **params))
        message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities
        return json.dumps(message)

    assert "result" in answer_in(await client.ask(make(1, "server/discover")), 1)
    return make


async def asked(client, make, number, **arguments):
    frames = await client.ask(make(number, "tools/call", name="told", arguments=arguments))
    [answer] = [message for message in map(json.loads, frames) if "method" not in message]
    return answer["result"]


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("era", ["older", "modern"])
@pytest.mark.parametrize(("front", "capabilities"), CASES, ids=["nothing", "some", "others", "extensions", "of a file"])
async def test_the_only_client_is_what_a_server_sees(front, era, version, capabilities, tmp_path):
    with trio.fail_after(60):
        async with stdio_client(serving(front, server(era), tmp_path)) as client:
            make = await opened(client, version, capabilities)
            seen = json.loads((await asked(client, make, 2))["content"][0]["text"])
            assert seen
            assert [without_tasks(each) for each in seen.values()] == [capabilities] * len(seen)
            assert all(each != without_tasks(each) for each in seen.values()) == (era == "modern")
            assert (await asked(client, make, 3, die=True))["isError"]
            number, again = 3, {"isError": True}
            while again.get("isError"):  # as long as it is being started again
                number += 1
                again = await asked(client, make, number)
            assert json.loads(again["content"][0]["text"]) == seen


@pytest.mark.parametrize(("version", "era"), [(OLD, "older"), (NEW, "modern")])
async def test_a_client_is_listed_what_the_server_has_for_it_whoever_came_before(version, era, tmp_path):
    """Clients that share a state file: from the first start on, and once the list comes from the cache alone."""
    program, stuck = tmp_path / "server", tmp_path / "stuck"
    program.write_text(f'#!/bin/sh\n[ -e "{stuck}" ] && exec cat >&2\nexec {" ".join(server(era))}\n')
    program.chmod(0o700)
    environment = {**os.environ, "MCP_NURSERY_STATE": str(tmp_path / "state.sqlite3")}
    cold, warm = [], []
    with trio.fail_after(60):
        for names in (cold, warm):
            for capabilities in CAPABILITIES:
                async with stdio_client(serving("--config", [str(program)], tmp_path), env=environment) as client:
                    make = await opened(client, version, capabilities)
                    answer = answer_in((await client.ask(make(2, "tools/list")))[-1:], 2)
                    listed = {tool["name"] for tool in answer["result"]["tools"]}
                    names.append({BESIDE_TASKS.get(name[:50], name) for name in listed} - {FOR_TASKS})
            stuck.touch()
    names_for = [
        {"told"},
        {"told", "for_elicitation", "for_sampling_tools"},
        {"told", "for_elicitation_url", "for_roots_listChanged"},
        {"told", "for_extensions_io_modelcontextprotocol_ui", "for_experimental_own"},
    ]
    assert cold == warm == names_for


async def test_a_server_of_many_clients_is_told_of_all(tmp_path):
    program, *arguments = server("older")
    spec = ServerSpec("told", StdioTransport(program, arguments))
    with trio.fail_after(60):
        async with served([spec]) as (_, url), http_client(f"{url}/told", OLD) as client:
            make = await opened(client, OLD, {})
            seen = json.loads((await asked(client, make, 2))["content"][0]["text"])
            assert seen == {"initialize": ALL | {"extensions": OFFERED}}


async def test_a_session_s_own_instance_is_told_of_its_client():
    program, *arguments = server("older")
    spec = ServerSpec("told", StdioTransport(program, arguments), instances="session")
    with trio.fail_after(60):
        async with served([spec]) as (_, url):
            for capabilities in CAPABILITIES:
                async with http_client(f"{url}/told", OLD) as client:
                    make = await opened(client, OLD, capabilities)
                    seen = json.loads((await asked(client, make, 2))["content"][0]["text"])
                    assert seen == {"initialize": capabilities}
