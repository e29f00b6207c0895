import importlib.metadata
import json
import re
import subprocess
import sys

import pytest

from .harness import COMMAND, process

HEAVY = ("mcp", "mcp_types", "trio", "mcp_nursery.supervisor.supervisor", "mcp_nursery.actors")
COLOUR = re.compile(r"\x1b\[[0-9;]*(3[0-9]|4[0-9]|9[0-7])[;m]")


def test_help_names_every_command(cli):
    ran = cli("--help")
    assert ran.code == 0
    assert ran.err == ""
    for command in ("demo", "run", "status", "tools", "call", "fan-out", "check"):
        assert f" {command} " in ran.out
        assert cli(command, "--help").code == 0


def test_without_a_command_it_helps_and_fails(cli):
    ran = cli()
    assert ran.code == 2
    assert "Usage" in ran.out


@pytest.mark.parametrize("options", [[], ["--name", "x"], ["--http", "127.0.0.1:0"]])
def test_no_command_to_serve(cli, options):
    ran = cli("serve", *options, "--")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "mcp-nursery: there is no command after '--': mcp-nursery serve -- COMMAND …; try 'mcp-nursery --help'\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("args", [["--help"], ["call", "--help"], ["fan-out", "--help"]])
def test_help_loads_nothing_heavy(args):
    code = (
        "import sys\nfrom mcp_nursery.supervisor.cli import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n"
        f"    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1] == "[]"


def test_importing_the_package_loads_nothing():
    code = "import sys, mcp_nursery.supervisor.cli as cli; print('typer' in sys.modules, 'mcp' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]


def test_version(cli, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"1.2.3 of {name}")
    ran = cli("--version")
    assert (ran.code, ran.out) == (0, "mcp-nursery 1.2.3 of mcp-nursery\n")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["call"], "NAME"),
        (["call", "x", "--timeout", "soon"], "--timeout"),
        (["call", "x", "--timeout", "-1"], "--timeout"),
        (["fan-out"], "TOOL"),
        (["fan-out", "x", "--until", "0"], "--until"),
        (["fan-out", "x", "--until", "last"], "--until"),
        (["fan-out", "x", "--until", "²"], "--until"),
        (["status", "--colour"], "--colour"),
        (["dance"], "dance"),
        (["check", "--config"], "--config"),
        (["run", "--json"], "--json"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(cli, args, says):
    ran = cli(*args)
    assert ran.code == 2
    assert ran.out == "" or "--json" in args
    if "--json" not in args:
        assert len(ran.err.splitlines()) == 1
        assert says.lower() in ran.err.lower()


def test_usage_errors_are_json_where_json_was_asked_for(cli):
    ran = cli("call", "--json")
    assert ran.code == 2
    assert ran.err == ""
    assert ran.json["error"]["type"] == "UsageError"
    assert list(ran.json["error"]) == ["type", "message", "server", "tool"]


@pytest.mark.parametrize("command", [["status"], ["tools"], ["call", "x"], ["check"], ["run"]])
def test_without_a_file_it_says_how_to_name_one(cli, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = cli(*command)
    assert ran.code == 2
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1
    assert "--config" in ran.err
    if command != ["run"]:
        ran = cli(*command, "--json")
        assert (ran.code, ran.err) == (2, "")
        assert ran.json["error"]["type"] == "ConfigError"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, tmp_path):
    environment = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    shown = subprocess.run(
        [*COMMAND, "--show-completion", shell], capture_output=True, text=True, check=True, env=environment
    )
    assert "_MCP_NURSERY_COMPLETE" in shown.stdout


def test_completion_of_a_command():
    environment = {"_MCP_NURSERY_COMPLETE": "complete_bash", "COMP_WORDS": "mcp-nursery stat", "COMP_CWORD": "1"}
    ran = process(env=environment)
    out, err = ran.communicate(timeout=60)
    assert out.split() == ["status"]
    assert err == ""


def test_no_colours_when_piped(cli, lab):
    for args in (["--help"], ["status", "--config", lab], ["tools", "--config", lab], ["check", "--config", lab]):
        ran = cli(*args)
        assert ran.code == 0
        assert "\x1b" not in ran.out + ran.err


def test_colours_on_a_terminal(tty, lab):
    assert COLOUR.search(tty("status", "--config", lab).out)


def test_no_colours_with_no_color(tty, lab, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    ran = tty("status", "--config", lab)
    assert "connected" in ran.out
    assert not COLOUR.search(ran.out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "args", [["status"], *(pytest.param(args, marks=pytest.mark.slow) for args in (["tools", "--json"], ["demo"]))]
)
def test_a_closed_stdout_is_no_traceback(lab, args):
    with process(*args, *([] if args == ["demo"] else ["--config", lab])) as ran:
        ran.stdout.close()
        assert (ran.stderr.read(), ran.wait(60)) == ("", 141)


@pytest.mark.slow
def test_json_survives_a_narrow_encoding(config):
    file = config(**{"ä…": {"command": sys.executable}})
    for args in (["check", "--config", file, "--json"], ["check", "--config", file]):
        ran = process(*args, env={"PYTHONIOENCODING": "ascii"})
        out, err = ran.communicate(timeout=60)
        assert ran.returncode == 0, err
        if "--json" in args:
            assert json.loads(out)["servers"][0]["name"] == "ä…"
