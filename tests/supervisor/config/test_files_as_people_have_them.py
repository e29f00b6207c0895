"""K1, K2, K3: what hosts take beyond their examples, loads here to what they would do."""

import json
import os

import pytest

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor import load_config
from mcp_nursery.supervisor.config.deferred import DeferredTransport
from mcp_nursery.supervisor.config.loader import load_project
from mcp_nursery.supervisor.transports import HttpTransport, SseTransport, StdioTransport, UnusableTransport


@pytest.fixture
def load(tmp_path):
    """Reads a file of that content at that place, by name."""

    def write(place, content):
        file = tmp_path / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return load_config(file)

    return write


@pytest.mark.parametrize(
    ("place", "key", "root"),
    [
        (".cursor/mcp.json", "url", "mcpServers"),
        (".windsurf/mcp_config.json", "serverUrl", "mcpServers"),
        (".windsurf/mcp_config.json", "url", "mcpServers"),
        ("fastmcp.json", "url", "mcpServers"),
    ],
)
def test_hosts_that_find_out_how_a_url_is_reached(load, place, key, root):
    """K2: a path says so; a `type` goes first, and elsewhere in a URL it says nothing."""
    entries = {
        "a": {key: "https://x/sse"},
        "b": {key: "https://x/v1/sse/?k=1"},
        "c": {key: "https://x/mcp?old=/sse"},
        "d": {key: "https://x/assess"},
        "e": {key: "https://x/sse", "type": "http"},
        "f": {"transport": "stdio", "command": "x"} if place == "fastmcp.json" else {"command": "x"},
    }
    kinds = [type(spec.transport) for spec in load(place, {root: entries}).servers]
    assert kinds == [SseTransport, SseTransport, HttpTransport, HttpTransport, HttpTransport, StdioTransport]


def test_numbers_and_nulls_in_the_environment_of_vscode(load):
    """K1: and no more than those."""
    env = {"A": 1, "B": 2.0, "C": 2.5, "D": None, "E": "x", "F": -3}
    (good, bad, odd) = load(
        ".vscode/mcp.json",
        {"servers": {"s": {"command": "x", "env": env}, "t": {"command": "x", "env": {"A": True}}, "u": {"env": []}}},
    ).servers
    assert good.transport.env == {"A": "1", "B": "2", "C": "2.5", "E": "x", "F": "-3"}
    assert "field 'env': the value of 'A' must be text, not a boolean" in str(bad.transport.error)
    assert isinstance(odd.transport, UnusableTransport)


CODEX = """
[mcp_servers.s]
command = "x"
env_vars = ["PLAIN", { name = "MINE" }, { name = "HERE", source = "local" }]
enabled_tools = ["a"]
[mcp_servers.s.tools.a]
approval_mode = "approve"
[mcp_servers.far]
command = "x"
env_vars = [{ name = "THERE", source = "remote" }]
[mcp_servers.odd]
command = "x"
env_vars = [{ source = "local" }]
[mcp_servers.ours]
command = "x"
[mcp_servers.ours.tools]
deny = ["b"]
enabled = { c = false }
"""


def test_all_that_codex_takes(load):
    """K1: variables as objects; what it asks before a tool is called is warned of, and touches nothing."""
    config = load(".codex/config.toml", CODEX)
    spec, far, odd, ours = config.servers
    assert spec.transport.env == {name: f"${{env:{name}:-}}" for name in ("PLAIN", "MINE", "HERE")}
    assert spec.allow == ("a",)
    assert spec.extra == {"tools.*.approval_mode": {"a": {"approval_mode": "approve"}}}
    assert [line.partition("server ")[2] for line in config.warnings] == [
        "'s': unknown key 'tools.*.approval_mode' is ignored"
    ]
    assert "field 'env_vars': a variable of another machine cannot be passed on" in str(far.transport.error)
    assert "field 'env_vars': item 1 must be text, not null" in str(odd.transport.error)
    assert (ours.deny, ours.disabled_tools) == (("b",), ("c",))


@pytest.mark.parametrize(
    ("rules", "on"),
    [
        ({}, "abc"),
        ({"allowed": ["a", "b"]}, "ab"),
        ({"excluded": ["b"]}, "ac"),
        ({"allowed": ["a", "b"], "excluded": ["b"]}, "a"),
        ({"allowed": []}, ""),
        ({"allowed": "a", "excluded": None}, "abc"),
        ("odd", "abc"),
    ],
)
def test_servers_that_gemini_leaves_off(load, rules, on):
    """K4: what its user does not want there is not started here either."""
    servers = {"a": {"command": "x"}, "b": {"command": "x"}, "c": {"httpUrl": "https://x"}}
    found = load(".gemini/settings.json", {"mcp": rules, "mcpServers": servers}).servers
    assert "".join(spec.name for spec in found if spec.enabled) == on
    assert [spec.name for spec in found] == ["a", "b", "c"]


