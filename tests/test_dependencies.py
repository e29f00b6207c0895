"""What is imported is declared, and with bounds.

The rule: whatever a module imports by name is a direct dependency, with the lowest version that is known to do. One
whose version begins with 0 has the upper bound 1: anything may be another thing there. A closer bound is not ours to
set, since an application shares trio and typer with us; that their minor releases do no harm, our tests say, which run
with the newest and take every deprecation for an error. The SDK, whose protocol we follow closely, has its next major.
"""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared(requirements):
    """What a requirement says of versions, by the canonical name of its distribution."""
    found = {}
    for each in requirements:
        name, bounds = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(.*)", each).groups()
        found[re.sub(r"[-_.]+", "-", name).lower()] = bounds
    return found


RUNTIME = declared(PROJECT["dependencies"])
EXTRAS = {name: declared(requirements) for name, requirements in PROJECT["optional-dependencies"].items()}
WORK = {"test", "docs", "dev", "interop"}
"""Extras for work on this package, not for its users."""
USED = RUNTIME | EXTRAS["interop"]
"""What modules here may import: what extras bring is looked for when it is needed."""
for extra in EXTRAS.keys() - WORK:
    USED |= EXTRAS[extra]
USED.pop("mcp-nursery")
TESTED = USED | EXTRAS["test"] | EXTRAS["dev"]


def imported(*folders):
    """The packages that modules here import at their own will, wherever in them, but for what is ours or Python's."""
    names = set()
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(), path)):
            match node:
                case ast.Import(names=aliases):
                    names |= {alias.name.partition(".")[0] for alias in aliases}
                case ast.ImportFrom(module=str(module), level=0):
                    names.add(module.partition(".")[0])
    return names - sys.stdlib_module_names - {"mcp_nursery"}


def distributions(packages):
    known = packages_distributions()
    return {package: {re.sub(r"[-_.]+", "-", name).lower() for name in known.get(package, ())} for package in packages}


@pytest.mark.slow
def test_what_is_imported_is_declared():
    missing = {
        package: owners
        for package, owners in distributions(imported("actors", "supervisor")).items()
        if not owners & USED.keys()
    }
    assert missing == {}


@pytest.mark.slow
def test_what_is_declared_is_imported():
    """A dependency that nobody uses any more is none. Of frameworks tests alone may use a part."""
    used = set().union(*distributions(imported("actors", "supervisor")).values())
    assert USED.keys() - EXTRAS["interop"].keys() - used == set()
    assert EXTRAS["interop"].keys() - {"mcp-nursery"} - used.union(*distributions(imported("tests")).values()) == set()


OWN = {path.stem for path in (ROOT / "tests").rglob("*.py")} | {
    path.stem for path in (ROOT / "benchmarks").rglob("*.py")
}
"""What scripts import from their own folder."""


ELSEWHERE = {"fastmcp", "fastmcp_tasks", "langchain_mcp_adapters"}
"""What servers and clients import that tests/interop runs in environments of their own."""


@pytest.mark.slow
def test_what_tests_import_is_declared():
    found = distributions(imported("tests") - OWN - ELSEWHERE - {"tests"})
    missing = {package: owners for package, owners in found.items() if not owners & TESTED.keys()}
    assert missing == {}


@pytest.mark.parametrize("name", sorted(TESTED.keys() - {"mcp-nursery"}))
def test_bounds(name):
    bounds = TESTED[name]
    assert ">=" in bounds
    if bounds.startswith(">=0."):
        assert bounds.endswith(",<1")
    if name in ("mcp", "mcp-types"):
        assert bounds.endswith(",<3")


PAGE = (ROOT / "docs" / "explanation" / "dependencies.md").read_text()


def part(title):
    """The rows of a table of the page."""
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]


def test_the_page_says_of_every_dependency_why():
    named = set(re.findall(r"`([\w.-]+)`", part("Without extras")))
    assert RUNTIME.keys() - named == set()
    rows = {row.split("|")[1].strip(" `"): row for row in part("Extras").splitlines() if row.startswith("| `")}
    for extra in EXTRAS.keys() - WORK:
        brought = EXTRAS[extra].keys() - {"mcp-nursery"}
        text = rows[extra].replace("`-", "`opentelemetry-")
        assert [name for name in brought if f"`{name}`" not in text] == []


def test_what_an_extra_brings_the_base_does_not():
    for extra in EXTRAS.keys() - WORK:
        assert EXTRAS[extra].keys() & RUNTIME.keys() == set()
