"""The library's own work never waits for a place among the host's threads: see `actors/threads.py`."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWN = ROOT / "actors" / "threads.py"
FILES = sorted(path for package in ("actors", "supervisor") for path in (ROOT / package).rglob("*.py") if path != OWN)
TAKE_PLACES = (
    "anyio.to_thread",
    "trio.Path",
    "trio.lowlevel.open_process",
    "trio.open_file",
    "trio.run_process",
    "trio.to_thread",
    "trio.wrap_file",
)
"""What takes a place of the default limiter, and could have one of our own. Host names are looked up in such a place
too, by functions that take no other."""


def uses(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            names.add(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {each for each in TAKE_PLACES for name in names if f"{name}.".startswith(f"{each}.")}


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(ROOT)) for file in FILES])
def test_no_thread_takes_a_place_of_the_host(file):
    assert uses(file.read_text()) == set()


@pytest.mark.parametrize(
    "source",
    [
        "trio.to_thread.run_sync(f)",
        "g = trio.to_thread",
        "import trio.to_thread",
        "from trio import to_thread",
        "from trio.to_thread import run_sync",
        "partial(trio.run_process, command)",
        "from trio.lowlevel import open_process",
    ],
)
def test_one_that_does_is_found(source):
    assert len(uses(source)) == 1


def test_the_module_of_our_own_threads_is_the_only_one_left_out():
    assert uses(OWN.read_text()) == {"trio.to_thread", "trio.lowlevel.open_process"}
    assert len(FILES) > 100
