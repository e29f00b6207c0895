"""docs/reference/behaviours.md lists the codes in docstrings of tests: none is missing, and each has a test."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reference" / "behaviours.md"
LISTED = re.findall(r"^\| \[(\w+)\]\{#(\w+)\} \| .+\. \|$", PAGE.read_text(), re.MULTILINE)


@cache
def named(path: Path) -> set[str]:
    """The codes that stand in docstrings of a file."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, documented)]
    return {code for node in nodes for code in re.findall(r"\b[A-Z]\d{1,2}\b", ast.get_docstring(node) or "")}


def test_each_code_has_a_sentence_and_an_anchor() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| [")]
    assert len(LISTED) == len(lines)
    assert [code for code, anchor in LISTED if code != anchor] == []
    assert len(set(LISTED)) == len(LISTED)


def test_every_code_that_a_test_names_is_listed() -> None:
    codes = {code for code, _ in LISTED}
    unknown = {path.name: missing for path in TESTS.rglob("*.py") if (missing := named(path) - codes)}
    assert unknown == {}


def test_every_listed_code_has_a_test() -> None:
    proven = {code for path in TESTS.rglob("test_*.py") for code in named(path)}
    assert [code for code, _ in LISTED if code not in proven] == []
