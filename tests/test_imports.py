"""Imports run one way: no module leads back to itself, also not by an import that only type checkers follow."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [path for package in ("actors", "supervisor") for path in sorted((ROOT / package).rglob("*.py"))]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("mcp_nursery", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def names_imported(source: str, package: str) -> set[str]:
    """What a module in this package imports anywhere: at the top, in functions, for type checkers."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@cache
def import_graph() -> dict[str, set[str]]:
    modules = {name_of(path): path for path in SOURCES}
    packages = {name: name if path.name == "__init__.py" else name.rpartition(".")[0] for name, path in modules.items()}
    return {
        name: (names_imported(path.read_text(), packages[name]) & modules.keys()) - {name, packages[name]}
        for name, path in modules.items()
    }


def test_imports_are_found():
    source = "import a.b\nfrom ..c import d\ndef f():\n    from . import e\nif TYPE_CHECKING:\n    from .g.h import i\n"
    modules = {"a.b", "top.c.d", "top.sub.e", "top.sub.g.h"}
    assert names_imported(source, "top.sub") >= modules
    graph = import_graph()
    assert len(graph) > 100
    assert "mcp_nursery.actors.errors" in graph["mcp_nursery.supervisor.supervisor"]


def test_no_module_leads_back_to_itself():
    try:
        TopologicalSorter(import_graph()).prepare()
    except CycleError as error:
        circle = error.args[1]
    else:
        circle = []
    assert circle == []
