"""docs/constants.md says what the code does: a constant cannot change unnoticed."""

import ast
import importlib
import re
from pathlib import Path

import attrs
import pytest

PAGE = Path(__file__).parents[1] / "docs" / "constants.md"
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| `([^|]+)` \|$", PAGE.read_text(), re.MULTILINE)
WORTH_A_LOOK = {
    "supervisor.storage.worker.STORE_TIMEOUT",
    "supervisor.security.untrusted_marks.MAX_RESULT_CHARS",
    "actors.transports.stdio.DRAIN",
    "actors.liveness.CLOCK_INTERVAL",
    "actors.http.limits.POST_LIMIT",
}
"""A change of each of these was once noticed by no test."""


def test_the_page_is_read():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert len(ROWS) == len(rows) - 1  # and the head
    assert len({name for name, *_ in ROWS}) == len(ROWS)
    assert {where for *_, where in ROWS} >= WORTH_A_LOOK


def value_of(where: str):
    module, _, name = f"mcp_nursery.{where}".rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        module, _, kind = module.rpartition(".")
        return getattr(attrs.fields(getattr(importlib.import_module(module), kind)), name).default


@pytest.mark.parametrize(
    ("value", "where"), [(value, where) for _, value, _, where in ROWS], ids=[row[3] for row in ROWS]
)
def test_a_constant(value, where):
    documented = ast.literal_eval(value)
    assert value_of(where) == documented
    assert type(value_of(where)) is type(documented)
