"""Patterns that match alike on each Python: before 3.11.5 a possessive quantifier of a group matches wrongly."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{\d*,?\d*\})\+")
FILES = sorted(str(path.relative_to(ROOT)) for top in ("actors", "supervisor") for path in (ROOT / top).rglob("*.py"))


def possessive_groups(code):
    texts = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    return [text for text in texts if isinstance(text, str) and POSSESSIVE_GROUP.search(text)]


@pytest.mark.parametrize("file", FILES)
def test_no_quantifier_of_a_group_is_possessive(file):
    assert possessive_groups((ROOT / file).read_text("utf-8")) == []


def test_one_is_found_and_that_of_a_set_is_allowed():
    assert possessive_groups(r"A = r'(?:a|b)*+c'; B = r'[ab]*+c'; C = r'(a){2,}+'; D = r'\)++'") == [
        "(?:a|b)*+c",
        "(a){2,}+",
    ]
