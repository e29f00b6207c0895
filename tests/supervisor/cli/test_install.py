"""`mcp-nursery install`: what is shown, asked and told, and that nothing is written without a yes."""

import json
import os
import sys
from pathlib import Path

import pytest

from mcp_nursery.supervisor.cli import install as install_module

from ...lab.command_line import LAB

TEXT = f"""{{
  "mcpServers": {{
    "lab": {json.dumps(LAB)},
    "odd": {{"command": "x\u202e", "env": {{"A": "!b"}}}}
  }}
}}
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return folder


@pytest.fixture
def file(home):
    file = home / ".claude.json"
    file.write_text(TEXT)
    return file


def test_there_and_back(cli, file, home):
    ran = cli("install", "claude-code", "--yes")
    assert ran.code == 0
    entry = json.loads(file.read_text())["mcpServers"]["mcp-nursery"]
    assert (os.path.basename(entry["command"]), entry["args"]) == ("mcp-nursery", ["serve", "--no-project"])
    assert os.path.isabs(entry["command"])
    assert os.access(entry["command"], os.X_OK)
    assert f"--- {file}\n+++ {file}\n@@ -1,6 +1,7 @@\n" in ran.out
    (backup,) = home.glob("*.bak")
    assert backup.read_text() == TEXT
    told = f"its former content is in {backup.name} beside it, for --undo\n"
    assert ran.out.endswith(f"installed in {file}; start Claude Code again\n{told}")
    assert "there are no servers of yours for it yet" in ran.err
    assert cli("install", "claude-code", "--yes").out == f"installed already in {file}\n"
    ran = cli("install", "claude-code", "--adopt", "--yes")
    assert ran.err == "mcp-nursery: odd stays: env: a value that begins with '!' would be run as a command\n"
    assert f"1 server moved behind mcp-nursery in {file}; start Claude Code again\n" in ran.out
    assert set(json.loads(file.read_text())["mcpServers"]) == {"odd", "mcp-nursery"}
    ran = cli("install", "claude-code", "--undo", "--yes", "--json")
    assert (ran.code, ran.json["change"], ran.json["moved"], ran.json["stay"]) == (0, "undone", [], {})
    assert file.read_text() == TEXT
    ran = cli("install", "claude-code", "--undo", "--yes")
    assert (ran.code, ran.out) == (2, "")
    assert "there is nothing to undo" in ran.err
    assert [path.name for path in home.iterdir()] == [file.name]


@pytest.mark.parametrize("options", [["--dry-run"], ["--dry-run", "--json"], [], ["--json"]])
def test_nothing_is_written_without_a_yes(cli, file, home, user_folders, options):
    ran = cli("install", "claude-code", "--adopt", *options)
    assert ran.code == (0 if "--dry-run" in options else 4)
    assert file.read_text() == TEXT
    assert [path.name for path in home.iterdir()] == [".claude.json"]
    assert not (user_folders / "config").exists()
    if options == ["--dry-run", "--json"]:
        assert ran.json["change"] is None
        assert ran.json["moved"] == ["lab"]
        assert '+    "mcp-nursery": ' in ran.json["diff"]
    elif "--json" not in options:
        assert '+    "mcp-nursery": ' in ran.out


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_person_is_asked(tty, screen, file, answer):
    screen.when("[y/N] ", lambda: screen.type(f"{answer}\n"))
    ran = tty("install", "claude-code", "--adopt")
    assert "Write it, and trust what is moved? [y/N]" in ran.out
    assert "\u202e" not in ran.out
    assert ran.out.count("+++") == 2  # shown once: the file, and that with what is moved
    assert (ran.code, file.read_text() == TEXT) == ((0, False) if answer == "y" else (4, True))


def test_what_the_gateway_of_a_project_would_start_is_agreed_to(cli, tmp_path, home):
    """Its file came with the project: what is moved out of it is shown, and trusted with a yes."""
    project = tmp_path / "project" / ".mcp.json"
    project.write_text(TEXT)
    assert cli("install", "claude-code", "--scope", "project", "--adopt").code == 4
    assert project.read_text() == TEXT
    assert cli("install", "claude-code", "--scope", "project", "--adopt", "--yes").code == 0
    (config,) = json.loads(project.read_text())["mcpServers"]["mcp-nursery"]["args"][2:]
    assert json.loads(Path(config).read_text())["mcpServers"]["lab"]["command"] == LAB["command"]
    assert cli("tools", "--config", config, "--json").json["errors"] == {}
    assert cli("install", "claude-code", "--scope", "project", "--undo", "--yes").code == 0
    assert project.read_text() == TEXT
    assert list(home.iterdir()) == []


def test_which_hosts_there_are(cli, file, home, tmp_path):
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text("{")
    (tmp_path / "project" / "opencode.json").write_text('{"mcp": {}}')
    ran = cli("install", "--json")
    assert ran.json["hosts"] == [
        {"host": "claude-code", "scope": "user", "file": str(file), "servers": 2, "gateway": ""},
        {
            "host": "cursor",
            "scope": "user",
            "file": str(home / ".cursor" / "mcp.json"),
            "servers": None,
            "gateway": ran.json["hosts"][1]["gateway"],
        },
        {
            "host": "opencode",
            "scope": "project",
            "file": str(tmp_path / "project" / "opencode.json"),
            "servers": 0,
            "gateway": "",
        },
    ]
    assert "not JSON" in ran.json["hosts"][1]["gateway"]
    assert ran.json["not_found"] == ["claude-desktop", "vscode", "gemini", "codex"]
    cli("install", "claude-code", "--adopt", "--yes")
    ran = cli("install")
    assert ran.out.splitlines()[:2] == [
        "HOST\tSCOPE\tFILE\tSERVERS\tGATEWAY",
        f"claude-code\tuser\t{file}\t1\tadopted",
    ]
    assert ran.err == "mcp-nursery: not found: claude-desktop, vscode, gemini, codex\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cloude"], "there is no host 'cloude'; one of claude-code, "),
        (["claude-kode"], "did you mean claude-code?"),
        (["--adopt"], "which host? One of claude-code, "),
        (["cursor", "--adopt", "--undo"], "--adopt and --undo cannot be given together"),
        (["claude-desktop", "--scope", "project"], "Claude Desktop has no file for a project"),
        (["cursor", "--scope", "else"], "'--scope'"),
    ],
)
def test_what_cannot_be(cli, home, arguments, said):
    ran = cli("install", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_command_that_is_not_there(cli, home, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    ran = cli("install", "cursor", "--yes")
    assert (ran.code, "is not beside" in ran.err) == (2, True)
    assert list(home.iterdir()) == []
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "mcp-nursery")])
    (tmp_path / "mcp-nursery").touch(0o755)
    assert cli("install", "cursor", "--yes").code == 0
    assert str(tmp_path / "mcp-nursery") in (home / ".cursor" / "mcp.json").read_text()


def test_all_or_nothing(cli, file, home, user_folders, monkeypatch):
    """The host writes its file while the change is shown."""
    make = install_module._apply

    def slowly(plan):
        file.write_text("{}")
        make(plan)

    monkeypatch.setattr(install_module, "_apply", slowly)
    ran = cli("install", "claude-code", "--adopt", "--yes")
    assert (ran.code, "changed meanwhile" in ran.err) == (2, True)
    assert file.read_text() == "{}"
    assert [path.name for path in home.iterdir()] == [file.name]
    assert not any(path.is_file() for path in user_folders.rglob("*.json"))


def test_import_leaves_the_gateway_out(cli, file, tmp_path):
    """Behind itself it would start itself, and so on."""
    cli("install", "claude-code", "--yes")
    target = tmp_path / "f.json"
    ran = cli("import", "--to", target)
    assert "server 'mcp-nursery': it is mcp-nursery itself" in ran.err
    assert set(json.loads(target.read_text())["mcpServers"]) == {"lab", "odd"}
