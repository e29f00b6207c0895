"""Extensions: identifiers, and the table of those with a standard."""

import functools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.extension import validate_extension_identifier

from mcp_nursery.actors.extensions import (
    APPS,
    EXTENSION_OF,
    EXTENSIONS,
    SKILLS,
    TASKS,
    checked_extensions,
    declares,
    is_identifier,
    settings_of,
    takes,
    united,
)
from mcp_nursery.actors.session.requests import RelayedRequest


def _sdk_takes(identifier: object) -> bool:
    try:
        validate_extension_identifier(identifier, owner="x")
    except TypeError:
        return False
    return True


@given(st.one_of(st.text("aZ09.-_/ \nä", max_size=12), st.integers(), st.none()))
def test_identifiers_are_those_that_the_sdk_takes(identifier: object) -> None:
    assert is_identifier(identifier) == _sdk_takes(identifier)


def test_the_table_is_in_order() -> None:
    assert all(is_identifier(identifier) and each.identifier == identifier for identifier, each in EXTENSIONS.items())
    assert sum(len(each.requests) for each in EXTENSIONS.values()) == len(EXTENSION_OF)  # no request has two owners
    assert all(set(each.needs) <= set(each.requests) for each in EXTENSIONS.values())


def test_extensions_are_copied_at_depth() -> None:
    settings = {"mimeTypes": ["text/html"]}
    copy = checked_extensions({APPS: settings})
    settings["mimeTypes"].append("more")
    assert copy == {APPS: {"mimeTypes": ["text/html"]}}


def nested(levels: int) -> dict[str, Any]:
    return functools.reduce(lambda inner, _: {"a": inner}, range(levels - 1), {})


@pytest.mark.parametrize(
    ("extensions", "problem"),
    [
        (None, "must be the settings of extensions by their identifiers"),
        ([APPS], "must be the settings of extensions by their identifiers"),
        ({"ui": {}}, "'ui' identifies no extension: write it as in 'com.example/name'"),
        ({1: {}}, "1 identifies no extension: write it as in 'com.example/name'"),
        ({APPS: True}, f"the settings of {APPS} must be an object, such as {{}}"),
        ({APPS: {"a": {1}}}, "the settings of extensions must be JSON"),
        ({APPS: {"a": float("nan")}}, "the settings of extensions must be JSON"),
        ({APPS: nested(200)}, "the settings of extensions are nested deeper than 200 levels"),
    ],
)
def test_a_wrong_declaration_is_refused_in_one_line(extensions: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem) + "$"):
        checked_extensions(extensions)


@pytest.mark.parametrize("capabilities", [None, {}, {"extensions": None}, {"extensions": {SKILLS: True}}])
def test_what_is_not_declared_has_no_settings(capabilities: dict[str, Any] | None) -> None:
    assert settings_of(capabilities, SKILLS) is None
    assert not declares(capabilities, SKILLS)


def test_empty_settings_declare_an_extension() -> None:
    assert settings_of({"extensions": {SKILLS: {}}}, SKILLS) == {}
    assert declares({"extensions": {SKILLS: {}}}, SKILLS)


def test_a_server_takes_the_requests_of_the_extensions_that_it_declares() -> None:
    reads = {"extensions": {SKILLS: {"directoryRead": True}}}
    assert takes(reads, "skills/get")
    assert takes(reads, "resources/directory/read")
    for other in ({"directoryRead": "true"}, {}):
        assert not takes({"extensions": {SKILLS: other}}, "resources/directory/read")
    assert not takes(reads, "tasks/get")
    assert not takes(reads, "com.example/do")
    assert takes({"extensions": {"a.b/c": {}}}, "com.example/do")


def test_settings_in_which_servers_differ_are_left_out() -> None:
    """But for those that one server is enough for. What is no object declares nothing."""
    servers: list[Any] = [
        {"extensions": {SKILLS: {"a": 1, "b": 2}, TASKS: {}, "a.b/c": {"x": [1]}}},
        {"extensions": {SKILLS: {"a": 1, "b": 3, "directoryRead": True}, "a.b/c": True}},
        {"extensions": {SKILLS: {"a": 1}, TASKS: {"y": 1}, APPS: None}},
        {"extensions": [APPS]},
        None,
    ]
    assert united(servers) == {SKILLS: {"a": 1, "directoryRead": True}, TASKS: {}, "a.b/c": {"x": [1]}}


def test_a_request_about_a_task_names_it_in_a_header() -> None:
    request = RelayedRequest("tasks/get", None, protocol_version="2026-07-28", stamp={})
    assert request.headers(b'{"taskId":"abc"}')["mcp-name"] == "abc"
