"""`mcp-nursery import`, `check --schema`, `--no-project`."""

import json
import stat

import pytest

from mcp_nursery.supervisor import load_config

from ...lab.command_line import LAB

SECRET = {"command": "x", "env": {"T": "${env:PLANTED}", "L": "literal", "C": "!echo a"}, "envFile": ".e"}

BOX = {"type": "docker", "image": "mcp/time", "args": ["--utc"], "env": {"T": "${env:PLANTED}"}, "idleSeconds": 60}


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    for name, document in {
        ".cursor/mcp.json": {
            "mcpServers": {
                "both": {"command": "cursor"},
                "secret": SECRET,
                "box": BOX,
            }
        },
        ".gemini/settings.json": {
            "mcpServers": {
                "both": {"command": "gemini"},
                "far": {"httpUrl": "https://x/$PLANTED", "timeout": 1500, "includeTools": ["a"], "trust": True},
                "here": {"command": "x", "args": ["${workspaceFolder}"]},
            }
        },
        ".config/Code/User/mcp.json": {"servers": {"asks": {"command": "x", "env": {"K": "${input:key}"}}}},
        "opencode.json": {"mcp": {"other": {"command": ["never"]}}},
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(document))
    (folder / ".codex").mkdir()
    (folder / ".codex" / "config.toml").write_text("[oops")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PLANTED", "hunter2")
    monkeypatch.setattr("sys.platform", "linux")
    return folder


def test_what_is_found(cli, home, user_folders, tmp_path, monkeypatch):
    """K1, L17: in our words, nothing resolved, and what could not be carried over is said."""
    monkeypatch.chdir(tmp_path)
    ran = cli("import")
    assert ran.code == 0
    own = user_folders / "config" / "mcp-nursery" / "servers.json"
    assert json.loads(own.read_text()) == {
        "mcpServers": {
            "both": {"command": "cursor"},
            "secret": SECRET,
            "box": BOX,
            "far": {"url": "https://x/${PLANTED}", "callSeconds": 1.5, "tools": {"allow": ["a"]}},
            "here": {"command": "x", "args": ["${workspaceFolder}"]},
        }
    }
    assert "hunter2" not in own.read_text() + ran.out + ran.err
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert f"written to {own}" in ran.out
    for said in (
        "the input 'key' has no value",
        "unknown key 'trust' is ignored",
        "overrides it",
        "not TOML",
        "${workspaceF",
    ):
        assert sum(said in line for line in ran.err.splitlines()) == 1
    config = load_config(own)
    assert {spec.name for spec in config.servers} == {"both", "secret", "box", "far", "here"}
    assert config.warnings == ()


def test_nothing_is_written_over_unasked(cli, home, tmp_path):
    target = tmp_path / "f.json"
    target.write_text("{}")
    ran = cli("import", "--to", target)
    assert (ran.code, target.read_text()) == (2, "{}")
    assert ran.err == f"mcp-nursery: {target}: exists already; --force overwrites it, --to FILE writes elsewhere\n"
    ran = cli("import", "--to", target, "--force", "--json")
    assert ran.code == 0
    assert ran.json["file"] == str(target)
    assert ran.json["servers"] == ["both", "box", "far", "here", "secret"]
    assert len(ran.json["left_out"]) == len(ran.err.splitlines())
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["f.json"]


def test_a_link_stays_one(cli, home, tmp_path):
    """People keep their files elsewhere, and link to them."""
    (tmp_path / "kept.json").write_text("{}")
    link = tmp_path / "link.json"
    link.symlink_to("kept.json")
    assert cli("import", "--to", link, "--force").code == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "kept.json").read_text())["mcpServers"]


def test_our_own_file_is_no_source(cli, home, user_folders):
    """What is written over is gone, as --force says."""
    own = user_folders / "config" / "mcp-nursery" / "servers.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({"mcpServers": {"old": LAB}}))
    assert cli("import", "--force").code == 0
    assert "old" not in json.loads(own.read_text())["mcpServers"]


