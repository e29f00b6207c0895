"""The frontmatter of a skill is compared with JSON, whichever YAML its author and its server speak."""

import json
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.pieces import at_once
from mcp_nursery.supervisor.frontmatter import MOST_FRONTMATTER, Differs, compare_frontmatter


def compare(front, expected):
    at_once(compare_frontmatter(f"---\n{front}\n---\nBody\n", expected))


SAME = [
    ("a: 1", {"a": 1}),
    ("a: 1.0", {"a": 1}),
    ("a: 1.50", {"a": 1.5}),
    ("a: 1e3", {"a": 1000}),
    ("a: 0x1F", {"a": 31}),
    ("a: 012", {"a": 12}),  # 1.2
    ("a: 012", {"a": 10}),  # 1.1
    ("a: 0o12", {"a": 10}),
    ("a: 0o12", {"a": "0o12"}),
    ("a: yes", {"a": "yes"}),
    ("a: yes", {"a": True}),
    ("a: True", {"a": True}),
    ("a: ~", {"a": None}),
    ("a:", {}),
    ("a: 2026-01-31", {"a": "2026-01-31"}),
    ("a: 2026-01-31T00:00:00Z", {"a": "2026-01-31T00:00:00Z"}),
    ("a: 2026-01-31T00:00:00Z", {"a": "2026-01-31T00:00:00+00:00"}),
    ("a: 1_000", {"a": 1000}),
    ("a: '1'", {"a": "1"}),
    ('a: "x\\ty"', {"a": "x\ty"}),
    ("a: !!str 1", {"a": "1"}),
    ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
    ("a: >-\n  x\n  y\n", {"a": "x y"}),
    ("a: [1, {b: c}]", {"a": [1, {"b": "c"}]}),
    ("a:\n- x\n-", {"a": ["x", None]}),
    ("# only words\na: x # and more", {"a": "x"}),
    ("b: 1\na: 2", {"a": 2, "b": 1}),
    ("1: x", {"1": "x"}),
    ("a: 123456789012345678901", {"a": 123456789012345678901}),
]
OTHER = [
    ("a: 1", {"a": "1"}, "a"),
    ("a: '1'", {"a": 1}, "a"),
    ("a: 1", {"a": True}, "a"),
    ("a: true", {"a": 1}, "a"),
    ("a: true", {"a": "true"}, "a"),
    ("a: x", {"a": "y"}, "a"),
    ("a: x", {}, "a"),
    ("a: x", {"a": "x", "b": "y"}, "b"),
    ("a: {b: {c: x}}", {"a": {"b": {"c": "y"}}}, "a.b.c"),
    ("a: [x]", {"a": ["x", "y"]}, "a.1"),
    ("a: [x, y]", {"a": ["x"]}, "a"),
    ("a: [x]", {"a": "x"}, "a"),
    ("a: {}", {"a": []}, "a"),
    ("a: x", {"a": {}}, "a"),
    ("a: x\na: x", {"a": "x"}, ""),
    ("a: {b: 1, b: 1}", {"a": {"b": 1}}, "a"),
    ("a: &x 1\nb: *x", {"a": 1, "b": 1}, "b"),
    ("<<: {a: 1}", {"a": 1}, "<<"),
    ("a: !!python/object/apply:os.system [x]", {"a": ["x"]}, "a"),
    ("a: !!binary eA==", {"a": "x"}, "a"),
    ("? [a]\n: 1", {"a": 1}, ""),
    ("- a", {"a": 1}, ""),
    ("a", {"a": 1}, ""),
    ("", {"a": 1}, ""),
    ("a: 1\n...\n", {"a": 1, "b": 2}, "b"),
    ("a: [", {"a": []}, ""),
    ("a: 'x", {"a": "x"}, ""),
    ("a: \x01", {"a": "\x01"}, ""),
    ("a: " + "9" * 9000, {"a": 9}, "a"),
]


@pytest.mark.parametrize(("front", "expected"), SAME)
def test_the_same(front, expected):
    compare(front, expected)


@pytest.mark.parametrize(("front", "expected", "where"), OTHER)
def test_not_the_same(front, expected, where):
    with pytest.raises(Differs) as differs:
        compare(front, expected)
    assert differs.value.where == where


@pytest.mark.parametrize("text", ["", "a: 1", "--- \na: 1", "---\na: 1\n", "\n---\na: 1\n---\n", "---\na: 1\n ---\n"])
def test_a_text_without_frontmatter(text):
    with pytest.raises(Differs, match=r"^$"):
        at_once(compare_frontmatter(text, {"a": 1}))


@pytest.mark.parametrize("text", ["---\na: 1\n---", "\ufeff---\na: 1\n---\nx", "---\r\na: 1\r\n--- \r\nx"])
def test_what_else_begins_and_ends_it(text):
    at_once(compare_frontmatter(text, {"a": 1}))


BOMBS = {
    "arrays": ("a: " + "[" * 8000, []),
    "objects": ("a: " + "{" * 8000, {}),
    "items": ("- " * 8000, []),
    "keys": ("? " * 8000, {}),
    "laughs": ("a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\n" + "c: [*b,*b,*b,*b]\n" * 300, {}),
    "a long text": ("a: '" + "x'' " * 4000 + "'", "x"),
    "much": ("a: x\n" * 4000, {}),
    "more than much": ("a: " + "x" * MOST_FRONTMATTER, "x" * MOST_FRONTMATTER),
    "spaces": (" " * 16000 + "a: 1", 1),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_takes_long_is_refused_in_time(name):
    """Each step is short, and all together are bounded."""
    front, within = BOMBS[name]
    deep = within
    for _ in range(40):
        deep = [deep] if isinstance(within, list) else {"": deep}
    steps, longest = compare_frontmatter(f"---\n{front}\n---\n", {"a": deep}), 0.0
    began = time.process_time()
    refused = False
    while not refused:
        at = time.process_time()
        try:
            next(steps)
        except Differs:
            refused = True
        longest = max(longest, time.process_time() - at)
    assert longest < 0.3
    assert time.process_time() - began < 1.5


CHARACTERS = st.characters(max_codepoint=0xD7FF)  # what JSON escapes in two halves, YAML does not
TEXTS = st.text(CHARACTERS)
NAMES = st.text(CHARACTERS, max_size=150)  # YAML has up to 1024 characters of a name on one line, escapes included
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=15
)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_whatever_is_written_as_yaml_or_as_json_is_the_same(value):
    """Written by PyYAML, and as JSON, which YAML is a superset of."""
    front = json.loads(json.dumps(value))
    for written in (yaml.safe_dump(front, width=10**6), json.dumps(front)):
        if len(written) < MOST_FRONTMATTER:
            compare(written, front)
