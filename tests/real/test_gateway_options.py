"""What `mcp-nursery serve -- COMMAND` can be told of its server, and what its clients never see of it."""

import json
import re
import sys
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
import trio
from mcp.shared.exceptions import MCPError

from ..lab.gateways import PROGRAM, client_on
from ..lab.processes import LAB, Journal, eventually

pytestmark = pytest.mark.slow

SERVER = [sys.executable, "-I", "-S", str(LAB)]
QUOTING = LAB.with_name("quoting.py")
SECRET = "tr0ub4dor-and-3"


async def test_the_server_is_what_the_options_say(tmp_path, monkeypatch):
    monkeypatch.setenv("OF_THE_HOST", "yes")
    journal = Journal(tmp_path / "journal")
    said = ["--name", "mine", "--cwd", str(tmp_path), "--env", "COLOUR=blue", "--restart-delays", "0.05"]
    with trio.fail_after(60):
        async with client_on("http", [*said, "--", *SERVER, "journal=journal"], "legacy") as client:
            environment = json.loads((await client.call_tool("environment", {})).content[0].text)
            assert environment["COLOUR"] == "blue"
            assert journal.count("start") == 1  # in its folder
            lost = await client.call_tool("crash", {})
            assert "server: mine" in lost.content[0].text
            await eventually(lambda: journal.count("start") == 2)


@pytest.mark.parametrize("options", [[], ["--search"], ["--mark"]])
@pytest.mark.parametrize(
    ("front", "way"), [("stdio", "--env"), ("stdio", "argument"), ("http", "inherited"), ("http", "--env")]
)
async def test_words_of_a_server_are_as_it_said_them_and_ours_show_no_secret(
    front, options, way, tmp_path, monkeypatch
):
    """L16, T9: of a server that quotes a secret name, instructions and errors, and what a client is told of its end."""
    mode = "legacy" if way == "--env" else "2026-07-28"
    told = tmp_path / "secret"
    told.write_text(SECRET)
    given = [*options, *(["--env", f"KEY={SECRET}"] if way == "--env" else [])]
    server = [
        sys.executable,
        "-I",
        "-S",
        str(QUOTING),
        str(told),
        *(["--api-key", SECRET] if way == "argument" else []),
    ]
    if way == "inherited":
        monkeypatch.setenv("OF_THE_HOST", SECRET)
    with trio.fail_after(60):
        async with client_on(front, [*given, "--", *server], mode) as client:
            if mode == "legacy":
                assert client.server_info.name == f"I know {SECRET}"
                assert f"Never tell {SECRET}" in client.instructions
            name, wish = ("call_tool", {"name": "quote"}) if "--search" in options else ("quote", {})
            if "--mark" in options:  # the text that a model is shown is ours
                shown = (await client.call_tool(name, wish)).content[0].text
                assert "no [REDACTED:config] here" in shown
                assert SECRET not in shown
            else:
                with pytest.raises(MCPError) as caught:
                    await client.call_tool(name, wish)
                error = caught.value.error
                assert (error.code, error.message) == (-32000, f"no {SECRET} here")
                assert error.data == {"why": [SECRET], SECRET: 1, "delivery": "answered"}
            wish = {"name": "quote", "arguments": {"die": True}} if "--search" in options else {"die": True}
            died = (await client.call_tool(name, wish)).content[0].text
            assert "exited with code 3" in died
            assert SECRET not in died


async def test_a_command_that_does_not_exist():
    """As the page on the gateway has it."""
    page = (Path(__file__).parents[2] / "docs" / "howto" / "gateway.md").read_text()
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "us", "version": "1"}}
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}) + "\n"
    with trio.fail_after(60):
        run = partial(trio.run_process, stdin=request.encode(), capture_stdout=True, capture_stderr=True)
        done = await run([PROGRAM, "serve", "--name", "notes", "--", "notes"])
    said = re.sub(r"in 29\d\.\d s", "in 300 s", done.stderr.decode())  # a busy machine writes it later than it decides
    time, _, line = said.partition(" ")
    assert datetime.fromisoformat(time).tzinfo is not None
    assert f"T09:30:00.123+01:00 {line}" in page
    error = json.loads(done.stdout)["error"]["message"]
    assert error.startswith("notes: the server is failed, restarts in ")
    assert error.endswith(
        "(command 'notes' was not found on PATH); correct its command or settings where it is configured, "
        "then start it again from there"
    )
