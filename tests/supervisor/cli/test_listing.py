import json

import psutil
import pytest

from ...lab.command_line import BROKEN, LAB, MISSING

STATUS = [
    "name",
    "state",
    "transport",
    "tool_count",
    "error",
    "uptime",
    "incarnation",
    "attempt",
    "max_attempts",
    "retry_in",
    "pid",
    "protocol_version",
    "server_info",
    "instructions",
    "calls",
    "stderr_tail",
    "capabilities",
    "extensions",
    "source",
    "description",
    "challenge",
    "breaker",
    "installing",
    "over_limit",
    "instances",
]
ECHO = '{"text": "hi"}'
TOOL = ["name", "server", "tool", "description", "input_schema", "annotations", "requires_approval"]
TOOL += ["output_schema_problem", "ui"]


def test_status(cli, config):
    ran = cli("status", "--json", "--config", config(lab=LAB, off={**LAB, "disabled": True}))
    assert (ran.code, ran.err) == (0, "")
    assert list(ran.json) == ["servers"]
    servers = {server["name"]: server for server in ran.json["servers"]}
    for server in servers.values():
        assert list(server) == STATUS
    lab = servers["lab"]
    assert (lab["state"], lab["transport"], lab["tool_count"], lab["error"]) == ("connected", "stdio", 8, None)
    assert (lab["incarnation"], lab["attempt"], lab["max_attempts"], lab["retry_in"]) == (1, 1, 4, None)
    assert 0 <= lab["uptime"] < 30
    assert lab["server_info"]["name"] == "lab"
    assert "tools" in lab["capabilities"]
    assert lab["source"].endswith(".json")
    assert lab["calls"] == {"in_flight": 0, "done": 0, "failed": 0, "tasks": 0, "asking": 0}
    assert not psutil.pid_exists(lab["pid"])
    assert servers["off"]["state"] == "disabled"
    assert servers["off"]["pid"] is None


def test_one_broken_server_does_not_break_the_others(cli, config):
    file = config(lab=LAB, broken=BROKEN, missing=MISSING, bad={"args": []}, lazy={**LAB, "lazy": True})
    ran = cli("status", "--json", "--config", file)
    assert (ran.code, ran.err) == (0, "")
    servers = {server["name"]: server for server in ran.json["servers"]}
    assert {name: server["state"] for name, server in servers.items()} == {
        "lab": "connected",
        "broken": "failed",
        "missing": "failed",
        "bad": "failed",
        "lazy": "idle",
    }
    assert "/nonexistent/command" in servers["missing"]["error"]
    assert all(server["error"].count("\n") == 0 for server in servers.values() if server["error"])


def test_status_in_words(cli, config):
    ran = cli("status", "--config", config(lab=LAB, broken=BROKEN))
    assert ran.code == 0
    header, *rows = [line.split("\t") for line in ran.out.splitlines()]
    assert header[:2] == ["SERVER", "STATE"]
    assert sorted(row[:2] for row in rows) == [["broken", "failed"], ["lab", "connected"]]
    assert all(len(row) == len(header) for row in rows)


def test_status_on_a_terminal(tty, config):
    ran = tty("status", "--config", config(**{"[red]lab[/red]": LAB, "broken": BROKEN}))
    assert ran.code == 0
    assert "[red]lab[/red]" in ran.out
    assert "\x1b[2J" not in ran.out


def test_tools(cli, config):
    ran = cli("tools", "--json", "--config", config(lab=LAB, broken=BROKEN, off={**LAB, "disabled": True}))
    assert (ran.code, ran.err) == (0, "")
    assert list(ran.json) == ["tools", "errors"]
    assert list(ran.json["errors"]) == ["broken"]
    assert "\n" not in ran.json["errors"]["broken"]
    names = [tool["name"] for tool in ran.json["tools"]]
    assert names == sorted(names)
    assert "mcp_lab_echo" in names
    echo = next(tool for tool in ran.json["tools"] if tool["tool"] == "echo")
    assert list(echo) == TOOL
    assert echo["server"] == "lab"
    assert echo["input_schema"]["properties"] == {"text": {"type": "string"}}
    assert echo["annotations"] == {"readOnlyHint": True}
    assert echo["requires_approval"] is True


def test_tools_in_words(cli, config):
    ran = cli("tools", "--config", config(lab=LAB, broken=BROKEN))
    assert ran.code == 0
    rows = [line.split("\t") for line in ran.out.splitlines()]
    assert rows[0] == ["NAME", "SERVER", "DESCRIPTION"]
    assert ["mcp_lab_rude", "lab", "[red]mark[/red] up"] in rows
    assert len(ran.err.splitlines()) == 1
    assert "broken: " in ran.err
    assert "\x1b" not in ran.err


def test_numbers_in_names_are_in_order_as_numbers(cli, config):
    """In what people read; documents have the order of the library."""
    file = config(s10=LAB, s2=LAB)
    rows = [line.split("\t")[1] for line in cli("tools", "--config", file).out.splitlines()[1:]]
    assert rows == sorted(rows, key=["s2", "s10"].index)
    names = [tool["name"] for tool in cli("tools", "--config", file, "--json").json["tools"]]
    assert names == sorted(names)


def test_tools_on_a_terminal(tty, lab):
    ran = tty("tools", "--config", lab)
    assert "[red]mark[/red] up" in ran.out
    assert "\x1b[2J" not in ran.out


@pytest.mark.parametrize("command", [["status"], ["tools"], ["fan-out", "echo", "--yes", "--args", ECHO]])
def test_nothing_works(cli, config, command):
    """The exit code tells a script; what is off on purpose does not count."""
    off = {**LAB, "disabled": True}
    for servers, code in (({"broken": BROKEN, "missing": MISSING, "off": off}, 3), ({"lab": LAB, "broken": BROKEN}, 0)):
        ran = cli(*command, "--config", config(**servers), "--json")
        assert (ran.code, ran.err) == (code, "")
    ran = cli("fan-out", "echo", "--config", config(broken=BROKEN, missing=MISSING), "--yes")
    assert ran.code == 3
    assert "broken: echo: the server is failed" in ran.err
    assert "missing: " in ran.err


def test_nothing_is_trusted(cli, tmp_path, monkeypatch):
    """K7: another exit code than for what does not work."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"lab": LAB}}))
    assert [cli(command).code for command in ("status", "tools")] == [4, 4]
    assert cli("fan-out", "echo", "--yes").code == 4


def test_no_servers(cli, config):
    file = config()
    assert cli("status", "--config", file, "--json").json == {"servers": []}
    assert cli("tools", "--config", file, "--json").json == {"tools": [], "errors": {}}


def test_verbose_logs_on_stderr(cli, lab, caplog):
    ran = cli("status", "--config", lab, "--json", "--verbose")
    assert ran.code == 0
    assert ran.json["servers"]
