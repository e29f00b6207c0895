"""The exports of a package that load when they are first used, as the stub beside it lists them.

Type checkers read the same stub, so there is only one list. It is read as text: Python's parser takes longer to load
than everything else that a program has loaded by then.
"""

import sys
from importlib import import_module

TYPE_CHECKING = False  # without `typing`, which takes as long as all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def exports_of(package: str, file: str) -> "tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]":
    """Return `__getattr__`, `__dir__` and `__all__` of the package with this `__name__` and `__file__`; its stub is
    beside the file. A stub has only `from … import …` statements, and then `__all__`."""
    with open(f"{file.rpartition('.')[0]}.pyi", encoding="utf-8") as stub:
        imports = stub.read().partition("\n__all__")[0].split("from ")[1:]
    modules: dict[str, str] = {}
    for statement in imports:
        module, _, names = statement.partition(" import ")
        modules |= {name.strip(" ()\n"): module for name in names.split(",")}
    modules.pop("", None)  # after the last comma
    exported = sorted(modules)

    def get(name: str) -> "Any":
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        found = getattr(import_module(modules[name], package), name)
        setattr(sys.modules[package], name, found)  # so that this function is called for it only once
        return found

    def names_of_package() -> list[str]:
        return exported

    return get, names_of_package, exported
