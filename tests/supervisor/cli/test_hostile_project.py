"""A repository of somebody else and the command line: K7, Q28, K1."""

import json
import os

import pytest

from ...lab.command_line import LAB


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"lab": LAB}}))
    return file


@pytest.mark.parametrize("arguments", [["trust", "--json"], ["trust"]])
def test_nobody_agrees_to_what_is_not_shown(tty, screen, project, tmp_path, arguments):
    """K7: the entry stands above its question, also when standard output is read by a program."""
    seen = []
    screen.when("Trust it? [y/N]", lambda: seen.append(screen.text) or screen.type("n\n"))
    ran = tty(*arguments, stdout=tmp_path / "out")
    assert ran.code == 4
    assert f'  command: "{LAB["command"]}"' in seen[0]
    assert f"file: {project}" in seen[0]
    assert ("error" in json.loads((tmp_path / "out").read_text())) if "--json" in arguments else True


def test_what_is_shown_is_agreed_to_as_a_whole(cli, project):
    """K7: one answer for all that is asked about, and all of it is written down."""
    project.write_text(json.dumps({"mcpServers": {"one": LAB, "two": LAB, "three": LAB}}))
    assert cli("trust", "--yes").code == 0
    assert [server["trusted"] for server in cli("check", "--json").json["servers"]] == [True, True, True]


@pytest.mark.parametrize("command", [["check"], ["trust"], ["trust", "x.json"], ["call", "x"]])
def test_a_working_directory_that_is_gone(cli, tmp_path, monkeypatch, command):
    """K3: one line, no traceback."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    os.rmdir(folder)
    ran = cli(*command)
    assert ran.code == 2
    assert "the working directory does not exist any more" in ran.err


DEEP = '{"mcpServers": {"s": {"command": "x", "args": ' + "[" * 600 + "]" * 600 + "}}}"


@pytest.mark.parametrize("place", [".mcp.json", ".vscode/mcp.json", ".gemini/settings.json", ".codex/config.toml"])
@pytest.mark.parametrize(
    "case",
    [
        (DEEP.encode(), "nested too deeply"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (b'{"mcpServers": {"s": \0}}', "not "),
        (b"?", "not "),
        (b" " * ((1 << 20) + 1), "cannot be read: more than 1 MiB"),
        ("fifo", "cannot be read: not a regular file"),
        ("folder", "cannot be read: Is a directory"),
        ("device", "cannot be read: not a regular file"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
    ],
)
def test_a_file_that_nobody_can_use(cli, tmp_path, monkeypatch, place, case):
    """K3: a found file's error is one line that names it, in every command; the user's own servers go on."""
    monkeypatch.chdir(tmp_path)
    content, problem = case
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    match content:
        case "fifo":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case "device":
            file.symlink_to("/dev/zero")
        case "loop":
            file.symlink_to(file)
        case _:
            file.write_bytes(content)
    if place.endswith("toml"):
        problem = problem.replace("nested too deeply", "not TOML")
    for command in (["check"], ["status"], ["tools"], ["call", "x"], ["trust", "--yes"], ["fan-out", "x"]):
        ran = cli(*command)
        assert ran.code == 2
        assert f"{file}: {problem}" in ran.err
        assert len(ran.err.splitlines()) == 1


def test_import_to_what_cannot_be(cli, project, tmp_path):
    """K1: one line; and a link that leads nowhere is something that exists already."""
    target = tmp_path / ("a" * 300)
    ran = cli("import", project, "--to", target)
    assert (ran.code, ran.err) == (2, f"mcp-nursery: {target}: cannot be written: File name too long\n")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    ran = cli("import", project, "--to", link)
    assert (ran.code, link.is_symlink()) == (2, True)
    assert "exists already" in ran.err


def test_import_says_what_will_be_different(cli, tmp_path):
    """K1, K5: a project's relative places are not those of what is written, and what headers do not see."""
    source = tmp_path / ".vscode" / "mcp.json"
    source.parent.mkdir()
    servers = {
        "cwd": {"command": "x", "cwd": "sub"},
        "file": {"url": "https://x", "envFile": ".env"},
        "fine": {"command": "x", "cwd": "/srv", "envFile": "${userHome}/.env"},
        "folder": {"command": "x", "envFile": "${workspaceFolder}/.env"},
        "head": {"url": "https://x", "headers": {"A": "Bearer ${T}"}},
    }
    source.write_text(json.dumps({"servers": servers}))
    ran = cli("import", source, "--to", tmp_path / "f.json")
    assert ran.code == 0
    assert ran.err.splitlines() == [
        f"mcp-nursery: {source}: server 'cwd': its cwd becomes relative to the working directory",
        f"mcp-nursery: {source}: server 'file': its envFile becomes relative to the working directory",
        f"mcp-nursery: {source}: server 'folder': ${{workspaceFolder}} becomes the working directory",
        f"mcp-nursery: {source}: server 'head': field 'headers.A': ${{T}} is not in its env, so it is empty; "
        '"env": {"T": "${env:T}"} passes it on to ${T}',
    ]
