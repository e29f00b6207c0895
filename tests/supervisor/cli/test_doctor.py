"""`mcp-nursery doctor`: what a bug report needs, and no secret."""

import sys

import pytest

from ...lab.command_line import BROKEN, LAB, MISSING

SECRETS = [f"{place}-Zq7vK2mXw9Lp4Rt8" for place in ("env", "arg", "option", "header", "user", "path", "query", "file")]


def test_a_healthy_server(cli, lab):
    ran = cli("doctor", "--config", lab, "--json")
    assert ran.code == 0
    (server,) = ran.json["servers"]
    assert server["start"]["state"] == "connected"
    assert server["start"]["tools"] > 0
    assert server["start"]["seconds"] > 0
    assert ran.json["files"][0]["servers"] == ["lab"]
    assert ran.json["errors"] == []
    assert {"mcp-nursery", "commit", "python", "platform", "mcp", "trio"} <= set(ran.json["versions"])
    assert ran.json["ports"]["127.0.0.1"] is True
    assert set(ran.json["limits"]) == {"open files", "processes"}


def test_without_a_start(cli, config):
    ran = cli("doctor", "--no-start", "--config", config(broken=BROKEN), "--json")
    assert ran.code == 0
    assert ran.json["servers"][0]["start"] is None


def test_servers_that_fail(cli, config):
    ran = cli("doctor", "--config", config(broken=BROKEN), "--json")
    assert ran.code == 3
    assert ran.json["servers"][0]["start"]["state"] == "failed"
    assert ran.json["servers"][0]["start"]["error"]


def test_an_entry_that_cannot_work_is_named_with_its_file(cli, config):
    file = config(missing=MISSING, lab=LAB)
    ran = cli("doctor", "--config", file, "--json")
    assert ran.code == 2
    (error,) = ran.json["errors"]
    assert str(file) in error
    assert "missing" in error


def test_a_file_that_cannot_be_read_is_part_of_the_report(cli, tmp_path):
    file = tmp_path / "bad.json"
    file.write_text("{")
    ran = cli("doctor", "--config", file, "--json")
    assert ran.code == 2
    assert ran.json["files"] == [{"file": str(file), "host": None, "servers": [], "errors": [ran.json["errors"][0]]}]


def test_an_entry_of_a_project_is_blocked_and_not_started(cli, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config(".mcp.json", lab=LAB)
    ran = cli("doctor", "--json")
    assert ran.code == 4
    (server,) = ran.json["servers"]
    assert server["blocked"]
    assert server["start"]["state"] == "blocked"


@pytest.mark.parametrize("options", [["--json"], [], ["--no-start", "--json"], ["--no-start"]])
def test_no_secret_is_shown(cli, config, tmp_path, monkeypatch, options):
    env, arg, option, header, user, path, query, in_file = SECRETS
    monkeypatch.setenv("DOCTOR_TOKEN", f"outer-{env}")
    (tmp_path / "variables").write_text(f"FILE_TOKEN={in_file}\n")
    says = "import os, sys; print(*sys.argv, *os.environ.values(), file=sys.stderr); sys.exit(3)"
    local = {"command": sys.executable, "args": ["-c", says, "--api-key", option], "env": {"API_KEY": env}}
    url = f"http://u:{user}@127.0.0.1:1/{path}?token={query}"
    file = config(
        local={**local, "restartDelays": []},
        reads={**local, "env": {"A": "${DOCTOR_TOKEN}"}, "envFile": str(tmp_path / "variables"), "restartDelays": []},
        bare={"command": "/nonexistent/command", "args": [arg]},
        remote={"type": "http", "url": url, "headers": {"Authorization": f"Bearer {header}"}, "restartDelays": []},
    )
    ran = cli("doctor", "--config", file, *options)
    assert "API_KEY" in ran.out
    assert [secret for secret in SECRETS if secret in ran.out + ran.err] == []
    if "--json" in options:
        assert ran.json["servers"]
