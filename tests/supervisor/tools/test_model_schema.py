"""Input schemas as the APIs of models take them: one that they refuse would cost the tools of all servers."""

import gc
import time

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.pieces import at_once
from mcp_nursery.supervisor.tools.model_schema import ModelSchema, compiles_anywhere

ROOT = {"type": "object"}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
METASCHEMA = jsonschema_rs.Draft202012Validator({"$ref": "https://json-schema.org/draft/2020-12/schema"})
TEXT, NUMBER = {"type": "string"}, {"type": "number"}


def made(declared):
    return at_once(ModelSchema.of(declared))


def model_schema(declared):
    return made(declared).as_dict()


def nested_in(keyword, levels):
    schema = {}
    for _ in range(levels):
        schema = {keyword: schema}
    return schema


def only(schema):
    """The schema of the one property `a`, once its tool has been shown to a model."""
    return model_schema({**ROOT, "properties": {"a": schema}})["properties"]["a"]


@pytest.mark.parametrize(
    "schema",
    [
        {**ROOT, "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False},
        {**ROOT, "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": TEXT}},
        {**ROOT, "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"anyOf": [TEXT, {"$ref": "#/$defs/A"}]}}},
        {**ROOT, "properties": {"a": {"$ref": "#/$defs/b~1c"}}, "$defs": {"b/c": TEXT}},
        {**ROOT, "properties": {"a": {"oneOf": [TEXT, {"not": NUMBER}]}}, "if": {}, "then": {"required": ["a"]}},
        {**ROOT, "properties": {"a": {"type": "array", "items": TEXT}, "b": {"type": ["array", "null"], "items": {}}}},
        {**ROOT, "properties": {"enum": TEXT, "anyOf": TEXT, "items": {"type": "array", "items": {}}}},
        {**ROOT, "properties": {"a": {"const": {"type": "array"}, "default": {"items": [5]}, "examples": [{"x": 1}]}}},
        {**ROOT, "properties": {}, "x-mine": [{"items": [5]}]},
    ],
)
def test_what_apis_take_is_left_as_it_is(schema):
    assert model_schema(schema) == schema


@pytest.mark.parametrize(
    "schema",
    [
        {},
        DRAFT_7,
        {"type": "string"},
        {"type": ["object", "null"]},
        {"properties": [1]},
    ],
)
def test_the_root_is_always_an_object(schema):
    """T19: these two keys are asked for by every API, whatever a server has there."""
    assert model_schema(schema) == {"type": "object", "properties": {}}


def test_alternatives_at_the_root_are_properties():
    """T19: as a large vendor's server declares the tool that cost all others, with three ways to name a file."""
    ways = [{**ROOT, "properties": {"name": TEXT, key: TEXT}, "required": ["name", key]} for key in ("text", "url")]
    assert model_schema({**ROOT, "anyOf": ways}) == {
        **ROOT,
        "properties": {"name": TEXT, "text": TEXT, "url": TEXT},
        "required": ["name"],
    }
    assert model_schema({"oneOf": ways}) == model_schema({"anyOf": ways})
    assert model_schema({**ROOT, "allOf": ways})["required"] == ["name", "text", "url"]


def test_alternatives_of_one_property_are_its_own():
    kinds = [{"properties": {"kind": {"const": each}, "own": NUMBER}} for each in ("x", "y", "x")]
    schema = {"oneOf": kinds, "properties": {"own": TEXT}, "required": ["own"], "additionalProperties": False}
    assert model_schema(schema) == {
        **ROOT,
        "properties": {"own": TEXT, "kind": {"anyOf": [{"const": "x"}, {"const": "y"}]}},
        "required": ["own"],
        "additionalProperties": False,
    }


def test_a_root_that_is_a_reference():
    """T19: generators of schemas give a named one as a reference to its definition."""
    defs = {"A": {**ROOT, "properties": {"a": TEXT, "next": {"$ref": "#/$defs/A"}}, "required": ["a"]}}
    schema = model_schema({"$ref": "#/$defs/A", "$defs": defs})
    assert schema == {**ROOT, "properties": defs["A"]["properties"], "required": ["a"], "$defs": defs}
    assert model_schema({"$ref": "#/$defs/B", "$defs": defs})["properties"] == {}
    assert model_schema({"$ref": "#"}) == {**ROOT, "properties": {}}


def test_references_that_refer_to_each_other_often():
    """A schema of n definitions that name each other twice has 2 ** n paths."""
    defs = {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2, "properties": {f"p{n}": TEXT}} for n in range(60)}
    began = time.process_time()
    assert len(model_schema({"$ref": "#/$defs/0", "$defs": defs})["properties"]) == 60
    assert time.process_time() - began < 5


