"""Claude Code, Codex, Gemini CLI, opencode and Copilot CLI: the first request of each to its model has all tools of all
servers, and a server that dies is there again at the next call."""

import json
import os
import re
import signal
import sys
import tempfile
import tomllib
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import evolve

from mcp_nursery.supervisor.gateway.gateway import LIST_GATE

from ..lab.gateways import served_over_http
from ..lab.processes import LAB, Journal
from ..lab.timely import in_time, timely
from . import installing
from .fake_model import Turn, fake_model
from .hosts import ALLOWED, HOSTS, PROGRAM, WAYS, install, own_file, run, servers, tools_of

pytestmark = [pytest.mark.interop, pytest.mark.night]

CRASH_PROOF = Path(__file__).parents[2] / "docs" / "howto" / "crash-proof.md"

TRIED = [
    *((host, host.ways[-1]) for host in HOSTS),
    *((host, way) for host in HOSTS if host.name == "gemini" for way in WAYS[:-1]),
]
"""Each host after `install --adopt`, which writes its own kind of file, and all ways with the one that starts first.
`python -m tests.interop.hosts` tries all ways with all."""

ENDURED = [(host, way) for host in HOSTS for way in ("serve --", "serve --config", "serve --http")]
"""Over HTTP the gateway has a file, too: which form it has makes no difference to how a host reaches it."""


@pytest.fixture(scope="module")
def behind(tmp_path_factory):
    """Three servers, of which one is late, and what they have."""
    with installing.needed_by_test("one of the servers"):
        commands = servers(tmp_path_factory.mktemp("servers"))
    return commands, tools_of(commands)


@pytest.mark.parametrize(("host", "way"), TRIED, ids=[f"{host.name}-{way}" for host, way in TRIED])
@timely
async def test_the_model_is_told_of_all_tools_and_calls_one(host, way, behind, tmp_path):
    commands, tools = behind
    with installing.needed_by_test(host.name):
        host.command()
    home = Path(tempfile.mkdtemp(dir=tmp_path))
    with fake_model() as model:
        install(host, way, home, commands, model.url)
        for start in ("cold", "warm"):
            seen = await trio.to_thread.run_sync(run, host, home, tools, model)
            if seen.tools != tools:
                in_time(seen.seconds, LIST_GATE)  # on a machine that is so busy the gate may have run out
            assert seen.tools == tools, (start, tools - seen.tools, seen.said)
            assert seen.answered, (start, seen.said)


@pytest.fixture
def lab(tmp_path):
    """A server that can be killed, and its journal."""
    journal = Journal(tmp_path / "journal")
    return {"lab": [sys.executable, "-I", "-S", str(LAB), f"journal={journal.path}"]}, journal


@asynccontextmanager
async def installed(host, way, home, commands, url):
    """The host has been told of the servers, behind a gateway that it starts, or reaches by its URL."""
    if way != "serve --http":
        install(host, way, home, commands, url, stable_after=0.01)
        yield
        return
    async with served_over_http("--config", str(own_file(home, commands, stable_after=0.01))) as (_, gateway):
        install(host, None, home, {"mcp-nursery": gateway}, url)
        yield


@pytest.mark.parametrize(("host", "way"), ENDURED, ids=[f"{host.name}-{way}" for host, way in ENDURED])
@timely
async def test_the_host_notices_nothing_of_a_death_between_turns_and_is_told_of_one_in_a_call(host, way, lab, tmp_path):
    """A call that finds its server gone is answered at most a second later than the server takes to start. One that its
    server has died of is executed once."""
    commands, journal = lab
    with installing.needed_by_test(host.name):
        host.command()
    journal.clear()

    def kill():
        os.kill(int(journal.details("start")[-1]), signal.SIGKILL)

    home = Path(tempfile.mkdtemp(dir=tmp_path))
    turns = (
        Turn("echo", {"text": "alive"}),
        Turn("echo", {"text": "killed"}, before=kill),
        Turn("commit", {"code": 9}),
        Turn("echo", {"text": "revived"}),
        Turn("echo", {"text": "killed again"}, before=kill),
    )
    with fake_model() as model:
        async with installed(host, way, home, commands, model.url):
            seen = await trio.to_thread.run_sync(run, host, home, set(), model, *turns)
        assert len(model.told) == len(turns), seen.said
        for told, turn in zip(model.told, turns, strict=True):
            assert turn.arguments.get("text", "the server may have acted") in told.result
        assert (journal.count("commit"), journal.count("start")) == (1, 4)
        undisturbed = model.told[0].took
        for number, told in ((1, model.told[1]), (3, model.told[4])):
            began = journal.times("start")[number]
            listed = next(at for at in journal.times("list") if at > began)
            in_time(told.took - undisturbed, 1 + listed - began)


