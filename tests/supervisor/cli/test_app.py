import inspect
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from mcp_nursery.actors.version import VERSION
from mcp_nursery.supervisor.cli.commands import COMMANDS
from mcp_nursery.supervisor.cli.options import CommandSignature

from ...lab import PROGRAMS
from ...lab.command_line import COMMAND, process
from ...lab.processes import LAB as NURSERY_LAB

HEAVY = ("mcp", "mcp_types", "trio", "mcp_nursery.supervisor.supervisor", "mcp_nursery.actors")
PLAIN = {"command": sys.executable, "args": [str(NURSERY_LAB)]}
LIBRARY = {"command": sys.executable, "args": [str(PROGRAMS / "nursery_library.py"), "stdio"]}
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


@pytest.mark.parametrize("group", ["auth", "token"])
def test_a_group_without_a_command_helps_and_fails(cli, group):
    ran = cli(group)
    assert (ran.code, ran.err) == (2, "")
    assert f"Usage: mcp-nursery {group} " in ran.out


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


@pytest.mark.slow
@pytest.mark.parametrize("args", ["tools", "resources", "prompts", "status", "auth status", "fan-out echo"])
def test_one_command_loads_no_client_of_the_sdk(args, config):
    """It takes longer than all else that a command does with a server of its own machine."""
    code = (
        "import sys\nfrom mcp_nursery.supervisor.cli import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n    print('mcp.client' in sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *args.split(), "--config", str(config(lab=PLAIN))]
    if args.startswith("fan-out"):
        command += ["--yes", "--args", '{"text": "a"}']
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "False\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("call_tool", ["call", "mcp_lab_echo", "--yes"]),
        ("fan_out", ["fan-out", "echo", "--yes"]),
        ("read_resource", ["read", "note://today"]),
    ],
)
def test_the_types_of_a_result_are_loaded_before_its_time_begins(method, args, config):
    code = (
        "import sys\nfrom mcp_nursery.actors.preload import RESULT_TYPES\n"
        "from mcp_nursery.supervisor import Supervisor\nfrom mcp_nursery.supervisor.cli import main\n"
        f"begin = Supervisor.{method}\n"
        "def seen(*args, **options):\n    print(RESULT_TYPES.is_loaded, file=sys.stderr)\n"
        "    return begin(*args, **options)\n"
        f"Supervisor.{method} = seen\nmain(sys.argv[1:])"
    )
    file = config(lab=LIBRARY if args[0] == "read" else PLAIN)
    command = [sys.executable, "-c", code, *args, "--config", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "True\n")


def test_importing_the_package_loads_nothing():
    code = "import sys, mcp_nursery.supervisor.cli as cli; print('click' in sys.modules, 'mcp' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]


def test_version(cli):
    ran = cli("--version")
    assert (ran.code, ran.out.splitlines()[0]) == (0, f"mcp-nursery {VERSION}")
    assert "\nmcp " in ran.out


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
        (["fan-out", "x", "--until", "9" * 5000], "--until"),
        (["serve", "--http", "127.0.0.1:" + "9" * 5000, "--", "true"], "--http"),
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


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, named, cli, monkeypatch):
    monkeypatch.setenv("SHELL", f"/bin/{'sh' if named else shell}")
    ran = cli("--show-completion", *([shell] if named else []))
    assert (ran.code, ran.err) == (0, "")
    assert f"_MCP_NURSERY_COMPLETE={shell}_complete" in ran.out


@pytest.mark.parametrize(("args", "named"), [(["csh"], "csh"), ([], "sh")])
def test_no_completion_for_other_shells(args, named, cli, monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/sh")
    for option in ("--show-completion", "--install-completion"):
        ran = cli(option, *args)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == (
            f"mcp-nursery: completion is for one of bash, zsh, fish, not for {named}; try 'mcp-nursery --help'\n"
        )


SHELLS = {
    "bash": (".bash_completions/mcp-nursery.sh", ".bashrc"),
    "zsh": (".zfunc/_mcp-nursery", ".zshrc"),
    "fish": (".config/fish/completions/mcp-nursery.fish", None),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_installed_once(shell, cli, tmp_path, monkeypatch):
    script, start = SHELLS[shell]
    monkeypatch.setenv("HOME", str(tmp_path))
    if start is not None:
        (tmp_path / start).write_text("# mine, without an end")
    shown = cli("--show-completion", shell).out
    for _ in range(2):
        assert cli("--install-completion", shell).out == (
            f"{shell} completion is in {tmp_path / script}; start the shell again\n"
        )
        assert (tmp_path / script).read_text() == shown
    if start is not None:
        mine, added = (tmp_path / start).read_text().splitlines()
        assert mine == "# mine, without an end"
        assert (".bash_completions" if shell == "bash" else ".zfunc") in added


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("stat", ["status"]), ("token re", ["remove"]), ("call --max", ["--max-result-chars"]), ("sto", ["stop"])],
)
def test_bash_completes_what_is_typed(typed, offered, cli, tmp_path, monkeypatch):
    """With the file that was installed, in a bash of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    cli("--install-completion", "bash")
    program = tmp_path / "mcp-nursery"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    asked = (
        f"source .bashrc; COMP_WORDS=(mcp-nursery {typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        'eval "$(complete -p mcp-nursery | sed -E \'s/.* -F ([^ ]+) .*/\\1/\') mcp-nursery"; echo "${COMPREPLY[@]}"'
    )
    ran = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert (ran.stdout.split(), ran.stderr) == (offered, "")


def signatures(table, before=()):
    for name, entry in table.items():
        if isinstance(entry, CommandSignature):
            yield (*before, name), entry
        else:
            yield from signatures(entry[1], (*before, name))


SIGNATURES = {" ".join(name): signature for name, signature in signatures(COMMANDS)}


def test_the_help_says_of_each_command_how_its_own_help_begins(cli):
    def words(*args):  # lines break in a word with a hyphen, too
        return "".join(cli(*args, "--help").out.split())

    told = words()
    for name, entry in COMMANDS.items():
        about = entry.about if isinstance(entry, CommandSignature) else entry[0]
        sentence, _, _ = about.partition(". ")
        assert "".join(f"{name} {sentence.removesuffix('.')}.".split()) in told
        assert "".join(about.split()) in words(name)


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_work_of_each_command_takes_its_options(name):
    """The table names it and its arguments as texts: nothing else holds them together."""
    of_all = {"config", "no_project", "trust", "state", "as_json", "verbose", "log_format"}
    signature = SIGNATURES[name]
    own = {parameter.name for parameter in signature.command(name).params} - of_all
    inspect.signature(signature.work).bind("options", **dict.fromkeys({*own, *signature.given}))


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
