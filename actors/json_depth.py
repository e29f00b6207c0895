"""Walks over JSON values: their depth and whether it is allowed, their size, and changed copies."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, cast

MAX_NESTING: Final = 200
"""Levels. Readers take a thousand, but writing fails at about 250 (orjson, pydantic) or ends in a `RecursionError`: a
value that was let in could then be neither hashed nor shown nor passed on."""

_ARRAY: Final = frozenset([list])
_CONTAINERS: Final = frozenset([dict, list])

TOO_DEEP: Final = f"nested deeper than {MAX_NESTING} levels"
"""The error for a value too deep."""


def may_be_nested_too_deep(text: bytes) -> bool:
    """True if a JSON text has enough brackets to be nested too deep. As fast as a copy of the text."""
    return len(text) > MAX_NESTING * 2 and text.count(b"[") + text.count(b"{") > MAX_NESTING


def nested_too_deep(value: object) -> bool:
    """True if there are objects or arrays more than `MAX_NESTING` levels down."""
    level: list[Any] = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        for item in level:  # every result passes through here: no call and no comprehension for each value
            for child in item if type(item) in _ARRAY else item.values():
                if type(child) in _CONTAINERS:
                    below.append(child)  # noqa: PERF401
        if not below:
            return False
        level = below
    return True


def levels_of(value: object) -> Iterator[list[Any]]:
    """The values in a JSON value, level by level; the first is the whole."""
    level: list[Any] = [value]
    while level:
        yield level
        level = [child for item in level if isinstance(item, (dict, list)) for child in _children(item)]


def more_values_than(value: object, most: int) -> bool:
    """True if there are more than `most` values in a JSON value."""
    for level in levels_of(value):
        most -= len(level)
        if most < 0:
            return True
    return False


def size_of(value: object) -> tuple[int, int]:
    """The number of levels of a JSON value, and the number of values in it, itself included."""
    counts = [len(level) for level in levels_of(value)]
    return len(counts), sum(counts)


def characters_of(value: object) -> int:
    """The number of characters of the texts and names in a JSON value."""
    return sum(len(text) for level in levels_of(value) for text in texts_in(level))


def texts_in(level: list[Any]) -> Iterator[str]:
    """The texts and names on one level."""
    for item in level:
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from cast("dict[str, Any]", item)


def with_each(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of a JSON value with every name, text, number, boolean and null in it changed."""
    if isinstance(value, dict):
        return {change(name): with_each(item, change) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [with_each(item, change) for item in cast("Sequence[Any]", value)]
    return change(value)


def _children(item: Any) -> Iterable[Any]:
    return cast("dict[str, Any]", item).values() if isinstance(item, dict) else item
