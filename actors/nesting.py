"""How deep a JSON value may be nested before it is refused at the border."""

from collections.abc import Iterable
from typing import Any, Final, cast

MAX_NESTING: Final = 200
"""Levels. Reading takes a thousand, but writing fails at about 250 (orjson, pydantic) or ends in a `RecursionError`: a
value that was let in could then neither be hashed, shown nor passed on, wherever that is tried."""

_ARRAY: Final = frozenset([list])
_NESTED: Final = frozenset([dict, list])

TOO_DEEP: Final = f"nested deeper than {MAX_NESTING} levels"
"""What is said of it."""


def may_be_nested_too_deep(text: bytes) -> bool:
    """Whether a JSON text has brackets enough to be worth a look at its value. At the speed of memory."""
    return len(text) > MAX_NESTING * 2 and text.count(b"[") + text.count(b"{") > MAX_NESTING


def nested_too_deep(value: object) -> bool:
    """Whether there are objects or arrays more than `MAX_NESTING` levels down."""
    level: list[Any] = [value] if type(value) in _NESTED else []
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        for item in level:  # every result passes through here: no call and no comprehension for each value
            for child in item if type(item) in _ARRAY else item.values():
                if type(child) in _NESTED:
                    below.append(child)  # noqa: PERF401
        if not below:
            return False
        level = below
    return True


def size_of(value: object) -> tuple[int, int]:
    """How many levels a JSON value has, and how many values are in it, itself included."""
    level: list[Any] = [value]
    levels = values = 0
    while level:
        levels, values = levels + 1, values + len(level)
        level = [child for item in level if isinstance(item, (dict, list)) for child in children(item)]
    return levels, values


def children(item: Any) -> Iterable[Any]:
    """What is directly in an object or array."""
    return cast("dict[str, Any]", item).values() if isinstance(item, dict) else item
