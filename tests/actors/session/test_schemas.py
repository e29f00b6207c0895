"""Holding content against a schema of the server's."""

import json
import logging
import time

import pytest

from mcp_nursery.actors.pieces import at_once
from mcp_nursery.actors.session.schemas import OutputSchema, SchemaViolation

from .test_schema_cost import FOREST, TEXT, doubling


def check(schema, content):
    at_once(OutputSchema(schema, tool="t").check(content))


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
    check(schema, content)
    assert time.process_time() - began < 2
    (record,) = caplog.records
    assert record.getMessage() == "a result of the tool 't' is not checked: its output schema is too complex"


@pytest.mark.parametrize(("schema", "content"), [(FOREST, deep(6)), (OBJECTS, [{"k": 1}] * 9)])
def test_the_same_schemas_are_used_where_they_are_harmless(schema, content, caplog):
    caplog.set_level(logging.INFO)
    check(schema, content)
    assert not caplog.records


@pytest.mark.parametrize("pattern", [r"(?=a)(a|aa)+$", r"(a)\1", r"(?<!x)a", r"(?:[ab]{1,500}){9}", "("])
def test_a_pattern_that_may_take_long_is_never_tried(pattern, caplog):
    """160,000 letters took 24 s against the first of them, and no deadline held."""
    caplog.set_level(logging.INFO)
    check({"properties": {"a": {"pattern": pattern}}}, {"a": "b"})
    assert "is not checked" in caplog.text


UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


@pytest.mark.parametrize(
    ("pattern", "fits", "count", "checked"),
    [
        (UUID, "0" * 8 + "-0000" * 3 + "-" + "0" * 12, 5_000, True),
        ("^[a-z-]+$", "a-slug", 30_000, True),
        ("[ab]*a[ab]{200}c", "x" * 100_000, 1, False),  # a microsecond a character
        (".", "x" * 8_000_000, 1, False),
        (".", "x" * 1_000_000, 1, True),
    ],
)
def test_patterns_are_tried_on_as_much_text_as_takes_no_time(pattern, fits, count, checked, caplog):
    caplog.set_level(logging.INFO)
    schema = {"items": {"pattern": pattern}}
    check(schema, [fits] * count)
    assert ("is not checked" not in caplog.text) is checked
    if checked:
        with pytest.raises(SchemaViolation, match="does not match"):
            check(schema, [fits] * (count - 1) + [""])


def test_patterns_of_names_count_too(caplog):
    caplog.set_level(logging.INFO)
    check({"patternProperties": {"[ab]*a[ab]{200}c": {}}}, {"x" * 100_000: 1})
    assert "is not checked" in caplog.text


def test_a_schema_that_takes_long_to_compile_is_never_compiled(caplog):
    caplog.set_level(logging.INFO)
    check({"$defs": {f"d{n}": {"type": "string"} for n in range(50_000)}, "type": "string"}, 5)
    assert "is not checked" in caplog.text


def with_patterns(count, length):
    """Patterns of so many characters each, none like another, in as many properties."""
    return {"properties": {str(at): {"pattern": str(at).ljust(length, "a")} for at in range(count)}}


UNEVALUATED = {"unevaluatedProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        with_patterns(1, 1_000_000),
        with_patterns(64, 65),
        {"patternProperties": {"a?" * 3000: {}}},
        {"$ref": "#/elsewhere/0", "elsewhere": [with_patterns(1, 500_000)]},
        {**doubling(24), **UNEVALUATED},
        {"$defs": {"a": {**doubling(24)["$defs"]["d0"], **UNEVALUATED}, **doubling(24)["$defs"]}, "$ref": "#/$defs/a"},
        {"properties": {str(at): {"$ref": "#", **UNEVALUATED} for at in range(2400)}, **UNEVALUATED},
        {"allOf": [{"$ref": "#"}], **UNEVALUATED},
        {"$defs": {"a": {"$anchor": "a", **doubling(24)["$defs"]["d0"]}}, "items": {"$ref": "#a"}},
        {"$defs": {"a": {"$id": "a", "$defs": {"b": {"type": "string"}}, "$ref": "#/$defs/b"}}, "$ref": "a"},
        {"$schema": "http://json-schema.org/draft-04/schema#", "not": {"id": "#a", "type": "string"}},
    ],
)
def test_what_takes_long_to_compile_is_taken_on_trust(schema, caplog):
    """To compile the first took 7 s, and the doubled ones would have taken minutes."""
    caplog.set_level(logging.INFO)
    began = time.process_time()
    check(schema, {"0": 1})
    assert time.process_time() - began < 1
    assert "is not checked" in caplog.text


@pytest.mark.parametrize(
    "schema",
    [
        with_patterns(63, 65),
        {**doubling(8), **UNEVALUATED},
        {"$id": "http://example.com/s", "$ref": "http://example.com/s#/$defs/a", "$defs": {"a": {"type": "object"}}},
        {"properties": {"id": {"type": "integer"}, "pattern": {"type": "string"}}, "default": {"id": "x"}},
    ],
)
def test_what_does_not_is_compiled(schema, caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises(SchemaViolation):
        check(schema, {"0": "?", "id": "x"} if "$id" not in schema else 5)
    assert not caplog.records


def test_an_error_quotes_the_beginning_of_what_does_not_fit():
    with pytest.raises(SchemaViolation) as raised:
        check({"type": "object"}, "x" * 5_000_000)
    assert len(str(raised.value)) < 1100


def test_an_error_in_a_recursive_schema_is_found_and_described():
    schema = {"properties": {"a": {"$ref": "#"}}, "type": "object"}
    check(schema, deep(150, {}))
    with pytest.raises(SchemaViolation, match='5 is not of type "object"'):
        check(schema, deep(150, 5))


def test_an_error_that_takes_too_long_to_describe_is_found_all_the_same():
    """To describe one with two levels more took 40 s."""
    began = time.process_time()
    with pytest.raises(SchemaViolation, match="too complex to say how"):
        check(doubling(16), {})
    assert time.process_time() - began < 2


def test_an_ordinary_list_of_any_length_is_checked():
    schema = {"items": {"properties": {"name": TEXT}}}
    with pytest.raises(SchemaViolation, match='5 is not of type "string"'):
        check(schema, [{"name": "x"}] * 100_000 + [{"name": 5}])
