"""What a schema may cost, in the worst case."""

import pytest

from mcp_nursery.actors.connection.schema_cost import LIMIT, SchemaCost

TEXT = {"type": "string"}


def doubling(levels, keyword="anyOf"):
    """A few lines that ask for 2**levels steps."""
    steps = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**steps, f"d{levels}": TEXT}, "$ref": "#/$defs/d0"}


RECORDS = {"items": {"properties": {"id": {"type": "integer"}, "tags": {"items": TEXT}}, "additionalProperties": TEXT}}
TREE = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": {"type": "integer"}}}
FOREST = {"$defs": {"n": {"properties": {"a": {"allOf": [{"$ref": "#/$defs/n"}] * 2}}}}, "$ref": "#/$defs/n"}


@pytest.mark.parametrize(("schema", "most"), [({}, 2), (RECORDS, 4), ({"items": {"enum": list(range(9999))}}, 2)])
def test_an_ordinary_schema_costs_little_and_is_over_after_its_own_levels(schema, most):
    cost = SchemaCost(schema)
    assert cost.down_to(8) <= most
    assert cost.over
    assert cost.down_to(200) == cost.most


def test_one_that_refers_to_itself_costs_as_much_on_each_level():
    cost = SchemaCost(TREE)
    assert cost.down_to(3) == cost.down_to(200) < 10
    assert not cost.over


@pytest.mark.parametrize("keyword", ["anyOf", "allOf", "oneOf"])
def test_references_in_place_multiply(keyword):
    assert 2**10 < SchemaCost(doubling(10, keyword)).down_to(1) < 2**13
    assert SchemaCost(doubling(60, keyword)).down_to(1) > LIMIT


def test_references_multiply_with_each_level_of_the_content():
    cost = SchemaCost(FOREST)
    assert 2**5 < cost.down_to(6) < 2**8
    assert cost.down_to(200) > LIMIT


def test_what_is_compared_one_by_one_or_by_trial_and_error_counts():
    assert SchemaCost({"items": {"enum": [{"a": n} for n in range(500)]}}).down_to(2) > 500
    for pattern in (r"^(a|aa)+\1?$", "(?!x)a", "(?<=x)a"):
        assert SchemaCost({"pattern": pattern}).down_to(1) > 1000
        assert SchemaCost({"patternProperties": {pattern: {}}}).down_to(1) > 1000
    assert SchemaCost({"pattern": "^(?:a+)+$"}).down_to(1) < 10


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"not": {"$ref": "#"}}]},
        {"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}},
        {"$ref": "#/nowhere"},
        {"$ref": 5},
        {"anyOf": [{"const": n} for n in range(30_000)]},
    ],
)
def test_where_nobody_can_tell_it_is_beyond_the_limit(schema):
    assert SchemaCost(schema).down_to(1) > LIMIT


def test_references_into_lists_and_with_escapes():
    schema = {"$defs": {"a/b": {"anyOf": [TEXT, doubling(0)]}}, "items": {"$ref": "#/$defs/a~1b/anyOf/0"}}
    assert SchemaCost(schema).down_to(3) <= 4


@pytest.mark.parametrize("schema", [{"items": 5}, {"properties": [1]}, {"anyOf": {"a": 1}}, {"enum": 1, "pattern": 1}])
def test_nonsense_costs_nothing(schema):
    assert SchemaCost(schema).down_to(5) < 10