RESTART = {"claude-code"}
"""Hosts that start a server again by themselves, at the call after the one that has failed."""


@pytest.mark.parametrize("host", HOSTS, ids=[host.name for host in HOSTS])
def test_what_the_host_itself_makes_of_failures(host, lab, tmp_path):
    """The model is told the text of each, once, and goes on; a server that dies without us is gone. The documentation
    has a table of this."""
    commands, journal = lab
    with installing.needed_by_test(host.name):
        host.command()
    turns = (
        Turn("failure", {"text": "it went wrong"}),
        Turn("error", {"code": -32000, "message": "it broke"}),
        Turn("commit", {"code": 9}),
        Turn("echo"),
    )
    with fake_model() as model:
        install(host, None, tmp_path, commands, model.url)
        seen = run(host, tmp_path, set(), model, *turns)
    assert seen.said.startswith("0\n")
    failed, broken, lost, *_ = (told.result for told in model.told)
    assert "it went wrong" in failed
    assert "it broke" in broken
    assert re.search("closed", lost, re.IGNORECASE)
    assert [journal.count(each) for each in ("failure", "error", "commit")] == [1, 1, 1], "none is called twice"
    assert journal.count("start") == 1 + (host.name in RESTART)


def test_codex_has_the_tools_of_the_entry_that_the_documentation_shows(behind, tmp_path):
    """Without a key of that entry it asks its model before they are there."""
    commands, tools = behind
    (host,) = [host for host in HOSTS if host.name == "codex"]
    with installing.needed_by_test(host.name):
        host.command()
    (shown,) = re.findall(r"```toml\n(.*?)```", CRASH_PROOF.read_text(), re.DOTALL)
    entries = {}
    for name, command in commands.items():
        (entry,) = tomllib.loads(shown)["mcp_servers"].values()
        assert (entry["command"], entry["args"][:2]) == ("mcp-nursery", ["serve", "--"])
        entries[name] = entry | {"command": PROGRAM, "args": [*entry["args"][:2], *command]}
    with fake_model() as model:
        settings = host.settings({}, model.url) + "".join(
            f"[mcp_servers.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
            for name, entry in entries.items()
        )
        (tmp_path / host.file).parent.mkdir()
        (tmp_path / host.file).write_text(settings)
        for start in ("cold", "warm"):
            seen = run(host, tmp_path, tools, model)
            assert seen.tools == tools, (start, tools - seen.tools, seen.said)
            assert seen.answered, (start, seen.said)


def test_claude_code_names_all_tools_where_the_model_has_to_search_them(behind, tmp_path):
    commands, tools = behind
    (host,) = [host for host in HOSTS if host.name == "claude-code"]
    with installing.needed_by_test(host.name):
        host.command()
    searching = evolve(host, environment=lambda url: {**host.environment(url), "ENABLE_TOOL_SEARCH": "true"})
    with fake_model() as model:
        install(searching, "serve --config", tmp_path, commands, model.url)
        seen = run(searching, tmp_path, tools, model)
        (_, first), *_ = [(dialect, body) for dialect, body in model.asked if any(dialect.tools(body))]
    told = json.dumps(first)
    names = {f"{ALLOWED[-1]}__{tool.replace(' ', '_')}" for tool in tools}
    assert {name for name in names if name not in told} == set(), seen.said
