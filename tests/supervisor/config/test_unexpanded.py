"""What other hosts and shells expand, and what stays as it stands here: one line with file, server and field."""

import json

import pytest

from mcp_nursery.supervisor import load_config

HOME = "~/ stays as it stands: ${userHome}/ is the home folder"
VARIABLES = {form: f"{form} stays as it stands: ${{NAME}} is a variable" for form in ("$NAME", "%NAME%", "{{NAME}}")}
DOLLAR, PERCENT, BRACES = VARIABLES.values()


def warnings_for(tmp_path, entry, name="servers.json", root="mcpServers"):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({root: {"s": entry}}))
    return [line.removeprefix(f"{file}: server 's': ") for line in load_config(file).warnings]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("~/notes", HOME),
        ("--dir=~/notes", HOME),
        ("$HOME/notes", DOLLAR),
        ("--dir=$HOME", DOLLAR),
        ("a:$PATH", DOLLAR),
        ("%APPDATA%/x", PERCENT),
        ("%LOCALAPPDATA%", PERCENT),
        ("{{API_KEY}}", BRACES),
        ("Bearer {{ TOKEN }}", BRACES),
        ("${HOME}/notes", None),
        ("${userHome}/notes", None),
        ("a~/b", None),
        ("~", None),
        ("pa$$word", None),
        ("pa$WORD", None),
        ("$1", None),
        ("$lower", None),
        ("100%", None),
        ("a%20b%20c", None),
        ("%AB%CD", None),
        ("{{.Name}}", None),
        ("{{ name }}", None),
    ],
)
def test_a_text_that_nobody_expands(tmp_path, text, advice):
    """K5: in `env` and in `args`; one line each, however often."""
    found = warnings_for(tmp_path, {"command": "x", "args": ["a", text, text], "env": {"A": text, "B": "b"}})
    assert found == ([] if advice is None else [f"field 'env.A': {advice}", f"field 'args': {advice}"])


def test_nothing_of_the_text_is_shown(tmp_path):
    """K6: it may be a secret that looks so."""
    (line,) = warnings_for(tmp_path, {"command": "x", "env": {"PASSWORD": "$HUNTER2"}})
    assert line == f"field 'env.PASSWORD': {DOLLAR}"


@pytest.mark.parametrize("command", ["sh", "/bin/bash", "ssh"])
def test_a_command_that_expands_its_arguments(tmp_path, command):
    """K5: not what its server gets in `env`."""
    entry = {"command": command, "args": ["-c", "cd $HOME && ls ~/x"], "env": {"A": "$HOME"}}
    assert warnings_for(tmp_path, entry) == [f"field 'env.A': {DOLLAR}"]


def test_a_command_s_output_is_another_matter(tmp_path):
    """K5: a shell runs it."""
    assert warnings_for(tmp_path, {"command": "x", "env": {"A": "!cat ~/token"}}) == []


def test_what_a_dialect_translates(tmp_path):
    """K1: `$NAME` of Gemini CLI is a variable."""
    entry = {"command": "x", "args": ["$HOME", "%HOME%"], "env": {"A": "$HOME"}}
    assert warnings_for(tmp_path, entry, ".gemini/settings.json") == [f"field 'args': {PERCENT}"]


def test_an_entry_that_cannot_work(tmp_path):
    """K5: its own error says more."""
    assert warnings_for(tmp_path, {"command": "", "args": ["~/x"]}) == []
