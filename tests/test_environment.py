"""docs/reference/environment.md says which variables are read, and where: none can be added unnoticed."""

import re
from pathlib import Path

import pytest

from mcp_nursery.actors.http.environment import AUTHORITY_VARIABLES, PROXY_VARIABLES
from mcp_nursery.supervisor.cli import doctor

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference" / "environment.md").read_text()
ROWS = re.findall(r"^\| `([A-Z_]+)` \|.*\| `([a-z_.]+)` \|$", PAGE, re.MULTILINE)
NAMED_ONLY = {"supervisor.cli.doctor", "supervisor.cli.entry_texts", "supervisor.opening", "actors.commit"}
"""Modules that pass the environment on, look for secrets in it, or show which variables are set."""


def text_of(module):
    return (ROOT / f"{module.replace('.', '/')}.py").read_text()


def test_the_page_is_read():
    assert len(ROWS) == len([line for line in PAGE.splitlines() if line.startswith("| `")])
    assert len({name for name, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("name", "module"), ROWS)
def test_a_variable_is_read_where_the_page_says(name, module):
    text = text_of(module)
    if name == "MCP_NURSERY_INCARNATION":
        assert "environ.get(VARIABLE)" in text
    else:
        assert re.search(rf'["$]{name}\b', text, re.IGNORECASE)


def test_each_module_that_reads_the_environment_is_on_the_page():
    reads = re.compile(r"\bos\.environ\b|\bgetenv\(|\bgetproxies\(|\benvvar=")
    paths = [path for folder in ("actors", "supervisor") for path in (ROOT / folder).rglob("*.py")]
    found = [path.relative_to(ROOT).with_suffix("").as_posix() for path in paths if reads.search(path.read_text())]
    modules = {path.replace("/", ".") for path in found}
    assert [module for module in sorted(modules - NAMED_ONLY) if f"`{module}`" not in PAGE] == []


def test_doctor_shows_them():
    shown = {*map(str.upper, PROXY_VARIABLES), *AUTHORITY_VARIABLES, *doctor._OTHER_VARIABLES}
    assert shown == {name for name, _ in ROWS}
