"""The size of the house and the length of its ways, which may shrink and must not grow: see house.toml."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
MOST = tomllib.loads((TESTS / "house.toml").read_text())
OUTSIDE = ("cli", "gateway", "http_server", "integrations", "portal", "testing", "pytest_plugin.py")
"""Rooms of the upper floor that are not of the keel: most maintainers need not open them."""
NOISE = 1.05
"""A walk is so much longer at most on a busy machine, where more of other tasks comes between."""


def lines(*files):
    return sum(len(file.read_text().splitlines()) for file in files)


@pytest.fixture(scope="module")
def sizes():
    product = [file for room in ("actors", "supervisor") for file in (ROOT / room).rglob("*.py")]
    rooms = tuple(ROOT / "supervisor" / room for room in OUTSIDE)
    outside = [file for file in product if any(file.is_relative_to(room) for room in rooms)]
    graph = grimp.build_graph("mcp_nursery.actors", "mcp_nursery.supervisor", cache_dir=None)
    importers = {name: graph.find_modules_that_directly_import(name) for name in graph.modules}
    return {
        "product lines": lines(*product),
        "keel lines": lines(*product) - lines(*outside),
        "modules": len(product),
        "modules with one importer": sum(len(each) == 1 for each in importers.values()),
        "test lines": lines(*TESTS.rglob("*.py")),
    }


@pytest.fixture(scope="module")
def walks():
    command = [sys.executable, ROOT / "benchmarks" / "walks.py", "--json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def grown(found, most, noise=1.0):
    return {name: f"{found[name]}, and at most {value}" for name, value in most.items() if found[name] > value * noise}


def test_the_house_does_not_grow_by_itself(sizes):
    assert grown(sizes, MOST["size"]) == {}


@pytest.mark.parametrize("walk", MOST["walks"])
def test_no_way_gets_longer(walks, walk):
    assert grown(walks[walk], MOST["walks"][walk], NOISE) == {}
