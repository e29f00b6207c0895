"""Exports that load when they are first used, as the stub beside the package lists them."""

import importlib
import sys

import pytest

STUB = """
from .inner import one
from ._other import two

__all__ = ["one", "two"]
"""
PACKAGE = """
from mcp_nursery.actors.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
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
