"""`resources`, `read`, `prompts` and `prompt`, with a server of the SDK, or in plain Python where that says no less."""

import json
import stat
import sys

import pytest

from ...lab import PROGRAMS
from ...lab.command_line import BROKEN, LAB, MISSING

SERVER = PROGRAMS / "nursery_library.py"
LIBRARY = {"command": sys.executable, "args": ["-I", str(SERVER), "stdio"]}
PLAIN = {"command": sys.executable, "args": ["-I", "-S", str(PROGRAMS / "plain_library.py")]}


@pytest.fixture
def library(config):
    return config(library=LIBRARY)


@pytest.fixture
def plain(config):
    return config(library=PLAIN)


def test_resources(cli, config):
    ran = cli("resources", "--json", "--config", config(library=LIBRARY, lab=LAB, broken=BROKEN))
    assert (ran.code, ran.err) == (0, "")
    assert list(ran.json) == ["resources", "templates", "errors"]
    assert [one["uri"] for one in ran.json["resources"]] == ["note://file", "note://picture", "note://today"]
    assert ran.json["resources"][1] == {
        "uri": "note://picture",
        "name": "picture",
        "server": "library",
        "mime_type": "image/png",
        "title": None,
        "description": "",
        "size": None,
    }
    assert ran.json["templates"] == [
        {
            "uri_template": "note://day/{day}",
            "name": "day",
            "server": "library",
            "mime_type": "text/plain",
            "title": None,
            "description": "",
        }
    ]
    assert list(ran.json["errors"]) == ["broken"]


@pytest.mark.parametrize("command", ["resources", "prompts"])
def test_lists_in_words(cli, config, command):
    ran = cli(command, "--config", config(library=PLAIN, missing=MISSING))
    rows = [line.split("\t") for line in ran.out.splitlines()]
    assert ran.code == 0
    assert ran.err.startswith("mcp-nursery: missing: ")
    assert len({len(row) for row in rows}) == 1
    if command == "resources":
        assert [row[0] for row in rows] == ["URI", "note://file", "note://picture", "note://today", "note://day/{day}"]
    else:
        assert rows[1][:3] == ["mcp_library_summarise", "library", "topic"]


@pytest.mark.parametrize("command", [["resources"], ["prompts"], ["read", "note://x"], ["prompt", "x"]])
def test_not_one_server_works(cli, config, command):
    ran = cli(*command, "--json", "--config", config(missing=MISSING))
    assert ran.code == 3
    assert "/nonexistent/command" in ran.out


@pytest.mark.slow
def test_a_text(cli, library):
    """Between marks, as a model may see it; of any server that has it, or of the one that is named."""
    ran = cli("read", "note://today", "--config", library)
    assert (ran.code, ran.err) == (0, "")
    first, text, last = ran.out.splitlines()
    assert text == "Buy milk."
    assert 'server="library"' in first
    assert last.startswith("</")
    said = cli("read", "note://day/monday", "--server", "library", "--json", "--config", library).json
    assert (said["uri"], said["server"], said["incarnation"], said["truncated"]) == (
        "note://day/monday",
        "library",
        1,
        False,
    )
    assert said["contents"] == [
        {"uri": "note://day/monday", "mimeType": "text/plain", "text": "Nothing on monday."},
    ]
    assert said["output"] is None


@pytest.mark.slow
def test_a_uri_that_several_have_is_read_from_the_one_that_is_named(cli, config):
    """However long one of them takes to start."""
    late = {"command": "/bin/sh", "args": ["-c", 'sleep 2; exec "$0" "$@"', PLAIN["command"], *PLAIN["args"]]}
    file = config(late=late, soon=PLAIN)
    ran = cli("read", "note://today", "--json", "--config", file)
    problem = "the URI 'note://today' does not show which server is meant: name one of late, soon"
    assert (ran.code, ran.json["error"]["type"], ran.json["error"]["message"]) == (2, "ContestedResource", problem)
    assert cli("read", "note://today", "--server", "late", "--json", "--config", file).json["server"] == "late"


@pytest.mark.slow
def test_what_is_binary(cli, plain, tmp_path):
    """It is described, or goes into a file as it is; so does a text."""
    described = cli("read", "note://picture", "--config", plain)
    assert "image/png, 8 characters of base64" in described.out
    file = tmp_path / "picture.png"
    ran = cli("read", "note://picture", "--output", file, "--config", plain)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert file.read_bytes() == b"\x89PNG"
    assert stat.S_IMODE(file.stat().st_mode) & 0o111 == 0
    said = cli("read", "note://today", "--output", file, "--json", "--config", plain).json
    assert said["output"] == str(file)
    assert file.read_text() == "Buy milk."


def test_prompts(cli, plain):
    ran = cli("prompts", "--json", "--config", plain)
    assert ran.json == {
        "prompts": [
            {
                "name": "mcp_library_summarise",
                "server": "library",
                "prompt": "summarise",
                "title": None,
                "description": "",
                "arguments": [{"name": "topic", "description": None, "required": True}],
            }
        ],
        "errors": {},
    }


@pytest.mark.slow
def test_a_prompt(cli, library):
    given = ["--args", '{"topic": "milk"}', "--config", library]
    ran = cli("prompt", "mcp_library_summarise", *given)
    assert (ran.code, ran.out, ran.err) == (0, "user: Summarise milk.\n", "")
    said = cli("prompt", "summarise", "--server", "library", "--json", *given).json
    assert said["messages"] == [{"role": "user", "content": {"type": "text", "text": "Summarise milk."}}]
    assert (said["server"], said["prompt"], said["signals"]) == ("library", "summarise", [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "failure", "said"),
    [
        (["read", "note://tod"], (2, "UnknownResource"), "did you mean 'note://today'"),
        (["read", "note://x", "--server", "librar"], (2, "UnknownServer"), "library"),
        (["read", "note://x", "--server", "library"], (1, "ServerError"), "Unknown resource"),
        (
            ["read", "note://today", "--output", "/nonexistent/x"],
            (2, "ConfigError"),
            "/nonexistent/x: cannot be written",
        ),
        (["prompt", "mcp_library_summarize"], (2, "UnknownPrompt"), "did you mean 'mcp_library_summarise'"),
        (["prompt", "mcp_library_summarise", "--args", "[]"], (2, "InvalidArguments"), "must be a JSON object"),
        (["prompt", "mcp_library_summarise", "--args", '{"topic": 1}'], (2, "InvalidArguments"), "must be texts"),
    ],
)
def test_what_goes_wrong(cli, plain, command, failure, said):
    ran = cli(*command, "--json", "--config", plain)
    assert ran.err == ""
    assert (ran.code, ran.json["error"]["type"]) == failure
    assert said in ran.json["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [["read", "note://today"], ["read", "note://today", "--server", "library"]])
def test_a_project_that_nobody_has_trusted(cli, tmp_path, monkeypatch, command):
    """Nothing is started; `--trust` says that it may."""
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"library": PLAIN}}))
    monkeypatch.chdir(tmp_path)
    ran = cli(*command, "--json")
    assert (ran.code, ran.json["error"]["type"]) == (4, "ServerDown")
    assert cli(*command, "--trust").code == 0
