"""The form of a tool, and what is read of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor.cli.web.tool_form import FIELD, WronglyFilled, arguments_of, fields_of

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What to say", "default": "hello"},
        "count": {"type": "integer"},
        "share": {"type": ["number", "null"]},
        "loud": {"type": "boolean"},
        "kind": {"enum": ["a", "b"]},
        "more": {"type": "object"},
    },
    "required": ["text"],
}


def filled(**given):
    return {FIELD + name: value for name, value in given.items()}


def test_each_field_has_its_type():
    given = filled(text="x", count="3", share="0.5", loud="true", kind="b", more='{"a": [1]}')
    expected = {"text": "x", "count": 3, "share": 0.5, "loud": True, "kind": "b", "more": {"a": [1]}}
    assert arguments_of(SCHEMA, given) == expected


def test_empty_fields_are_left_out_unless_they_have_to_be_there():
    assert arguments_of(SCHEMA, filled(text="", count="", kind="")) == {"text": ""}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (filled(count="three"), "count: 'three' is no integer"),
        (filled(share="x"), "share: 'x' is no number"),
        (filled(more="{"), "more: no JSON"),
        (filled(loud="maybe"), "loud: no JSON"),
    ],
)
def test_what_cannot_be_read_is_named(given, problem):
    with pytest.raises(WronglyFilled, match=problem):
        arguments_of(SCHEMA, given)


def test_a_schema_without_properties_takes_json():
    assert arguments_of({}, {FIELD: '{"a": 1}'}) == {"a": 1}
    assert arguments_of({}, {}) == {}
    with pytest.raises(WronglyFilled, match="must be a JSON object"):
        arguments_of({}, {FIELD: "[]"})
    assert "textarea" in fields_of({}, {})


def test_the_form_shows_what_was_filled_in_before():
    form = fields_of(SCHEMA, filled(text="a\nb", kind="a", count="7"))
    assert ">a\nb</textarea>" in form
    assert '<option value="a" selected>' in form
    assert 'value="7"' in form
    assert 'value="hello"' in fields_of(SCHEMA, {})
    assert "What to say" in form


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["properties", "required", "type", "enum", "description"]), json_values))
def test_any_schema_has_a_form(schema):
    fields_of(schema, {})
    fields_of({"properties": {"a": schema}}, {})
    arguments_of({"properties": {"a": schema}}, {})
