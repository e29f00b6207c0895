"""K12: `enable`, `disable` and `remove`: the file of the entry, and who may be edited without being named."""

import json
import os
import stat

import pytest

from mcp_nursery.supervisor.cli import files as files_module

from ...lab.command_line import LAB

TEXT = '\ufeff{"mcpServers": {\r\n  "a": {"command": "x"}, // mine\r\n  "b": {"command": "y"}\r\n}}\r\n'


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "mine.json"
    file.write_bytes(TEXT.encode())
    file.chmod(0o640)
    return file


def test_there_and_back(cli, file):
    run = cli("disable", "a", "--config", file)
    assert (run.code, run.out, run.err) == (0, f"a: disabled in {file}\n", "")
    assert file.read_bytes().decode() == TEXT.replace('"x"', '"x", "enabled": false')
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert cli("disable", "a", "--config", file).out == f"a: disabled already in {file}\n"
    assert cli("enable", "a", "--config", file, "--json").json == {
        "server": "a",
        "file": str(file),
        "change": "enabled",
    }
    assert cli("enable", "a", "--config", file, "--json").json["change"] is None
    assert cli("remove", "a", "--config", file).out == f"a: removed in {file}\n"
    assert file.read_bytes().decode() == TEXT.replace('"a": {"command": "x"}, ', "")
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_of_several_files_the_one_that_counts(cli, file, config):
    other = config("other.json", a=LAB)
    assert cli("disable", "a", "--config", file, "--config", other).code == 0
    assert file.read_bytes() == TEXT.encode()
    assert json.loads(other.read_text())["mcpServers"]["a"]["enabled"] is False


def test_a_link_stays_one(cli, file, tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(file)
    assert cli("remove", "b", "--config", link).code == 0
    assert link.is_symlink()
    assert b'"b"' not in file.read_bytes()


def test_the_users_own_file_unnamed_and_a_projects_only_named(cli, tmp_path, monkeypatch, user_folders):
    own = user_folders / "config" / "mcp-nursery" / "servers.json"
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    project = tmp_path / "project" / ".mcp.json"
    assert cli("disable", "lab").err == f"mcp-nursery: {own}: does not exist; name a file with --config FILE\n"
    project.write_text(json.dumps({"mcpServers": {"theirs": LAB}}))
    run = cli("remove", "theirs")
    assert run.code == 2
    assert run.err == f"mcp-nursery: {project}: server 'theirs': it comes with a project; --config FILE edits it\n"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({"mcpServers": {"lab": LAB}}))
    assert cli("disable", "lab", "--json").json["file"] == str(own)
    assert json.loads(own.read_text())["mcpServers"]["lab"]["enabled"] is False
    assert cli("remove", "theirs", "--config", project).code == 0


@pytest.mark.parametrize("command", ["enable", "disable", "remove"])
def test_an_unknown_server(cli, file, command):
    run = cli(command, "aa", "--config", file, "--json")
    assert (run.code, run.json["error"]["type"]) == (2, "UnknownServer")
    assert "did you mean 'a'?" in run.json["error"]["message"]
    assert cli(command, "a", "--config", file.with_name("none.json")).code == 2
    assert file.read_bytes() == TEXT.encode()


def test_a_file_that_was_changed_meanwhile_is_left_alone(cli, file, monkeypatch):
    """Somebody else writes it after it was read."""
    edited = files_module.edit_text

    def slowly(*args):
        file.write_text("{}")
        return edited(*args)

    monkeypatch.setattr(files_module, "edit_text", slowly)
    run = cli("disable", "a", "--config", file)
    assert (run.code, run.err) == (
        2,
        f"mcp-nursery: {file}: cannot be written: it was changed meanwhile\n",
    )
    assert file.read_text() == "{}"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written(cli, file):
    file.parent.chmod(0o500)
    try:
        run = cli("disable", "a", "--config", file)
    finally:
        file.parent.chmod(0o700)
    assert run.code == 2
    assert "cannot be written: Permission denied" in run.err


def test_what_is_no_file(cli, tmp_path):
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    assert cli("disable", "a", "--config", pipe).code == 2


def test_a_file_that_is_not_text_any_more(cli, file, monkeypatch):
    """Somebody else writes it after its servers were read. Nothing of it is shown."""
    file_of = files_module._file_of

    def slowly(*args):
        found = file_of(*args)
        file.write_bytes(b"\xffhunter2")
        return found

    monkeypatch.setattr(files_module, "_file_of", slowly)
    run = cli("disable", "a", "--config", file)
    assert (run.code, run.err) == (2, f"mcp-nursery: {file}: cannot be edited: not UTF-8\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_file_that_is_not_to_be_written(cli, file):
    """Its folder could be: another file could come in its place."""
    file.chmod(0o440)
    run = cli("disable", "a", "--config", file)
    assert (run.code, run.err) == (2, f"mcp-nursery: {file}: cannot be written: it is read-only\n")
    assert file.read_bytes() == TEXT.encode()
