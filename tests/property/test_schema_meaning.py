"""A schema counts by its meaning: in whatever order its parts come that have none, and whatever else changes counts."""

import copy
import json
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mcp_types import Tool as Definition

from mcp_nursery.supervisor.tools.fingerprint import MOST_VERBATIM_VALUES
from mcp_nursery.supervisor.tools.pins import pinned_text

NAMES = ["a", "b", "required", "enum", "type", "anyOf", "properties", "$ref"]
"""Names of properties too: those of keywords are names like others there."""

data = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(NAMES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=5,
)


def set_of(values):
    return st.lists(values, min_size=1, max_size=4)


def schemas_of(inner):
    keywords = {
        "type": st.sampled_from(["object", "string"]) | set_of(st.sampled_from(["null", "string", "array", "object"])),
        "required": set_of(st.sampled_from(NAMES)),
        "enum": set_of(data),
        "properties": st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        "$defs": st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), set_of(st.sampled_from(NAMES)), max_size=2),
        "dependencies": st.dictionaries(st.sampled_from(NAMES), set_of(st.sampled_from(NAMES)) | inner, max_size=2),
        **dict.fromkeys(("anyOf", "oneOf", "allOf"), set_of(inner)),
        **dict.fromkeys(("items", "not", "additionalProperties"), inner),
        "prefixItems": st.lists(inner, max_size=3),
        "default": data,
        "const": data,
        "examples": st.lists(data, max_size=3),
        "minimum": st.integers(0, 3),
        "description": st.sampled_from(NAMES),
        "$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/b"]),
    }
    return st.fixed_dictionaries({}, optional=keywords)


schemas = schemas_of(st.recursive(st.booleans() | st.just({}), schemas_of, max_leaves=5))

SETS = ("required", "enum", "type", "anyOf", "oneOf", "allOf")
MAPS = ("properties", "$defs")


def shuffled(schema, order):
    """The same, each part without an order in another."""
    if not isinstance(schema, dict):
        return schema
    entries = list(schema.items())
    order.shuffle(entries)
    return {key: shuffled_part(key, part, order) for key, part in entries}


def shuffled_part(key, part, order):
    if key in SETS and isinstance(part, list):
        parts = [shuffled(each, order) if key.endswith("Of") else each for each in part]
        order.shuffle(parts)
        return parts
    if key in MAPS:
        return {name: shuffled(each, order) for name, each in reversed(part.items())}
    if key.startswith("depend"):
        names = {name: order.sample(each, len(each)) if isinstance(each, list) else each for name, each in part.items()}
        return {name: shuffled(each, order) for name, each in names.items()}
    if key == "prefixItems":
        return [shuffled(each, order) for each in part]
    return shuffled(part, order) if key in ("items", "not", "additionalProperties") else part


def said(schema, **more):
    return pinned_text(Definition.model_construct(name="t", input_schema=schema, **more))


def places(value, way=()):
    """The way to each value in a schema."""
    yield way
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*way, key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from places(part, (*way, number))


def changed(schema, way, change):
    if not way:
        return change(schema)
    other = copy.copy(schema)
    other[way[0]] = changed(schema[way[0]], way[1:], change)
    return other


@pytest.mark.slow
@given(schema=schemas, seed=st.integers(0, 1000))
def test_an_order_without_meaning_is_no_change(schema, seed):
    other = shuffled(schema, random.Random(seed))
    assert said(other) == said(schema)
    assert said({}, output_schema=other) == said({}, output_schema=schema)
    assert json.loads(said(json.loads(said(schema))["inputSchema"])) == json.loads(said(schema))  # once and for all


@given(schema=schemas, pick=st.randoms(use_true_random=False), other=st.sampled_from(["new", 77, ["new"], {"new": 77}]))
def test_another_value_anywhere_is_a_change(schema, pick, other):
    """A member, a bound, an alternative, a name in a set, a word of a default."""
    way = pick.choice([*places(schema)][1:] or [()])
    assume(way)
    assert said(changed(schema, way, lambda _: other)) != said(schema)


@pytest.mark.slow
@given(schema=schemas, pick=st.randoms(use_true_random=False))
def test_a_member_more_or_less_is_a_change(schema, pick):
    objects = [way for way in places(schema) if isinstance(at(schema, way), dict)]
    way = pick.choice(objects)
    assert said(changed(schema, way, lambda value: {**value, "more": 1})) != said(schema)
    if at(schema, way):
        key = pick.choice(sorted(at(schema, way)))
        less = changed(schema, way, lambda value: {name: part for name, part in value.items() if name != key})
        assert said(less) != said(schema)


