"""`--state`: another file, or a database, for what outlasts a run."""

import json

import psycopg
import pytest

from ...lab.command_line import LAB


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The file of a project, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"lab": LAB}}))


def trusted(run):
    return run.json["servers"][0]["trusted"]


def look(cli, state, project, user_folders, monkeypatch):
    assert trusted(cli("check", "--json", "--state", state)) is False
    assert cli("trust", "--yes", "--state", state).code == 0
    assert trusted(cli("check", "--json", "--state", state)) is True
    assert cli("pins", "--state", state).out == "no tool or skill has changed since its first use\n"
    assert trusted(cli("check", "--json")) is False
    monkeypatch.setenv("MCP_NURSERY_STATE", str(state))
    assert trusted(cli("check", "--json")) is True
    assert not (user_folders / "state").exists()


def test_another_file(cli, tmp_path, project, user_folders, monkeypatch):
    look(cli, tmp_path / "own" / "state", project, user_folders, monkeypatch)


@pytest.mark.slow
def test_a_database(cli, database, project, user_folders, monkeypatch):
    look(cli, database, project, user_folders, monkeypatch)


@pytest.mark.slow
def test_commands_that_start_servers(cli, lab, database):
    assert cli("tools", "--config", lab, "--state", database, "--json").code == 0
    with psycopg.connect(database) as db:
        assert db.execute("SELECT server FROM mcp_nursery.eras").fetchall() == [("lab",)]


def test_what_cannot_be_one(cli, project):
    """One line, which quotes no password."""
    run = cli("check", "--state", "postgresql://u:hunter2/x@h/db")
    assert run.code == 2
    assert run.err.startswith("mcp-nursery: field 'state': is no URL as PostgreSQL has them")
    assert "hunter2" not in run.err + run.out


def test_a_password_is_shown_nowhere(cli, lab):
    """Of a database that is not there, in whatever is asked of its servers."""
    state = "postgresql://u:hunter2@127.0.0.1:1/db"
    for command in (["status", "--json"], ["status"], ["tools", "--json"], ["check", "--json"], ["pins"]):
        run = cli(*command, "--state", state, *([] if command == ["pins"] else ["--config", lab]), "--verbose")
        assert "hunter2" not in run.out + run.err
        assert command[0] != "pins" or "the state database cannot be used" in run.err
