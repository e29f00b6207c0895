"""Claude Code, Codex, Gemini CLI and opencode: the first request of each to its model has all tools of all servers."""

import json
import re
import tempfile
import tomllib
from pathlib import Path

import pytest
import trio
from attrs import evolve

from mcp_nursery.supervisor.gateway.gateway import LIST_GATE

from ..lab.timely import in_time, timely
from . import installing
from .fake_model import fake_model
from .hosts import ALLOWED, HOSTS, PROGRAM, WAYS, install, run, servers, tools_of

pytestmark = [pytest.mark.interop, pytest.mark.night]

CRASH_PROOF = Path(__file__).parents[2] / "docs" / "howto" / "crash-proof.md"

TRIED = [
    *((host, WAYS[-1]) for host in HOSTS),
    *((host, way) for host in HOSTS if host.name == "gemini" for way in WAYS[:-1]),
]
"""Each host after `install --adopt`, which writes its own kind of file, and all ways with the one that starts first.
`python -m tests.interop.hosts` tries all ways with all."""


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