def test_files_that_are_named(cli, home, tmp_path):
    """A project's file has to be named: what is written is trusted."""
    target = tmp_path / "f.json"
    assert cli("import", home / "opencode.json", "--to", target).code == 0
    assert json.loads(target.read_text()) == {"mcpServers": {"other": {"command": "never", "args": []}}}
    ran = cli("import", home / "none.json", "--to", target, "--force")
    assert (ran.code, "cannot be read" in ran.err) == (2, True)
    assert "never" in target.read_text()


def test_nothing_to_import(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    ran = cli("import", "--to", tmp_path / "f.json")
    assert (ran.code, (tmp_path / "f.json").exists()) == (2, False)
    assert "nothing to import" in ran.err


def test_where_nobody_can_write(cli, home, tmp_path):
    (tmp_path / "file").write_text("")
    ran = cli("import", "--to", tmp_path / "file" / "f.json")
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1


def test_the_schema(cli):
    ran = cli("check", "--schema")
    assert ran.code == 0
    assert "mcpServers" in json.loads(ran.out)["properties"]


def test_a_project_that_is_left_alone(cli, tmp_path, monkeypatch):
    """K4."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"lab": LAB}}))
    assert [server["name"] for server in cli("check", "--json").json["servers"]] == ["lab"]
    for command in (["check"], ["status"], ["tools"], ["call", "x"], ["fan-out", "x"], ["run"]):
        ran = cli(*command, "--no-project")
        assert (ran.code, "no configuration" in ran.err) == (2, True)


@pytest.mark.parametrize("command", ["status", "tools", "run", "call x", "fan-out x"])
def test_a_project_whose_only_file_is_broken(cli, tmp_path, monkeypatch, command):
    """K3: a command that is left without any server has failed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".mcp.json").write_text("{")
    ran = cli(*command.split())
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith(f"mcp-nursery: {tmp_path}/.mcp.json: not JSON")


def test_a_project_with_a_broken_file_and_another(cli, tmp_path, monkeypatch):
    """K3: the broken one is told, and the other's servers work."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".mcp.json").write_text("{")
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / "mcp.json").write_text(json.dumps({"servers": {"lab": LAB}}))
    ran = cli("tools", "--trust", "--json")
    assert (ran.code, {tool["server"] for tool in ran.json["tools"]}) == (0, {"lab"})
    assert ran.err.startswith(f"mcp-nursery: {tmp_path}/.mcp.json: not JSON")


def test_check_tells_who_goes_first(cli, config):
    """K4: where a server comes from, and what it stands before."""
    first, second = config("a.json", lab=LAB), config("b.json", lab=LAB)
    ran = cli("check", "--config", first, "--config", second)
    assert ran.code == 0
    assert ran.err == f"mcp-nursery: mcp:lab via {second} overrides mcp:lab via {first}\n"


def test_consent_to_several_files_of_a_project(cli, tmp_path, monkeypatch):
    """K3, K7: one that is broken is told, and the others are asked about."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / "mcp.json").write_text(json.dumps({"servers": {"code": LAB}}))
    (tmp_path / ".mcp.json").write_text("{")
    ran = cli("trust", "--yes", "--json")
    assert ran.code == 0
    assert ran.err.startswith(f"mcp-nursery: {tmp_path}/.mcp.json: not JSON")
    assert [(each["name"], each["file"]) for each in ran.json["trusted"]] == [("code", f"{tmp_path}/.vscode/mcp.json")]
    (server,) = cli("check", "--json").json["servers"]
    assert (server["name"], server["trusted"]) == ("code", True)
    (tmp_path / ".vscode" / "mcp.json").unlink()
    assert cli("trust", "--yes").code == 2


def test_what_is_off_there_is_off_here(cli, tmp_path):
    """K4: also where another part of its file says so."""
    source = tmp_path / ".gemini" / "settings.json"
    source.parent.mkdir()
    servers = {"on": {"command": "x"}, "off": {"command": "x"}, "said": {"command": "x", "disabled": True}}
    source.write_text(json.dumps({"mcp": {"excluded": ["off"]}, "mcpServers": servers}))
    assert cli("import", source, "--to", tmp_path / "f.json").code == 0
    on = {spec.name: spec.enabled for spec in load_config(tmp_path / "f.json").servers}
    assert on == {"on": True, "off": False, "said": False}
