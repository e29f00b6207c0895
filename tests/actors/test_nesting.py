"""How deep is too deep."""

import json

import orjson
import pytest

from mcp_nursery.actors.nesting import MAX_NESTING, nested_too_deep


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