def at(value, way):
    for step in way:
        value = value[step]
    return value


ONE, OTHER = {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize(
    "schema",
    [
        {"prefixItems": [ONE, OTHER]},
        {"items": [ONE, OTHER]},
        {"default": ["b", "a"], "required": ["c", "d"]},
        {"const": ["b", "a"]},
        {"examples": ["b", "a"]},
        {"enum": [["b", "a"]]},
        {"default": {"required": ["b", "a"], "anyOf": [ONE, OTHER]}},
        {"properties": {"x": {"default": {"enum": ["b", "a"]}}}},
        {"x-unknown": {"required": ["b", "a"]}},
        {"anyOf": [ONE, OTHER], "properties": {"x": {"$ref": "#/anyOf/0"}}},
        {"properties": {"p": {"anyOf": [ONE, OTHER]}, "q": {"$ref": "#/properties/p/any%4Ff/1"}}},
    ],
)
def test_an_order_that_has_a_meaning(schema):
    """Of items in their places, of data, and of what is referred to by its place."""
    for big in ({}, {"$comment": [0] * (MOST_VERBATIM_VALUES + 1)}):
        assert said({**reversed_lists(schema), **big}) != said({**schema, **big})


def reversed_lists(value):
    """With all lists the other way round, but for the names that are required."""
    if isinstance(value, dict):
        return {key: part if part == ["c", "d"] else reversed_lists(part) for key, part in value.items()}
    return [reversed_lists(each) for each in value][::-1] if isinstance(value, list) else value


def test_properties_are_called_what_they_like():
    """A schema under the name of a keyword is one of a property."""
    of = {"properties": {"required": {"enum": ["b", "a"]}, "enum": {"type": ["null", "string"]}, "anyOf": ONE}}
    same = {"properties": {"anyOf": ONE, "enum": {"type": ["string", "null"]}, "required": {"enum": ["a", "b"]}}}
    assert said(of) == said(same)
    assert said(of) != said({"properties": {**of["properties"], "required": {"enum": ["a", "c"]}}})


def test_large_schemas_too():
    """What counts by its digest."""
    properties = {f"p{number}": {"anyOf": [ONE, OTHER, {"enum": [number, "x"]}]} for number in range(2000)}
    schema = {"properties": properties, "required": sorted(properties), "oneOf": [{"required": ["p1", "p2"]}, ONE]}
    other = shuffled(schema, random.Random(7))
    assert json.loads(said(schema))["inputSchema"][0] == "sha256-of-meaning"
    assert said(other) == said(schema)
    assert said({**other, "required": sorted(properties)[1:]}) != said(schema)
    another = {**properties, "p7": {"anyOf": [ONE, OTHER, {"enum": [7, "y"]}]}}
    assert said({**other, "properties": another}) != said(schema)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"default": [1, 23, "x" * 70_000]}, {"default": [12, 3, "x" * 70_000]}),
        ({"enum": [1, 23, *range(100_000, 105_001)]}, {"enum": [12, 3, *range(100_000, 105_001)]}),
        ({"enum": ["a", "b"], "enumNames": ["Delete", "Keep"]}, {"enum": ["b", "a"], "enumNames": ["Delete", "Keep"]}),
        (
            {"enum": ["a", "b"], "x-ui": {"labels": ["Delete", "Keep"]}, "$comment": "x" * 70_000},
            {"enum": ["b", "a"], "x-ui": {"labels": ["Delete", "Keep"]}, "$comment": "x" * 70_000},
        ),
        (
            {"oneOf": [{"title": "a"}, {"title": "b"}], "discriminator": {"mapping": {"x": "#/oneOf/0"}}},
            {"oneOf": [{"title": "b"}, {"title": "a"}], "discriminator": {"mapping": {"x": "#/oneOf/0"}}},
        ),
        ({"maximum": json.loads("1e999")}, {"maximum": None}),
        ({"enum": [json.loads("1e999"), 1], "maximum": 1}, {"enum": [None, 1], "maximum": 1}),
        ({"maximum": json.loads("1e999")}, {"maximum": json.loads("-1e999")}),
    ],
    ids=[
        *("numbers side by side", "many of them", "names of values", "names in a long schema", "a reference elsewhere"),
        *("beyond all numbers, and nothing", "of several values", "beyond at the other end"),
    ],
)
def test_what_means_something_else_is_told_apart(one, other):
    assert said(one) != said(other)
