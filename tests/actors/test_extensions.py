"""Extensions: identifiers, and the table of those with a standard."""

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
    checked_extensions,
    declares,
    is_identifier,
    settings_of,
)


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