def anything(count):
    return {f"p{n}": True for n in range(count)}


def live_references_in(keyword, levels):
    return {keyword: live_references_in(keyword, levels - 1)} if levels else {"$ref": "#/x"}


A = {"A": {"properties": anything(2400)}}
LETTERS = "ABCDEFGHIJ"
SPELLED = ["".join(c if n >> at & 1 else f"%{ord(c):02x}" for at, c in enumerate(LETTERS)) for n in range(900)]
"""One name, written in many ways."""
LAYERS = {f"L{n}": {"allOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 30} for n in range(30)}
EACH_BY_ANOTHER = {f"B{n}": {"allOf": [{"$ref": "#/$defs/A"}]} for n in range(500)}
SPRAWLING = {
    "one object, 1,200 times": {"anyOf": [{"$ref": "#/$defs/A"}] * 1200, "$defs": A},
    "itself": {"allOf": [{"$ref": "#"}] * 900, "properties": anything(2400)},
    "layers": {"$ref": "#/$defs/L0", "$defs": {**LAYERS, "L30": {"properties": anything(2400)}}},
    "one object by 500 others": {
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in EACH_BY_ANOTHER],
        "$defs": {**EACH_BY_ANOTHER, "A": {"properties": anything(1400), "required": list(anything(500))}},
    },
    "one object, spelled in 900 ways": {
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in SPELLED],
        "$defs": {LETTERS: {"properties": anything(1800)}},
    },
    "conditions inside of conditions": {
        "properties": {f"p{n}": live_references_in("not", 34) for n in range(120)},
        "x": {},
    },
    "more errors than are mended": {"properties": {f"p{n}": {"anyOf": [{"type": 1}] * 10} for n in range(200)}},
    "a long list of values": {"properties": {"a": {"enum": [1] * 200_000}}},
}


