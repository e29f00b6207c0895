"""The exports of a package that load when they are first used, as the stub beside it lists them.

The stub is what type checkers read, so there is one list. A package needs it at import time: nothing but the parser of
Python is loaded for it.
"""

import ast
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: Its `__name__`.
        file: Its `__file__`, beside which the stub is.
    """
    with open(f"{os.path.splitext(file)[0]}.pyi", encoding="utf-8") as stub:
        tree = ast.parse(stub.read())
    modules = {
        alias.name: "." * statement.level + (statement.module or "")
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        found = getattr(import_module(modules[name], package), name)
        setattr(sys.modules[package], name, found)  # it is asked for once
        return found

    def names() -> list[str]:
        return sorted(modules)

    return get, names, names()
