"""What `mcp-nursery serve -- COMMAND` can be told of its server, and what its clients never see of it."""

import json
import sys

import pytest
import trio
from mcp.shared.exceptions import MCPError

from .gateways import client_on
from .harness import LAB, Journal, eventually

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
@pytest.mark.parametrize(("front", "way"), [("stdio", "--env"), ("stdio", "argument"), ("http", "inherited")])
async def test_no_error_shows_a_secret(front, options, way, tmp_path, monkeypatch):
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
            said = [str(client.instructions), str(client.server_info)] if mode == "legacy" else []
            for arguments in ({}, {"die": True}):
                for name, wish in (("quote", arguments), ("call_tool", {"name": "quote", "arguments": arguments})):
                    try:
                        said.append(str(await client.call_tool(name, wish)))
                    except MCPError as error:
                        said.append(f"{error} {error.error}")
            assert "REDACTED" in "".join(said)
            assert SECRET not in "".join(said)
