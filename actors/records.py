"""attrs, with classes that cost less when they are imported: this package imports attrs here.

attrs writes and compiles `__init__`, `__eq__`, `__hash__` and `__repr__` of each class anew. That takes half of the
import of this package, and a user of the command line waits for it at each command. Only `__init__` runs often enough
to be worth it: the others are functions here that all classes share, and that read the fields when they are called.
They compare, hash and show the same as those of attrs; what they cannot do is refused when the class is made.
"""

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final

import attrs
from attrs import (
    NOTHING,
    Attribute,
    AttrsInstance,
    Factory,
    asdict,
    astuple,
    converters,
    evolve,
    field,
    fields,
    fields_dict,
    has,
    resolve_types,
)

__all__ = [
    "Attribute",
    "AttrsInstance",
    "Factory",
    "asdict",
    "astuple",
    "converters",
    "define",
    "evolve",
    "field",
    "fields",
    "fields_dict",
    "frozen",
    "has",
    "resolve_types",
]

if TYPE_CHECKING:
    from attrs import define, frozen  # type checkers know these by their names
else:

    def define(cls: type | None = None, **options: Any) -> Any:
        """`attrs.define`, with `__eq__` and `__repr__` that are shared; the options are those of attrs."""
        return _with_shared_methods(attrs.define, cls, options)

    def frozen(cls: type | None = None, **options: Any) -> Any:
        """`attrs.frozen`, with `__eq__`, `__hash__` and `__repr__` that are shared; the options are those of attrs."""
        return _with_shared_methods(attrs.frozen, cls, options)


_OPTIONS: Final = frozenset(["eq", "init", "kw_only", "repr", "slots"])


def _with_shared_methods(decorate: Callable[..., Any], cls: type | None, options: dict[str, Any]) -> Any:
    if unknown := options.keys() - _OPTIONS:
        raise TypeError(f"these classes have no {', '.join(sorted(unknown))}")
    shared: dict[str, Any] = {}
    if options.pop("repr", True):
        shared["__repr__"] = _shown
    if options.pop("eq", True):
        shared |= {"__eq__": _is_equal, "__hash__": _hashed if decorate is attrs.frozen else None}

    def decorated(cls: type) -> type:
        inherited = {name for name, method in _SHARED.items() if getattr(cls, name) is method}
        if inherited - shared.keys():
            raise TypeError(f"{cls.__name__} would be compared or shown with the fields that it adds, as its base is")
        missing = shared.keys() - vars(cls).keys()
        cls = decorate(cls, eq=False, repr=False, **options)
        for name in missing:
            setattr(cls, name, shared[name])
        return cls

    return decorated if cls is None else decorated(cls)


@cache
def _compared(cls: type) -> Callable[[Any], Any]:
    """The reader of those values of an instance that count when it is compared."""
    names = [each.name for each in fields(cls) if each.eq]
    keys = {each.name: each.eq_key for each in fields(cls) if each.eq_key is not None}
    if names and not keys:
        return attrgetter(*names)

    def read(it: object) -> tuple[object, ...]:
        return tuple(keys.get(name, _as_it_is)(getattr(it, name)) for name in names)

    return read


def _as_it_is(value: object) -> object:
    return value


def _is_equal(self: Any, other: object) -> Any:
    cls: type = self.__class__
    values = _compared(cls)
    return values(self) == values(other) if other.__class__ is cls else NotImplemented


def _hashed(self: Any) -> int:
    cls: type = self.__class__
    return hash((cls, _compared(cls)(self)))


@recursive_repr()
def _shown(self: Any) -> str:
    values: list[str] = []
    for each in fields(self.__class__):
        if each.repr:
            show = repr if each.repr is True else each.repr
            values.append(f"{each.name}={show(getattr(self, each.name, NOTHING))}")
    return f"{self.__class__.__qualname__.rpartition('>.')[2]}({', '.join(values)})"


_SHARED: Final[dict[str, object]] = {"__repr__": _shown, "__eq__": _is_equal}
