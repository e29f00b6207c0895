"""Exports that load when they are first used, as the stub beside the package lists them."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = f"import sys; sys.path += {[path for path in sys.path if path]!r}; "
STUBS = sorted((ROOT / "supervisor").rglob("__init__.pyi"))

STUB = """
from .inner import one
from ._other import (
    two,
)

__all__ = ["one", "two"]
"""
PACKAGE = """
from mcp_nursery.supervisor.lazy_exports import exports_of

__getattr__, __dir__, __all__ = exports_of(__name__, __file__)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "lazily"
    folder.mkdir()
    files = {"__init__.py": PACKAGE, "__init__.pyi": STUB, "inner.py": "one = object()", "_other.py": "two = object()"}
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lazily")
    for name in [name for name in sys.modules if name.partition(".")[0] == "lazily"]:
        del sys.modules[name]


def test_a_name_loads_its_module_and_no_other(package):
    assert "lazily.inner" not in sys.modules
    assert package.one is package.one
    assert package.one is sys.modules["lazily.inner"].one
    assert "lazily._other" not in sys.modules


def test_the_names_are_those_of_the_stub(package):
    assert package.__all__ == ["one", "two"]
    assert dir(package) == ["one", "two"]


def test_a_name_that_is_none(package):
    with pytest.raises(AttributeError, match="module 'lazily' has no attribute 'three'"):
        package.three  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'three' from 'lazily'"):
        exec("from lazily import three")


@pytest.mark.parametrize("stub", STUBS, ids=[stub.parent.name for stub in STUBS])
def test_every_stub_is_read_as_python_reads_it(stub):
    statements = [each for each in ast.parse(stub.read_text()).body if isinstance(each, ast.ImportFrom)]
    names = sorted(alias.asname or alias.name for each in statements for alias in each.names)
    package = importlib.import_module(".".join(["mcp_nursery", *stub.parent.relative_to(ROOT).parts]))
    assert package.__all__ == names
    assert all(getattr(package, name) is not None for name in names)


def test_the_package_loads_next_to_nothing():
    code = "import sys; before = {*sys.modules}; import mcp_nursery.supervisor; print(*{*sys.modules} - before)"
    said = subprocess.run([sys.executable, "-I", "-S", "-c", PATH + code], capture_output=True, text=True, check=True)
    loaded = {name for name in said.stdout.split() if not name.startswith("mcp_nursery")}
    assert not loaded & {"ast", "attr", "inspect", "re", "trio", "typing"}