def test_both_versions_of_opencode_in_one_file(load):
    """K1: OpenCode 2 reads entries of 1 beside its own, and leaves out those that only switch something off."""
    local = {"type": "local", "command": ["x"]}
    config = load(
        "opencode.json",
        {
            "mcp": {
                "timeout": {"startup": 1},
                "old": local,
                "offered": {"enabled": False},
                "both": {"type": "local", "command": ["old"]},
                "servers": {"new": {**local, "disabled": True}, "both": {"type": "local", "command": ["new"]}},
            }
        },
    )
    found = {spec.name: (spec.transport.command, spec.enabled) for spec in config.servers}
    assert found == {"old": ("x", True), "both": ("new", True), "new": ("x", False)}
    config = load("opencode.json", {"mcp": {"offered": {"enabled": False}, "timeout": local, "on": {"enabled": True}}})
    assert [(spec.name, type(spec.transport)) for spec in config.servers] == [
        ("timeout", StdioTransport),
        ("on", UnusableTransport),
    ]


@pytest.mark.parametrize(
    ("timeout", "connect", "call"),
    [
        (5000, 5, None),
        ({"startup": 1000, "catalog": 500, "execution": 250}, 1.5, 0.25),
        ({"startup": 1000}, 1, None),
        ({"catalog": 500, "startup": None}, 0.5, None),
        ({"execution": 250}, None, 0.25),
        ({}, None, None),
    ],
)
def test_limits_of_opencode(load, timeout, connect, call):
    """K1: milliseconds; a connect of ours takes in the listing."""
    (spec,) = load("opencode.json", {"mcp": {"s": {"command": ["x"], "timeout": timeout}}}).servers
    assert (spec.connect_timeout, spec.call_timeout) == (connect, call)


def test_a_limit_of_opencode_that_is_none(load):
    """K3."""
    config = load("opencode.json", {"mcp": {"s": {"command": ["x"], "timeout": {"catalog": "1", "odd": 1}}}})
    (spec,) = config.servers
    assert "server 's': field 'timeout.catalog': must be milliseconds, not text" in str(spec.transport.error)


@pytest.mark.parametrize(
    ("place", "root"),
    [
        (".vscode/mcp.json", "servers"),
        (".codex/config.toml", "mcp_servers"),
        ("opencode.json", "mcp"),
        (".mcp.json", "mcpServers"),
        ("any.json", "mcpServers"),
    ],
)
def test_a_file_without_servers_names_the_key_its_host_has(load, place, root):
    """K3."""
    with pytest.raises(ConfigError, match=f"field '{root}': missing"):
        load(place, "" if place.endswith("toml") else "{}")


def test_a_file_of_notepad(tmp_path):
    """K3: one line that says what to do."""
    file = tmp_path / "f.json"
    file.write_text('{"mcpServers": {}}', encoding="utf-16")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value) == f"{file}: not UTF-8 (line 1); save it as UTF-8"


def test_a_relative_folder_is_one_of_the_project(tmp_path):
    """K1: as its host would have it, wherever in the project one stands; of a file that is named, it is as ever."""
    folder = tmp_path / "p${HOME}"
    (folder / ".vscode").mkdir(parents=True)
    file = folder / ".vscode" / "mcp.json"
    entries = {
        "plain": {"command": "x", "cwd": "sub"},
        "variable": {"command": "x", "cwd": "sub", "env": {"A": "${A}"}},
        "absolute": {"command": "x", "cwd": "/srv"},
        "none": {"command": "x"},
        "far": {"url": "https://x"},
    }
    file.write_text(json.dumps({"servers": entries}))
    plain, variable, absolute, none, _ = load_project(file).servers
    assert [spec.transport.cwd for spec in (plain, absolute, none)] == [os.path.join(folder, "sub"), "/srv", None]
    assert isinstance(variable.transport, DeferredTransport)
    assert (variable.transport.transport.cwd, variable.transport.workspace) == ("sub", str(folder))
    assert load_config(file).servers[0].transport.cwd == "sub"


def test_what_is_null_within_a_nested_transport(load):
    """K1: counts as absent there too."""
    entry = {"transport": {"type": "stdio", "command": "x", "url": None, "args": None}, "env": {"A": "1"}}
    (spec,) = load(".codebuddy/mcp.json", {"mcpServers": {"s": {**entry, "cwd": None}}}).servers
    assert spec.transport == StdioTransport("x", env={"A": "1"})


@pytest.mark.parametrize(
    ("said", "on"), [({}, True), ({"enabled": False}, False), ({"disabled": True}, False), ({"disabled": False}, True)]
)
def test_what_is_off_stays_off_when_it_is_broken(load, said, on):
    """K3, K4: its error is told all the same."""
    (spec,) = load("f.json", {"mcpServers": {"s": {"command": 1, **said}}}).servers
    assert (spec.enabled, type(spec.transport)) == (on, UnusableTransport)
