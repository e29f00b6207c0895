"""Holding content against a schema of the server's."""

import json
import logging
import time

import pytest

from mcp_nursery.actors.connection.output_schema import OutputSchema, SchemaViolation

from .test_schema_cost import FOREST, TEXT, doubling


def deep(levels, inside=1):
    return json.loads('{"a":' * levels + json.dumps(inside) + "}" * levels)


BACKTRACKS = {"items": {"not": {"pattern": r"^(a|aa)+\1?(?!x)$"}}}
OBJECTS = {"items": {"enum": [{"k": number} for number in range(5000)]}}


@pytest.mark.parametrize(
    ("schema", "content"),
    [
        (doubling(60), {}),
        (FOREST, deep(150)),
        (BACKTRACKS, ["a" * 200 + "!"] * 20_000),
        (OBJECTS, [{"k": 4999}] * 5000),
        ({"$ref": "#"}, {}),
    ],
)
def test_what_would_take_too_long_is_taken_on_trust(schema, content, caplog):
    """The first three would take longer than the universe will last, or hours."""
    caplog.set_level(logging.INFO)
    began = time.process_time()
    OutputSchema(schema, tool="t").check(content)
    assert time.process_time() - began < 2
    (record,) = caplog.records
    assert record.getMessage() == "a result of the tool 't' is not checked: its output schema is too intricate"


@pytest.mark.parametrize(("schema", "content"), [(FOREST, deep(6)), (BACKTRACKS, ["b"] * 5), (OBJECTS, [{"k": 1}] * 9)])
def test_the_same_schemas_are_used_where_they_are_harmless(schema, content, caplog):
    caplog.set_level(logging.INFO)
    OutputSchema(schema, tool="t").check(content)
    assert not caplog.records


def test_an_error_in_a_recursive_schema_is_found_and_described():
    schema = {"properties": {"a": {"$ref": "#"}}, "type": "object"}
    OutputSchema(schema, tool="t").check(deep(150, {}))
    with pytest.raises(SchemaViolation, match='5 is not of type "object"'):
        OutputSchema(schema, tool="t").check(deep(150, 5))


def test_an_error_that_takes_too_long_to_describe_is_found_all_the_same():
    """To describe one with two levels more took 40 s."""
    began = time.process_time()
    with pytest.raises(SchemaViolation, match="too intricate to say how"):
        OutputSchema(doubling(16), tool="t").check({})
    assert time.process_time() - began < 2


def test_an_ordinary_list_of_any_length_is_checked():
    schema = {"items": {"properties": {"name": TEXT}}}
    with pytest.raises(SchemaViolation, match='5 is not of type "string"'):
        OutputSchema(schema, tool="t").check([{"name": "x"}] * 100_000 + [{"name": 5}])
