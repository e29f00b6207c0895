import json
import math

import pytest

from mcp_nursery.actors import errors
from mcp_nursery.actors.enums import Delivery, ServerState
from mcp_nursery.supervisor.cli import failures
from mcp_nursery.supervisor.cli.output import safe_line, safe_text, write_json
from mcp_nursery.supervisor.cli.statuses import counted, spoken

WHERE = {"server": "s", "tool": "t", "incarnation": 1}

CODES = [
    (errors.ConfigError("x", server="s"), 2),
    (errors.UnknownServer("s"), 2),
    (errors.UnknownTool("t", server="s"), 2),
    (errors.InvalidArguments("x"), 2),
    (errors.NotApproved("s", "t", "no"), 4),
    (errors.SupervisorClosed(), 3),
    (errors.ServerDown(server="s", tool="t", state=ServerState.FAILED), 3),
    (errors.ServerBusy(**WHERE), 3),
    (errors.ConnectionLost("x", **WHERE, delivery=Delivery.UNKNOWN), 3),
    (errors.CallTimeout(**WHERE, delivery=Delivery.UNKNOWN, timeout=1), 3),
    (errors.ServerError(**WHERE, code=-1, message="x"), 1),
    (errors.InvalidResult("x", **WHERE), 1),
    (errors.NurseryError("x"), 3),
]


@pytest.mark.parametrize(("error", "code"), CODES, ids=lambda value: type(value).__name__)
def test_every_error_has_an_exit_code_and_a_shape(error, code):
    assert failures.exit_code(error) == code
    document = failures.document_of(error)["error"]
    assert list(document) == ["type", "message", "server", "tool"]
    assert document["type"] == type(error).__name__
    assert document["message"] == failures.message_of(error)


def test_an_unknown_name_is_in_the_document():
    assert failures.document_of(errors.UnknownServer("s"))["error"]["server"] == "s"
    assert failures.document_of(errors.UnknownTool("t"))["error"]["tool"] == "t"


def test_text_cannot_steer_a_terminal():
    every = "".join(map(chr, [*range(0x100), 0x61C, 0x2028, 0x202E, 0x2066, ord("…"), 0x1F600]))
    left = [char for char in safe_text(every) if not char.isprintable()]
    assert left == ["\t", "\n", "\xa0", "\xad"]
    assert safe_text("\x1b[31;1mred\x1b[0m \x1b]0;title\x07 \x1b(0x") == "red ]0;title (0x"
    assert safe_line("a\r\nb\t\x1b[2Jc\x85d\n") == "a b cd"
    assert safe_line(None) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.9, "0 s"), (59.9, "59 s"), (200, "3 min 20 s"), (7505, "2 h 5 min"), (273_600, "3 d 4 h")],
)
def test_durations_are_for_people(seconds, text):
    assert spoken(seconds) == text


@pytest.mark.parametrize(("count", "words"), [(0, "0 losses"), (1, "1 loss"), (2, "2 losses")])
def test_one_is_singular(count, words):
    assert counted(count, "loss", "losses") == words
    assert (counted(1, "call"), counted(2, "call")) == ("1 call", "2 calls")


def test_a_number_that_json_does_not_know_is_null(capsys):
    """Servers send NaN and 1e999, and --json promises one JSON document."""
    write_json({"a": [math.nan, 1.5, {"b": (math.inf, "NaN", 10**30)}]})
    (document,) = json.loads(f"[{capsys.readouterr().out}]", parse_constant=pytest.fail)
    assert document == {"a": [None, 1.5, {"b": [None, "NaN", 10**30]}]}


@pytest.mark.parametrize("name", ["a\nb", "a\u2028b", "x" * 5000])
def test_an_error_is_one_line_whatever_a_tool_is_called(name):
    for error in (
        errors.NotApproved("s", name, "held\nback"),
        errors.UnknownTool(name),
        errors.InvalidResult("x", **{**WHERE, "tool": name}),
    ):
        assert len(str(error).splitlines()) == 1
        assert len(str(error)) <= 1000