@pytest.fixture
def uncollected():
    """No collection of garbage: it would look at all tests of this process in one turn."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("schema", SPRAWLING.values(), ids=SPRAWLING)
def test_the_work_for_a_schema_grows_with_its_text(schema, uncollected):
    """Some of 60 kB took ten seconds, in which nobody else had a turn."""
    work, turns = ModelSchema.of(schema), []
    while True:
        began = time.thread_time()
        try:
            next(work)
        except StopIteration as done:
            shown = done.value.as_dict()
            break
        finally:
            turns.append(time.thread_time() - began)
    assert max(turns) < 0.05
    assert sum(turns) < 0.5  # a tenth of it on a quiet machine
    assert shown["properties"]


def test_a_condition_that_refers_to_one_that_was_taken_out_is_taken_out():
    dead = {"not": {"$ref": "#/nowhere"}}
    schema = {**ROOT, "properties": {"a": {"not": {"$ref": "#/properties/b/not"}}, "b": dead}}
    assert model_schema(schema) == {**ROOT, "properties": {"a": {}, "b": {}}}


@pytest.mark.parametrize(
    "reference",
    [
        "#/$defs/Missing",
        "#/properties/a/type",
        "#/required/0",
        "#/required/9",
        "#named",
        "https://x.example/y",
        5,
        None,
    ],
)
def test_a_reference_that_leads_nowhere_is_left_out(reference):
    """T19: LangChain raises KeyError for it, with all tools."""
    schema = {**ROOT, "properties": {"a": {"$ref": reference, "description": "A.", **TEXT}}, "required": ["a"]}
    assert model_schema(schema)["properties"]["a"] == {"description": "A.", **TEXT}


def test_whatever_is_called_a_reference_is_one_or_is_left_out():
    """T19: LangChain follows these, too."""
    assert only({"examples": [{"$ref": "#/nowhere", "x": 1}]}) == {"examples": [{"x": 1}]}
    assert only({"properties": {"$ref": TEXT, "x": TEXT}}) == {"properties": {"x": TEXT}}
    closed = {"required": ["$ref"], "additionalProperties": False}
    assert only({"properties": {"$ref": TEXT, "x": TEXT}, **closed}) == {"properties": {"x": TEXT}}


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": ["array", "null"]}, {"type": ["array", "null"], "items": {}}),
        ({"type": "array", "items": [TEXT]}, {"type": "array", "prefixItems": [TEXT], "items": {}}),
        (
            {"type": "array", "items": [TEXT], "additionalItems": False},
            {"type": "array", "prefixItems": [TEXT], "items": False},
        ),
        ({**TEXT, "required": True}, TEXT),
        ({**ROOT, "required": ["x", 5, "x"]}, {**ROOT, "required": ["x"]}),
        ({**ROOT, "required": [5]}, ROOT),
        ({**NUMBER, "minimum": 0, "exclusiveMinimum": True}, {**NUMBER, "minimum": 0}),
        ({"type": "any", "description": 5}, {}),
        ({"enum": "x"}, {}),
        ({"anyOf": [TEXT, 1]}, {"anyOf": [TEXT, {}]}),
        ({"anyOf": []}, {}),
        ({**ROOT, "properties": {"b": 5, "c": "string"}}, {**ROOT, "properties": {"b": {}, "c": {}}}),
        ({**ROOT, "properties": ["b"]}, ROOT),
        ({**ROOT, "properties": {"0": 5, "b": TEXT}}, {**ROOT, "properties": {"0": {}, "b": TEXT}}),
        ({**ROOT, "patternProperties": {"1": 7}}, {**ROOT, "patternProperties": {"1": {}}}),
        ({"not": {"$ref": "#n", **TEXT}}, {}),
        ({"not": {"not": {"type": "any"}}, **TEXT}, TEXT),
        ({"oneOf": [TEXT, {"$ref": "#n"}]}, {"anyOf": [TEXT, {}]}),
        ({"oneOf": [TEXT, {"type": "any"}]}, {}),
        ({"if": {"properties": {"x": {"$ref": "#n"}}}, "then": False}, {"then": False}),
        ({"oneOf": [TEXT, {"$ref": "#n"}], "anyOf": [NUMBER, TEXT]}, {"anyOf": [NUMBER, TEXT]}),
        ({"const": {"$ref": "#/x"}, "enum": [{"$ref": "#/x"}]}, {}),
        ({"type": "array", "items": "string"}, {"type": "array", "items": {}}),
        (5, {}),
        (True, True),
    ],
)
def test_what_no_api_takes_allows_anything_instead(declared, shown):
    """T19: keywords as earlier drafts have them, or as none has."""
    assert only(declared) == shown


def test_names_that_an_api_refuses():
    """T19: as a server made from a description of a web API has them. The model gives the names it was shown."""
    long = "n" * 70
    properties = {"Start<": {**TEXT, "description": "Before."}, "Start>": TEXT, "Start_": TEXT, "$ref": True, long: {}}
    schema = {**ROOT, "properties": {**properties, "größe": 5}, "required": ["Start<", "Start_", 5]}
    schema |= {"if": {"required": ["Start>"]}, "then": False} | DRAFT_7
    shown = model_schema(schema)
    assert shown == {
        **ROOT,
        "properties": {
            "Start_2": {**TEXT, "description": "Start<: Before."},
            "Start_3": {**TEXT, "description": "Start>"},
            "Start_": TEXT,
            "_ref": True,
            "n" * 60: {"description": long},
            "gr__e": {},
        },
        "required": ["Start_2", "Start_"],
    }
    given = {name: number for number, name in enumerate([*shown["properties"], "other"])}
    declared = made(schema).with_declared_names(given)
    assert list(declared) == [*schema["properties"], "other"]
    assert list(declared.values()) == list(given.values())
    assert made({"anyOf": [schema]}).with_declared_names({"Start_2": 1}) == {"Start<": 1}
    assert made({"properties": []}).with_declared_names({"x": 1}) == {"x": 1}


def test_names_are_the_same_in_whatever_order_they_are_declared():
    """Some servers write schemas from sets: after a restart an argument would be taken for another."""
    names = ["Start>", "Start<", "Start*"]
    there, back = (made({"properties": {name: {} for name in each}}) for each in (names, names[::-1]))
    given = {"Start_": 1, "Start_2": 2, "Start_3": 3}
    assert (
        there.with_declared_names(given) == back.with_declared_names(given) == {"Start*": 1, "Start<": 2, "Start>": 3}
    )


def test_a_declared_name_that_is_given_stays():
    schema = made({"properties": {"$f": TEXT}})
    assert schema.with_declared_names({"_f": 1, "$f": 2}) == {"_f": 1, "$f": 2}


def test_references_to_a_root_with_other_names_allow_anything():
    """The server has its own names at every level but the root, where they are given back."""
    schema = {"properties": {"$f": TEXT, "child": {"$ref": "#"}, "b": {"not": {"$ref": "#/properties/$f"}}}}
    assert model_schema(schema)["properties"] == {"_f": {**TEXT, "description": "$f"}, "child": {}, "b": {}}


def test_alternatives_share_what_they_refer_to():
    base = {"properties": {"id": TEXT}, "required": ["id"]}
    each = [{"allOf": [{"$ref": "#/$defs/B"}, {"properties": {key: TEXT}}]} for key in "ab"]
    shown = model_schema({"oneOf": each, "$defs": {"B": base}, "unevaluatedProperties": False})
    assert shown["properties"] == {"a": TEXT, "id": TEXT, "b": TEXT}
    assert shown["required"] == ["id"]
    assert "unevaluatedProperties" not in shown


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#/x/" + "9" * 5000}}},
        {"properties": {"a": {"$ref": "#/required/" + "9" * 5000}}, "required": ["a"]},
        {"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(1200)}},
        {"$ref": "#/$defs/0", "$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}]} for n in range(600)}},
        {"properties": {1: {}}},
        {"properties": {"a": {"default": b"x"}}},
        {"properties": {"a": nested_in("not", 39)}},
        {"properties": {"a": nested_in("not", 60)}},
    ],
)
def test_no_schema_is_an_error(schema):
    """One would cost the tools of all servers."""
    assert model_schema(schema)["type"] == "object"


@pytest.mark.parametrize(
    ("schema", "sound"),
    [
        ({}, True),
        ({**ROOT, "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"pattern": "(?:a|(?<!b))c(?=d)"}}}, True),
        ({"properties": {"a": {"type": "string", "nullable": True}}}, True),
        ({"properties": {"a": {"$ref": "#/$defs/no"}}}, False),
        ({"properties": {"a": {"$ref": "https://x.example/y"}}}, False),
        ({"properties": {"a": {"type": "any"}}}, False),
        ({"required": True}, False),
        ({"properties": {"a": {"pattern": "(?i)x"}}}, False),
        ({"properties": {"a": {"pattern": "(?P<x>y)"}}}, False),
        ({"properties": {"a": {"enum": []}}}, False),
        ({"properties": {"a": {"nullable": True, "enum": ["a"]}}}, False),
        ({"properties": {1: {}}}, False),
        (nested_in("not", 60), False),
    ],
)
def test_schemas_that_validators_of_other_languages_compile(schema, sound):
    assert compiles_anywhere(schema) is sound


def test_a_schema_with_more_errors_than_are_mended_is_shown_in_outline():
    bad = {str(number): {"type": "string", "enum": 5} for number in range(1000)}
    assert model_schema({**ROOT, "properties": bad})["properties"] == {str(number): TEXT for number in range(100)}
    assert model_schema({**ROOT, "allOf": 5, "$defs": {key: {"enum": 5} for key in bad}}) == {**ROOT, "properties": {}}


@pytest.mark.parametrize(
    "large",
    [
        {"enum": ["x"] * 6000},
        {"default": "x" * 300_000},
        {"properties": {"b": nested_in("not", 60)}},
    ],
)
def test_a_schema_that_is_too_large_is_shown_in_outline(large):
    properties = {"a": {"type": "object", "description": "d" * 300, **large}, "$b": {"type": 5}, "c" * 300: {}, "d": 5}
    schema = {"properties": properties, "required": ["a", "c", 5], "additionalProperties": False}
    assert model_schema(schema) == {
        **ROOT,
        "properties": {"a": {"type": "object", "description": "d" * 200}, "_b": {"description": "$b"}},
        "required": ["a"],
    }
    assert model_schema({"anyOf": [schema]}) == {**ROOT, "properties": {}}
    many = {**ROOT, "properties": {str(number): {} for number in range(30_000)}}
    assert len(model_schema(many)["properties"]) == 100


NAMES = st.sampled_from(["a", "b", "$ref", "a<", "a_", "items", "type"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)
KEYWORDS = st.sampled_from(
    [
        *("type", "properties", "required", "items", "prefixItems", "additionalItems", "anyOf"),
        *("oneOf", "allOf", "not", "enum", "const", "$defs", "$ref"),
        *("additionalProperties", "if", "then", "minimum", "pattern", "description", "default"),
        *("dependentRequired", "propertyNames"),
    ]
)
WORDS = st.sampled_from(["object", "array", "string", "#", "#/$defs/a", "#/properties/a", "#/anyOf/0", "#/items"])
SCHEMAS = st.recursive(
    WORDS | JSON,
    lambda inner: (
        st.dictionaries(KEYWORDS, inner, max_size=4)
        | st.dictionaries(NAMES, inner, max_size=3)
        | st.lists(inner, max_size=3)
    ),
    max_leaves=25,
)


@given(st.dictionaries(KEYWORDS, SCHEMAS, max_size=6))
def test_whatever_a_server_declares_is_taken(declared):
    """T19: valid for 2020-12, and an object without alternatives at its root."""
    schema = model_schema(declared)
    METASCHEMA.validate(schema)
    assert schema["type"] == "object"
    assert isinstance(schema["properties"], dict)
    assert not schema.keys() & {"anyOf", "oneOf", "allOf", "enum", "not"}
    assert model_schema(schema) == schema
