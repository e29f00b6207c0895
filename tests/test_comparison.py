"""The comparison with other libraries says what was seen in the last run."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
SEEN = json.loads((ROOT / "benchmarks" / "results" / "behaviours.json").read_text())
PAGE = (ROOT / "docs" / "explanation" / "comparison.md").read_text()


def test_the_table_is_that_of_the_last_run():
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| ")]
    head, _, *cells = rows
    assert head == [f"seen on {SEEN['date']}", *(f"{name} ({version})" for name, version in SEEN["versions"].items())]
    assert cells == [[scenario, *seen.values()] for scenario, seen in SEEN["seen"].items()]
