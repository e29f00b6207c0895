"""The page of the comparison has the cells of benchmarks/results/behaviours.json, and its proofs are real tests."""

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "explanation" / "comparison.md"
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "behaviours.json").read_text())
LINK = re.compile(r' \(\[proof\]\((\S+) "(\w+)"\)\)')
OURS = {"libraries": "mcp-nursery", "gateways": "mcp-nursery serve"}


def table_of(kind: str) -> dict[str, dict[str, str]]:
    """The cells of a table of the page, by column and question."""
    text = PAGE.read_text().partition(f"<!-- {kind} -->")[2].partition("<!-- end -->")[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    names, _, *rows = lines
    return {name: {row[0]: row[1 + index] for row in rows} for index, name in enumerate(names)}


@pytest.mark.parametrize("kind", OURS)
def test_the_page_has_the_cells_of_the_results(kind: str) -> None:
    asked = RESULTS["rows"]
    seen = {name: {asked[row]: cell for row, cell in cells.items()} for name, cells in RESULTS[kind].items()}
    shown = table_of(kind)
    assert {name: {row: LINK.sub("", cell) for row, cell in cells.items()} for name, cells in shown.items()} == seen


@pytest.mark.parametrize("kind", OURS)
def test_each_cell_of_ours_has_a_proof_that_exists(kind: str) -> None:
    for row, cell in table_of(kind)[OURS[kind]].items():
        [(path, name)] = LINK.findall(cell)
        tree = ast.parse((PAGE.parent / path).read_text())
        tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert name in tests, row


def test_the_page_tells_when_and_of_which_versions() -> None:
    text = PAGE.read_text()
    assert f"Seen on {RESULTS['date']}: {RESULTS['machine']}" in text
    assert [name for name, number in RESULTS["versions"].items() if f"{name} {number}" not in text] == []
    assert [name for name in RESULTS["left_out"] if f"**{name}**" not in text] == []
