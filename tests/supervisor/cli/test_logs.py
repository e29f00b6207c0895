"""`mcp-nursery logs`, and what else the command line tells of a server's standard error."""

import sys

import pytest

from ...lab.command_line import LAB

WHY = """import sys
print("reading /etc/lab.toml", file=sys.stderr)
print("Error: the token", "sk-ant-" + "a1" * 12, "is not valid", file=sys.stderr)
print("Usage: lab --token TOKEN", file=sys.stderr)
sys.exit(2)"""
FAILING = {"command": sys.executable, "args": ["-c", WHY], "restartDelays": []}
TALKS = {
    "command": "sh",
    "args": ["-c", 'echo "a\033[2Jb" >&2; echo ready >&2; exec "$0" "$1"', *([LAB["command"]] + LAB["args"])],
}
SLOW = {
    "command": "sh",
    "args": ["-c", "echo 'Downloading 45 %' >&2; exec sleep 60"],
    "connectSeconds": 0.5,
    "restartDelays": [],
}


def test_the_log_of_one_that_fails(cli, config):
    ran = cli("logs", "lab", "--config", config(lab=FAILING))
    assert ran.code == 3
    assert ran.out.splitlines() == [
        "reading /etc/lab.toml",
        "Error: the token [REDACTED:anthropic-key] is not valid",
        "Usage: lab --token TOKEN",
    ]
    assert ran.err == ("mcp-nursery: lab: exited with code 2: Error: the token [REDACTED:anthropic-key] is not valid\n")


def test_the_log_of_one_that_works_without_what_a_terminal_obeys(cli, config):
    ran = cli("logs", "lab", "--config", config(lab=TALKS, other=FAILING))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[:2] == ["ab", "ready"]


def test_as_json(cli, config):
    ran = cli("logs", "lab", "--json", "--config", config(lab=FAILING))
    assert list(ran.json) == ["name", "state", "error", "stderr_tail"]
    assert ran.json["state"] == "failed"
    assert ran.json["stderr_tail"].splitlines()[0] == "reading /etc/lab.toml"


def test_one_that_says_nothing(cli, config):
    ran = cli("logs", "lab", "--config", config(lab={"command": "false", "restartDelays": []}))
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == "mcp-nursery: lab: exited with code 1\n"


def test_nobody_of_that_name(cli, config):
    ran = cli("logs", "lap", "--config", config(lab=LAB))
    assert ran.code == 2
    assert "lab" in ran.err


def test_status_has_it_too(cli, config):
    (server,) = cli("status", "--json", "--config", config(lab=FAILING)).json["servers"]
    assert server["error"].startswith("exited with code 2: Error: the token [REDACTED")
    assert server["stderr_tail"].splitlines()[-1] == "Usage: lab --token TOKEN"


def test_the_verbose_log_has_every_line(cli, config, caplog):
    cli("status", "--verbose", "--config", config(lab=FAILING))
    said = [record.getMessage() for record in caplog.records if "wrote to stderr" in record.getMessage()]
    assert said[0] == "lab: wrote to stderr: reading /etc/lab.toml"
    assert len(said) == 3


@pytest.mark.slow
@pytest.mark.parametrize("command", ["logs", "call"])
def test_a_timeout_quotes_what_was_said_meanwhile(cli, config, command):
    more = ["--server", "lab", "--yes"] if command == "call" else []
    ran = cli(command, "lab", *more, "--config", config(lab=SLOW))
    assert ran.code == 3
    assert "gives it more): Downloading 45 %" in ran.err
