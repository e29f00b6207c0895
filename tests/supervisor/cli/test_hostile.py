"""The command line with a server that means harm: one line or one document, and nothing that steers a terminal."""

import json
import re
import signal
import sys

import pytest

from ...lab import PROGRAMS
from ...lab.command_line import process

SERVER = PROGRAMS / "hostile_stdio.py"
BAD = "\\u001b]0;title\\u0007\\u001b[2J\\u009b31m\\u202e\\r\\nx\\ud800"
TOOL = f'{{"name":"echo","description":"{BAD}","inputSchema":{{"type":"object","a":NaN,"b":1e999,"{BAD}":"{BAD}"}}}}'
MORE = ",".join(
    f'{{"name":"{name}","inputSchema":{{"type":"object"}}}}'
    for name in (BAD, "a\\nb", "\\u0000", "", "echo", "y" * 5000)
)
INFO = f'{{"name":"{BAD}","version":"1","title":"{BAD}"}}'
ANSWERS = {
    "words": f'"result":{{"content":[{{"type":"text","text":"{BAD}"}}],"structuredContent":{{"{BAD}":1}}}}',
    "no number": '"result":{"content":[],"structuredContent":{"a":NaN,"b":[-Infinity,1e999]},"_meta":{"a":NaN}}',
    "long number": f'"result":{{"content":[],"structuredContent":{"9" * 6000}}}',
    "deep": f'"result":{{"content":[],"structuredContent":{"[" * 190}{"]" * 190}}}',
    "too deep": f'"result":{{"content":[],"structuredContent":{"[" * 900}{"]" * 900}}}',
    "wrong": '"result":{"content":5}',
    "nothing": '"x":1',
    "error": f'"error":{{"code":{"9" * 4200},"message":"{BAD}{BAD}","data":{"[" * 900}{"]" * 900}}}',
    "die": "die",
}
CODES = {"nothing": 1, "too deep": 1, "error": 1, "die": 3}
"""With which a command ends that gets such an answer; 0 with any other."""
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")


@pytest.fixture
def hostile(config, tmp_path):
    """A configuration of one such server."""
    tools = tmp_path / "tools"
    tools.write_text(f"{TOOL},{MORE}")

    def write(answer="die", info=INFO):
        return config(bad={"command": sys.executable, "args": [str(SERVER), str(tools), info, answer]})

    return write


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def check(ran, *, as_json):
    assert not STEERS.search(ran.err)
    assert "Traceback" not in ran.err
    if as_json:
        json.loads(ran.out, parse_constant=refuse)
        assert ran.out.isascii()


@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize("info", [INFO, "5"])
@pytest.mark.parametrize("command", ["tools", "status"])
def test_looking_at_it(cli, hostile, command, info, flags):
    ran = cli(command, "--config", hostile(info=info), *flags)
    assert ran.code == (3 if info == "5" else 0)
    assert not STEERS.search(ran.out)
    check(ran, as_json=bool(flags))


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize("answer", ANSWERS)
def test_calling_it(cli, hostile, answer, flags):
    for command in (("call", "mcp_bad_echo"), ("fan-out", "echo")):
        ran = cli(*command, "--yes", "--config", hostile(ANSWERS[answer]), *flags)
        assert ran.code == CODES.get(answer, 0)
        check(ran, as_json=bool(flags))


def test_an_output_schema_that_is_none_is_named(cli, config, tmp_path):
    broken = {"type": "object", "properties": {"n": {"type": "integer", "required": True}}}
    (tmp_path / "tools").write_text(json.dumps({"name": "sum", "inputSchema": {}, "outputSchema": broken}))
    info = '{"name":"lab","version":"1"}'
    file = config(lab={"command": sys.executable, "args": [str(SERVER), str(tmp_path / "tools"), info, "die"]})
    problem = 'it cannot be compiled at /properties/n/required: true is not of type "array"'
    (tool,) = cli("tools", "--json", "--config", file).json["tools"]
    assert tool["output_schema_problem"] == problem
    line = f"mcp-nursery: mcp_lab_sum: its results are not held against its output schema: {problem}"
    assert line in cli("tools", "--config", file).err.splitlines()


def test_what_has_changed(cli, hostile, tmp_path):
    cli("tools", "--config", hostile())
    (tmp_path / "tools").write_text(TOOL.replace("title", "other"))
    cli("tools", "--config", hostile())
    shown = cli("pins")
    assert (shown.code, bool(STEERS.search(shown.out))) == (4, False)
    check(shown, as_json=False)
    document = cli("pins", "--json")
    check(document, as_json=True)
    assert [change["fields"] for change in document.json["changes"]] == [["description", "inputSchema"]]


@pytest.mark.slow
def test_running_it(hostile):
    running = process("run", "--config", hostile())
    lines = [running.stdout.readline() for _ in range(3)]
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert not STEERS.search("".join([*lines, out, err]))
    assert "Traceback" not in err
    assert running.returncode == 0
