"""`mcp-nursery serve` as a process, real servers behind it and a client of the MCP SDK before it, in both eras."""

import json
import signal
import subprocess
import sys
from datetime import datetime
from functools import partial

import httpx2
import pytest
import trio
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from ..lab import PROGRAMS
from ..lab.gateways import PROGRAM, Answers, client_on, served_over_http
from ..lab.processes import LAB, Journal, eventually

pytestmark = pytest.mark.slow

ASKING = [sys.executable, "-I", str(PROGRAMS / "nursery_asking.py")]
FRONTS = ["stdio", "http"]
MODES = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28"}


@pytest.mark.parametrize("era", ["old", "new"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("front", FRONTS)
async def test_a_client_of_either_era_uses_a_server_of_either_era(front, mode, era):
    user = Answers()
    with trio.fail_after(60):
        async with client_on(front, ["--", *ASKING, f"era={era}"], mode, user) as client:
            assert client.protocol_version == MODES[mode]
            assert mode != "legacy" or client.server_info.name == "asking"  # who pins a version does not ask
            assert {tool.name for tool in (await client.list_tools()).tools} >= {"greet", "insist", "talk"}
            assert (await client.call_tool("greet", {})).content[0].text == "hello Ann, 7"
            assert user.asked == ["What is your name?", "How old is Ann?"]
            assert (await client.call_tool("talk", {"lines": 2})).content[0].text == "talked"
            if mode == "legacy":  # a newer client asks for logs call by call
                assert [line for line in user.heard if line != "noise"] == ["line 0", "line 1"]
            unknown = await client.call_tool("nothing", {})
            assert (unknown.is_error, unknown.content[0].text) == (True, "Unknown tool: nothing")  # the server's words


async def test_a_server_is_spoken_to_as_its_only_client_would():
    """One of both eras whose tool asks by requests alone: without a gateway, too, an older client would be asked."""
    user = Answers()
    with trio.fail_after(60):
        async with client_on("stdio", ["--", *ASKING, "era=new"], "legacy", user) as client:
            assert (await client.call_tool("insist", {})).content[0].text == "hello Ann"
        async with client_on("stdio", ["--", *ASKING, "era=new"], "2026-07-28", user) as client:
            with pytest.raises(MCPError, match="no back-channel"):
                await client.call_tool("insist", {})
    assert user.asked == ["What is your name?"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("front", FRONTS)
async def test_the_session_of_a_client_outlasts_its_server(front, mode, tmp_path):
    journal = Journal(tmp_path / "journal")
    command = ["--", sys.executable, "-I", "-S", str(LAB), f"journal={journal.path}"]
    with trio.fail_after(60):
        async with client_on(front, command, mode) as client:
            assert (await client.call_tool("echo", {"text": "one"})).content[0].text == "one"
            lost = await client.call_tool("crash", {})
            assert lost.is_error
            assert "The tool may have acted" in lost.content[0].text
            assert "The server restarts in 2 s; the next call waits for it." in lost.content[0].text
            assert (await client.call_tool("echo", {"text": "two"})).content[0].text == "two"
    assert journal.count("start") == 2


async def test_all_servers_are_one_and_each_is_itself(tmp_path):
    servers = {name: {"command": sys.executable, "args": ["-I", "-S", str(LAB)]} for name in ("first", "second")}
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    with trio.fail_after(60):
        async with served_over_http("--config", str(config)) as (_, url), Client(url) as everything:
            async with Client(f"{url}/second") as one:
                names = {tool.name for tool in (await one.list_tools()).tools}
                assert (await one.call_tool("echo", {"text": "x"})).content[0].text == "x"
            listed = {tool.name for tool in (await everything.list_tools()).tools}
            while len(listed) < 2 * len(names):
                await trio.sleep(0.1)
                listed = {tool.name for tool in (await everything.list_tools()).tools}
            assert listed == {f"{server}_{name}" for server in servers for name in names}
            assert (await everything.call_tool("first_echo", {"text": "y"})).content[0].text == "y"
            with pytest.raises(MCPError, match="no tool named 'third_echo'"):
                await everything.call_tool("third_echo", {})
            async with httpx2.AsyncClient(timeout=60) as http:
                assert (await http.post(f"{url}/third", json={})).status_code == 404
                figures = (await http.get(url.replace("/mcp", "/metrics"))).text
                assert 'mcp_nursery_server_connected{server="first"} 1.0' in figures.splitlines()


def headers_of(tool):
    """Of one call since 2026-07-28."""
    own = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": tool}
    return own | {"accept": "application/json, text/event-stream"}


def call_of(tool, **arguments):
    envelope = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{key}": value for key, value in envelope.items()}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def test_sigterm_lets_a_call_end_and_is_no_failure(tmp_path):
    journal, results = Journal(tmp_path / "journal"), []
    lab = [sys.executable, "-I", "-S", str(LAB), f"journal={journal.path}"]
    with trio.fail_after(60):
        async with served_over_http("--", *lab) as (process, url), httpx2.AsyncClient(timeout=60) as http:

            async def call():
                results.append(await http.post(url, headers=headers_of("commit"), json=call_of("commit", takes=1)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await eventually(lambda: journal.count("commit"))
                process.send_signal(signal.SIGTERM)
        await eventually(lambda: process.returncode is not None)
    assert results[0].json()["result"]["content"][0]["text"] == "committed"
    assert process.returncode == 0


HOSTS = {
    "127.0.0.1": 200,
    "localhost:1": 200,
    "LOCALHOST": 200,
    "[::1]:80": 200,
    "evil.example": 421,
    "127.0.0.1.evil.example": 421,
    "[::1].evil.example": 421,
    "[::1": 421,
    "": 421,
}
ORIGINS = {
    "http://localhost:3000": 200,
    "https://[::1]": 200,
    "http://evil.example": 403,
    "http://localhost.evil.example": 403,
    "http://[::1].evil.example": 403,
    "null": 403,
    "localhost": 403,
}


async def test_a_page_of_another_site_reaches_nothing():
    """Whatever name it has had a browser resolve to this machine."""
    call = {"headers": headers_of("echo"), "json": call_of("echo", text="x")}
    with trio.fail_after(60):
        async with (
            served_over_http("--", sys.executable, "-I", "-S", str(LAB)) as (_, url),
            httpx2.AsyncClient(timeout=60) as http,
        ):

            async def status(**headers):
                return (await http.post(url, headers=call["headers"] | headers, json=call["json"])).status_code

            assert {host: await status(host=host) for host in HOSTS} == HOSTS
            assert {origin: await status(origin=origin) for origin in ORIGINS} == ORIGINS


def test_every_line_of_a_log_of_json_is_an_object_with_its_time():
    """Of the gateway, of its server, of the command itself, and its error."""
    cannot = [sys.executable, "-c", "import sys; print('a word', file=sys.stderr); sys.exit(3)"]
    command = [PROGRAM, "serve", "--log-format", "json", "--ask", "other/*", "--restart", "temporary"]
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    hello = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}) + "\n"
    run = partial(subprocess.run, input=hello, capture_output=True, text=True, check=False, timeout=60)
    served = run([*command, "--name", "my.server", "--", *cannot])
    refused = run([*command, "--hold", "-1", "--", *cannot])
    lines = [json.loads(line) for line in (served.stderr + refused.stderr).splitlines()]
    assert all(datetime.fromisoformat(each["time"]).tzinfo is not None for each in lines)
    assert [(each["level"], each["logger"], each.get("server")) for each in lines] == [
        ("WARNING", "mcp_nursery.cli", None),
        ("INFO", "mcp_nursery.stderr", "my.server"),
        ("WARNING", "mcp_nursery.supervisor.transition_log", "my.server"),
        ("ERROR", "mcp_nursery.cli", None),
    ]


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("8000", "must be HOST:PORT"),
        ("0.0.0.0:0", "--token-file FILE or --oauth-issuer URL is needed"),
        ("127.0.0.1:x", "must be HOST:PORT"),
    ],
)
def test_an_address_that_cannot_be_served_is_refused(address, problem):
    said = subprocess.run(
        [PROGRAM, "serve", "--http", address, "--", "true"], capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    assert problem in said.stderr
    assert len(said.stderr.splitlines()) == 1
