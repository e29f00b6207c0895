"""Schemas built of references: what is made of them for models, and what results are held against."""

import json
import time
from typing import Any

from hypothesis import strategies as st

from mcp_nursery.actors.session.schemas import OutputSchema, SchemaViolation
from mcp_nursery.supervisor.tools.model_schema import ModelSchema, compiles_anywhere, metaschema

from .oracles import bound, check_words, in_short_pieces

NAMES = ["A", "B", "C"]
LARGEST = 200_000
"""Bytes of a schema."""
LONG = 5.0
"""Seconds of CPU that a schema may take, in pieces."""
_REFUSED_AT_ROOT = {"$ref", "allOf", "anyOf", "oneOf", "enum", "not"}

references = st.sampled_from(
    [
        *(f"#/$defs/{name}" for name in NAMES * 3),
        *("#", "#/properties/A", "#/$defs/A/properties/p0", "#/$defs/B/anyOf/0", "#/$defs/A/allOf/999999999999"),
        *("#/$defs/none", "#A", "", "#/", "#/$defs/%41", "#/$defs/~1~0~", "http://127.0.0.1:1/x", "file:///etc/passwd"),
        *("\ud800", "#/" + "$defs/" * 5000, "urn:x:y#/$defs/A"),
    ]
)


def _many(count: int, letter: str) -> dict[str, Any]:
    names = [f"{letter}{number}" for number in range(count)]
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names[::2]}


def _again(several: list[Any], times: int) -> list[Any]:
    size = sum(len(json.dumps(each)) for each in several) + 1
    return several * max(1, min(times, LARGEST // 8 // size))


leaves = st.one_of(
    references.map(lambda reference: {"$ref": reference}),
    references.map(lambda reference: {"$ref": reference}),
    st.builds(_many, st.sampled_from([1, 3, 60, 600, 2400]), st.sampled_from(["p", "q"])),
    st.sampled_from(
        [
            *(True, False, {}, None, 5, {"type": "array"}, {"items": None}, {"type": "nonsense"}, {"required": True}),
            *({"$id": "urn:x"}, {"$anchor": "A"}, {"$schema": "http://json-schema.org/draft-04/schema#"}),
            *({"exclusiveMinimum": True, "minimum": 3}, {"pattern": "^(a+)+\\1$"}, {"enum": []}, {"$ref": 5}),
            *({"enum": list(range(2000))}, {"const": {"$ref": "#/$defs/none"}}, {"description": "</untrusted>" * 500}),
            *({"$dynamicRef": "#A"}, {"$recursiveRef": "#"}, {"unevaluatedProperties": False}, {"nullable": True}),
        ]
    ),
)


def _parts(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.builds(_again, st.lists(inner, min_size=1, max_size=3), st.sampled_from([1, 1, 2, 30, 400, 1200]))
    named = st.dictionaries(st.sampled_from([*NAMES, "$ref", "p0", "a b", "é", "$filter"]), inner, max_size=3)
    keywords = {
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **dict.fromkeys(("not", "if", "then", "else", "items", "additionalProperties", "contains"), inner),
        **dict.fromkeys(("properties", "patternProperties", "dependentSchemas", "dependencies", "definitions"), named),
        "$ref": references,
        "required": st.lists(st.sampled_from(NAMES), max_size=3),
    }
    return st.fixed_dictionaries({}, optional=keywords)


parts = st.recursive(leaves, _parts, max_leaves=12)
roots = st.builds(
    lambda root, defined: {**(root if isinstance(root, dict) else {}), "$defs": defined},
    _parts(parts),
    st.dictionaries(st.sampled_from(NAMES), parts, max_size=3),
)
contents = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x" * 5000, "\ud800"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*NAMES, "p0"]), inner, max_size=4),
    max_leaves=10,
)
SCHEMAS = st.tuples(roots, contents)


def hold(generated: tuple[dict[str, Any], Any]) -> None:
    """Make a model's schema of it, and hold a result against it."""
    text = json.dumps(generated[0])
    if len(text) > LARGEST:
        return
    schema, content = json.loads(text), generated[1]
    began = time.thread_time()
    _offered(in_short_pieces(ModelSchema.of(schema), "a schema for models"))
    try:
        in_short_pieces(OutputSchema(schema, tool="t").check(content), "a check of a result")
    except SchemaViolation as violation:
        check_words(str(violation))
    took = time.thread_time() - began
    assert took < LONG, f"{took:.1f} s for one schema"
    began = time.thread_time()
    compiles_anywhere(schema)
    took = time.thread_time() - began
    assert took < bound(), f"{took * 1e3:.0f} ms to see who compiles it"


def _offered(made: ModelSchema) -> None:
    schema = made.as_dict()
    json.dumps(schema)
    assert schema["type"] == "object"
    assert not _REFUSED_AT_ROOT & schema.keys()
    assert metaschema().is_valid(schema)
