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


NAMES = list(SCHEMA["properties"])


class Plain:
    """Words without secrets, as a page shows them."""

    def line(self, text, longest=500):
        return text[:longest]

    def keeps(self, text):
        return "secret" not in text


def filled(**given):
    return {f"{FIELD}{NAMES.index(name)}": value for name, value in given.items()}


def form_of(schema, given):
    return fields_of(schema, given, Plain())


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
        *((filled(share=text), "share: .* is no number") for text in ("nan", "inf", "1_0", ".5", "1.", "0x1", "٣")),
        *((filled(count=text), "count: .* is no integer") for text in ("1_0", "1.0", "+1", "01", "1e2", "٣")),
        (filled(share="1e999"), "share: no JSON: 1e999 is too large"),
        (filled(share="0.1234567890123456789"), "share: no JSON: .* has more digits than a number keeps"),
        (filled(share="1e-400"), "share: no JSON: 1e-400 has more digits"),
        (filled(more='{"a": [NaN]}'), "more: no JSON: NaN is no JSON number"),
        (filled(more='{"a": -1e999}'), "more: no JSON: -1e999 is too large"),
        (filled(more="[" * 300 + "]" * 300), "more: nested deeper"),
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
    assert "textarea" in form_of({}, {})


def test_large_numbers_and_lines_arrive_as_they_were_typed():
    given = filled(text="a\r\nb\r\n", count="9" * 400, share="-0.25e-3")
    assert arguments_of(SCHEMA, given) == {"text": "a\nb\n", "count": int("9" * 400), "share": -0.00025}
    assert arguments_of(SCHEMA, filled(text="", share="9" * 400)) == {"text": "", "share": int("9" * 400)}


def test_properties_of_any_name_have_a_field():
    names = ["", "a\r\nb", "\x00", "a b", "arg.0", "é" * 500]
    schema = {"properties": {name: {"type": "string"} for name in names}}
    given = {f"{FIELD}{number}": f"value {number}" for number in range(len(names))}
    assert arguments_of(schema, given) == {name: f"value {number}" for number, name in enumerate(names)}
    form = form_of(schema, {})
    assert all(f'name="{FIELD}{number}"' in form for number in range(len(names)))


def test_a_tool_with_many_properties_takes_json():
    schema = {"properties": {f"p{number}": {"type": "string"} for number in range(2_000)}}
    assert len(form_of(schema, {})) < 1_000
    assert arguments_of(schema, {FIELD: '{"p1999": "x"}'}) == {"p1999": "x"}


def test_many_choices_together_are_typed():
    properties = {f"p{number}": {"enum": [f"{number}-{each}" for each in range(100)]} for number in range(20)}
    form = form_of({"properties": properties}, {})
    assert "<option" not in form
    assert form.count('type="text"') == 20


def test_what_is_long_or_secret_is_not_offered():
    choices = {"enum": ["x" * 6_000, "y" * 6_000]}
    assert "<select" not in form_of({"properties": {"a": choices}}, {})
    assert "<select" not in form_of({"properties": {"a": {"enum": ["a", "a secret"]}}}, {})
    for default in ("x" * 20_000, "a secret", ["x"] * 20_000):
        assert len(form_of({"properties": {"a": {"type": "string", "default": default}}}, {})) < 1_000
        assert "secret" not in form_of({"properties": {"a": {"default": default}}}, {})


def test_the_form_shows_what_was_filled_in_before():
    form = form_of(SCHEMA, filled(text="a\nb", kind="a", count="7"))
    assert ">\na\nb</textarea>" in form  # browsers leave out the first end of a line
    assert '<option value="a" selected>' in form
    assert 'value="7"' in form
    assert 'value="hello"' in form_of(SCHEMA, {})
    assert "What to say" in form


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["properties", "required", "type", "enum", "description"]), json_values))
def test_any_schema_has_a_form(schema):
    form_of(schema, {})
    form_of({"properties": {"a": schema}}, {})
    arguments_of({"properties": {"a": schema}}, {})
