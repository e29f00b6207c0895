"""What a schema may cost, in the worst case."""

import pytest

from mcp_nursery.actors.session.schema_cost import MOST_STEPS, SchemaCost, steps_for_a_character

TEXT = {"type": "string"}


def doubling(levels, keyword="anyOf"):
    """A few lines that ask for 2**levels steps."""
    steps = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**steps, f"d{levels}": TEXT}, "$ref": "#/$defs/d0"}


RECORDS = {"items": {"properties": {"id": {"type": "integer"}, "tags": {"items": TEXT}}, "additionalProperties": TEXT}}
TREE = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": {"type": "integer"}}}
FOREST = {"$defs": {"n": {"properties": {"a": {"allOf": [{"$ref": "#/$defs/n"}] * 2}}}}, "$ref": "#/$defs/n"}


@pytest.mark.parametrize(("schema", "most"), [({}, 2), (RECORDS, 4), ({"items": {"enum": list(range(9999))}}, 13)])
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
    assert SchemaCost(doubling(60, keyword)).down_to(1) > MOST_STEPS


def test_references_multiply_with_each_level_of_the_content():
    cost = SchemaCost(FOREST)
    assert 2**5 < cost.down_to(6) < 2**8
    assert cost.down_to(200) > MOST_STEPS


def test_what_is_compared_one_by_one_counts():
    assert SchemaCost({"items": {"enum": [{"a": n} for n in range(500)]}}).down_to(2) > 500
    assert SchemaCost({"uniqueItems": True}).down_to(1) > 30


def reading(schema):
    return SchemaCost(schema, steps_for_a_character).down_to(1)


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [
        ("^[a-z]{8}-[0-9]{4}$", 10, 10),
        ("^a+$", 4, 10),
        ("[ab]*a[ab]{200}c", 200, 300),
        ("(?:a{10}){20}", 2000, MOST_STEPS),
        ("(?:(?:a{9999}){9999}){9999}", MOST_STEPS, MOST_STEPS + 1),
        ("a{,}{9}", 7, 30),
    ],
)
def test_what_a_pattern_may_cost_for_each_character(pattern, least, most):
    assert least <= reading({"pattern": pattern}) <= most
    assert least <= reading({"patternProperties": {pattern: {}}}) <= most
    assert 2 * least <= reading({"allOf": [{"pattern": pattern}] * 2}) or least == MOST_STEPS


def test_a_schema_of_too_many_patterns_is_beyond_the_limit():
    assert SchemaCost({"anyOf": [{"pattern": f"a{n}"} for n in range(500)]}).down_to(1) > MOST_STEPS


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
    assert SchemaCost(schema).down_to(1) > MOST_STEPS


def test_references_into_lists_and_with_escapes():
    schema = {"$defs": {"a/b": {"anyOf": [TEXT, doubling(0)]}}, "items": {"$ref": "#/$defs/a~1b/anyOf/0"}}
    assert SchemaCost(schema).down_to(3) <= 4


@pytest.mark.parametrize("schema", [{"items": 5}, {"properties": [1]}, {"anyOf": {"a": 1}}, {"enum": 1, "pattern": 1}])
def test_nonsense_costs_nothing(schema):
    assert SchemaCost(schema).down_to(5) < 10
