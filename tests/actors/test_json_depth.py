"""How deep is too deep."""

import json

import orjson
import pytest

from mcp_nursery.actors.json_depth import MAX_NESTING, may_be_nested_too_deep, nested_too_deep, size_of


def nested(levels, inside=()):
    value = list(inside)
    for level in range(levels - 1):
        value = {"a": value, "b": 1} if level % 2 else [1, value]
    return {"": value}


@pytest.mark.parametrize(("levels", "too_deep"), [(1, False), (199, False), (200, True), (5000, True)])
def test_levels_are_counted(levels, too_deep):
    assert nested_too_deep(nested(levels)) is too_deep
    assert nested_too_deep({"wide": [{"a": [level]} for level in range(1000)], **nested(levels)}) is too_deep


def test_an_empty_value():
    assert not nested_too_deep({})


def test_what_is_let_in_can_be_written():
    """By every library a host may use."""
    value = nested(MAX_NESTING - 1)
    assert orjson.loads(orjson.dumps(value)) == json.loads(json.dumps(value)) == value


@pytest.mark.parametrize("value", [None, 1, "[[[[", 1.5, True])
def test_what_is_flat_is_not_nested(value):
    assert not nested_too_deep(value)


def test_a_text_that_may_be_nested_too_deep_has_the_brackets_for_it():
    assert not may_be_nested_too_deep(b"[" * MAX_NESTING)
    assert not may_be_nested_too_deep(b"[" * MAX_NESTING + b"]" * MAX_NESTING)
    assert may_be_nested_too_deep(b"[" * (MAX_NESTING + 1) + b"]" * (MAX_NESTING + 1))
    assert may_be_nested_too_deep(b'[{"a":' * (MAX_NESTING // 2) + b"[")


@pytest.mark.parametrize(("value", "size"), [(1, (1, 1)), ([], (1, 1)), ({"a": [1, 2], "b": 3}, (3, 5))])
def test_the_size_of_a_value(value, size):
    assert size_of(value) == size
