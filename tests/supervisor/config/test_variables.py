"""K5: what `${…}` means, in headers and elsewhere, as values."""

import pytest

from mcp_nursery.supervisor.config.variables import (
    Surroundings,
    UnresolvedVariable,
    command_of,
    expand,
    expand_header,
    has_variables,
    how_to_pass_on,
    unresolved_in_header,
)

ENVIRON = {"SET": "process", "ONLY": "only process", "EMPTY": "", "NESTED": "${SET}", "workspaceFolder": "/evil"}
OWN = {"SET": "own", "OWN": "own only", "BLANK": "", "TWICE": "${SET} !date"}
AROUND = Surroundings(OWN, ENVIRON, workspace="/work", home="/home/me")


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("", ""),
        ("plain $SET $(SET) {SET} ${", "plain $SET $(SET) {SET} ${"),
        ("${SET}", "own"),
        ("${env:SET}", "process"),
        ("${ONLY}", "only process"),
        ("a${SET}b${OWN}c", "aownbown onlyc"),
        ("${workspaceFolder}/x", "/work/x"),
        ("${userHome}/x", "/home/me/x"),
        ("${workspaceFolderBasename}${/}x${pathSeparator}y", "work/x/y"),
        ("${GONE:-default}", "default"),
        ("${GONE:-}", ""),
        ("${GONE:-a:-b}", "a:-b"),
        ("${env:GONE:-x y}", "x y"),
        ("${env:OWN:-not own}", "not own"),
        ("${EMPTY}", ""),
        ("${EMPTY:-default}", "default"),
        ("${SET:-default}", "own"),
        ("${NESTED}", "${SET}"),
        ("${TWICE}", "${SET} !date"),
    ],
)
def test_outside_of_headers(text, expanded):
    """K5: the server's own block first, then the process's environment; what came in is not looked at again."""
    assert expand(text, AROUND.find) == expanded


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("${GONE}", "variable ${GONE} is not set"),
        ("x ${env:GONE} y", "variable ${env:GONE} is not set"),
        ("${env:OWN}", "variable ${env:OWN} is not set"),
        ("${input:token}", "variable ${input:token} is not set"),
        ("${}", "${…} is not a variable known here"),
        ("${sec ret}", "${…} is not a variable known here"),
        ("${SET:-${ONLY}}", "${SET}: a default cannot hold a variable"),
        ("${1A:-hunter2}", "${1A} is not a variable known here"),
        ("${//}", "${…} is not a variable known here"),
    ],
)
def test_what_has_no_value(text, says):
    """K5: an error with the variable's name, and never a default, which may be a secret."""
    with pytest.raises(UnresolvedVariable) as caught:
        expand(text, AROUND.find)
    assert str(caught.value) == says
    assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize(
    ("text", "expanded", "empty"),
    [
        ("Bearer ${OWN}", "Bearer own only", []),
        ("${SET}", "own", []),
        ("${ONLY}", "", ["${ONLY}"]),
        ("${env:SET}|${env:ONLY}", "|", ["${env:SET}", "${env:ONLY}"]),
        ("${workspaceFolder}${userHome}", "", ["${workspaceFolder}", "${userHome}"]),
        ("${ONLY:-default}", "default", []),
        ("${BLANK:-default}", "default", []),
        ("${BLANK}", "", []),
        ("${TWICE}", "${SET} !date", []),
        ("${what ever}", "", ["${…}"]),
        ("a ${GONE:-${SET}} b", "a  b", ["${GONE}"]),
    ],
)
def test_in_headers(text, expanded, empty):
    """K5: the server's own `env` block and nothing else; the rest is empty, and told of."""
    assert expand_header(text, OWN) == expanded
    assert unresolved_in_header(text, OWN) == empty


def test_commands():
    """K9."""
    assert command_of("!pass show x") == "pass show x"
    assert command_of(" !x") is command_of("x!") is command_of("") is None
    assert command_of("!") == ""


def test_what_needs_a_look():
    assert [has_variables(text) for text in ("", "$X", "${X", "${X}", "a${X}b")] == [False, False, False, True, True]


def test_no_value_is_shown():
    """L17."""
    assert "process" not in repr(AROUND)
    assert "own" not in repr(AROUND).replace("own=", "")


@pytest.mark.parametrize(
    ("variable", "way"),
    [
        ("${A_1}", '"env": {"A_1": "${env:A_1}"} passes it on to ${A_1}'),
        ("${env:A}", '"env": {"A": "${env:A}"} passes it on to ${A}'),
        ("${…}", None),
        ("${input:a}", None),
        ("${/}", None),
    ],
)
def test_how_a_header_gets_one(variable, way):
    """K5: a warning says what to do."""
    assert how_to_pass_on(variable) == way
