import pytest

from ...lab.command_line import BROKEN, LAB, MISSING

ECHO = ["echo", "--args", '{"text": "hé\\nthere"}']


@pytest.fixture
def two(config):
    return config(lab=LAB, twin=LAB)


def marked(text, *, server, tool):
    return f'<mcp_tool_output server="{server}" tool="{tool}" trust="untrusted">\n{text}\n</mcp_tool_output>'


def lines(text, *, tool, head, servers=("lab", "twin")):
    return [
        f"{server}: {head}{line}" for server in servers for line in marked(text, server=server, tool=tool).split("\n")
    ]


def test_outcomes(cli, two):
    ran = cli("fan-out", *ECHO, "--config", two, "--yes")
    assert (ran.code, ran.err) == (0, "")
    assert sorted(ran.out.splitlines()) == sorted(lines("hé\nthere", tool="echo", head=""))


def test_outcomes_as_json(cli, two):
    ran = cli("fan-out", *ECHO, "--config", two, "--yes", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert list(ran.json) == ["tool", "outcomes"]
    assert ran.json["tool"] == "echo"
    outcomes = sorted(ran.json["outcomes"], key=lambda outcome: outcome["index"])
    assert [(one["index"], one["server"], one["tool"]) for one in outcomes] == [(0, "lab", "echo"), (1, "twin", "echo")]
    for one in outcomes:
        assert list(one) == ["index", "server", "tool", "result", "error", "duration"]
        assert 0 < one["duration"] < 10
        assert 0 < one["result"].pop("duration") < 10
        assert one["error"] is None
        assert one["result"] == {
            "is_error": False,
            "text": marked("hé\nthere", server=one["server"], tool="echo"),
            "content": [{"type": "text", "text": "hé\nthere"}],
            "structured": None,
            "incarnation": 1,
            "truncated": False,
            "signals": [],
        }


def test_only_servers_that_have_the_tool(cli, config):
    file = config(lab=LAB, broken=BROKEN, missing=MISSING, off={**LAB, "disabled": True})
    ran = cli("fan-out", *ECHO, "--config", file, "--yes", "--json")
    assert ran.code == 0
    assert [one["server"] for one in ran.json["outcomes"]] == ["lab"]


@pytest.mark.parametrize("until", ["first", "1"])
def test_until(cli, two, until):
    ran = cli("fan-out", *ECHO, "--until", until, "--config", two, "--yes", "--json")
    assert (ran.code, len(ran.json["outcomes"])) == (0, 1)


def test_a_quorum_that_is_never_reached(cli, two):
    ran = cli("fan-out", *ECHO, "--until", "3", "--config", two, "--yes", "--json")
    assert (ran.code, len(ran.json["outcomes"])) == (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "code", "kind"),
    [
        (["refuse"], 1, "ServerError"),
        (["crash"], 3, "ConnectionLost"),
        (["slow", "--args", '{"seconds": 1}', "--timeout", "0.2"], 3, "CallTimeout"),
    ],
)
def test_errors(cli, two, args, code, kind):
    ran = cli("fan-out", *args, "--config", two, "--yes", "--json")
    assert (ran.code, ran.err) == (code, "")
    for outcome in ran.json["outcomes"]:
        assert outcome["result"] is None
        assert list(outcome["error"]) == ["type", "message", "server", "tool"]
        assert (outcome["error"]["type"], outcome["error"]["server"]) == (kind, outcome["server"])
        assert outcome["error"]["tool"] == args[0]
    ran = cli("fan-out", *args, "--config", two, "--yes")
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (code, "", 2)
    assert "\x1b" not in ran.err


def test_the_tool_says_it_failed(cli, two):
    ran = cli("fan-out", "fail", "--config", two, "--yes")
    assert (ran.code, ran.err) == (1, "")
    assert sorted(ran.out.splitlines()) == sorted(lines("it did not work", tool="fail", head="error: "))


@pytest.mark.parametrize(
    ("args", "code", "kind"),
    [
        (["ecko", "--yes"], 2, "UnknownTool"),
        (["mcp_lab_echo", "--yes"], 2, "UnknownTool"),
        (["echo", "--args", "[1]", "--yes"], 2, "InvalidArguments"),
        (["echo"], 4, "NotApproved"),
    ],
)
def test_failures(cli, two, args, code, kind):
    ran = cli("fan-out", *args, "--config", two, "--json")
    assert (ran.code, ran.err, ran.json["error"]["type"]) == (code, "", kind)
    ran = cli("fan-out", *args, "--config", two)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (code, "", 1)


def test_an_unknown_tool_names_what_is_near_and_who_is_down(cli, config):
    ran = cli("fan-out", "ecko", "--config", config(lab=LAB, broken=BROKEN), "--yes")
    assert "'echo'" in ran.err
    assert "(not connected: broken)" in ran.err


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 4)])
def test_it_asks_once_for_all(tty, screen, two, answer, code):
    screen.when("[y/N]", lambda: screen.type(answer))
    ran = tty("fan-out", *ECHO, "--config", two)
    assert ran.code == code
    assert ran.out.count("[y/N]") == 1
    assert "server:    lab\r\nserver:    twin\r\ntool:      echo" in ran.out
    assert "on these 2 servers" in ran.out
    assert ("not approved" in ran.out) == (code == 4)


def test_names_cannot_steer_a_terminal(tty, config):
    ran = tty("fan-out", *ECHO, "--config", config(**{"la\x1b[2Jb": LAB}), "--yes")
    assert ran.code == 0
    assert "lab: " in ran.out
    assert "\x1b" not in ran.out


def test_text_cannot_steer_a_terminal(tty, lab):
    ran = tty("fan-out", "rude", "--config", lab, "--yes")
    assert ran.code == 0
    said = "]0;titlered2J [bold]text[/bold]\nnext\tline"
    assert ran.out.splitlines() == lines(said, tool="rude", head="", servers=["lab"])
