import io
import json
import sys

import pytest

from mcp_nursery.supervisor.cli import demo_server
from mcp_nursery.supervisor.cli.demo_server import CRASH, TOOLS, DemoRefusal, DemoServer, DemoTool, ToolFailed


def fail(_arguments):
    raise ToolFailed("no")


def refuse(_arguments):
    raise DemoRefusal(-1, "never")


@pytest.fixture
def server():
    return DemoServer("demo", {**TOOLS, "fail": DemoTool(fail, ""), "refuse": DemoTool(refuse, ""), "crash": CRASH})


def ask(server, method, /, **params):
    return server.reply(json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}))


def test_it_answers_the_handshake(server):
    result = ask(server, "initialize", protocolVersion="2025-06-18")["result"]
    assert result["protocolVersion"] == "2025-06-18"
    assert result["serverInfo"]["name"] == "demo"
    assert ask(server, "initialize", protocolVersion="1999-01-01")["result"]["protocolVersion"] == "2025-11-25"
    assert ask(server, "ping")["result"] == {}


def test_it_lists_and_runs_tools(server):
    assert {tool["name"] for tool in ask(server, "tools/list")["result"]["tools"]} >= {"echo", "now"}
    result = ask(server, "tools/call", name="echo", arguments={"text": "hi"})["result"]
    assert result == {"content": [{"type": "text", "text": "hi"}]}
    assert ":" in ask(server, "tools/call", name="now")["result"]["content"][0]["text"]
    assert ask(server, "tools/call", name="fail")["result"]["isError"] is True


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"txt": "hi"}, "the argument 'text' is missing; there is no argument 'txt'"),
        ({}, "the argument 'text' is missing"),
    ],
)
def test_an_argument_that_is_missing_is_named(server, given, problem):
    """Also where it is given under another name."""
    result = ask(server, "tools/call", name="echo", arguments=given)["result"]
    assert result == {"content": [{"type": "text", "text": problem}], "isError": True}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{", -32700),
        ("[]", -32600),
        ('{"id": 1, "method": "server/discover"}', -32601),
        ('{"id": 1, "method": "tools/call", "params": {"name": "nothing"}}', -32602),
        ('{"id": 1, "method": "tools/call", "params": {"name": "refuse"}}', -1),
    ],
)
def test_it_refuses_by_code(server, line, code):
    assert server.reply(line)["error"]["code"] == code


@pytest.mark.parametrize("line", ['{"method": "notifications/initialized"}', '{"id": 1, "result": {}}'])
def test_it_is_silent_about_what_is_no_request(server, line):
    assert server.reply(line) is None


@pytest.mark.parametrize(("argv", "names"), [([], ["echo", "now"]), (["--crash"], ["echo", "now", "crash"])])
def test_it_serves_its_standard_streams(monkeypatch, capsys, argv, names):
    lines = ['{"method": "notifications/initialized"}', '{"id": 1, "method": "tools/list"}']
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    demo_server.main(argv)
    (answer,) = capsys.readouterr().out.splitlines()
    assert [tool["name"] for tool in json.loads(answer)["result"]["tools"]] == names


def test_its_crash_has_exit_code_3(server):
    with pytest.raises(SystemExit) as caught:
        ask(server, "tools/call", name="crash")
    assert caught.value.code == 3
