"""A mapping that is never changed, of which a version with a few entries exchanged costs little: one server of a
thousand changes, and the names of all others' tools are not copied for it."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_PARTS = 256
"""Parts that entries are spread over by their hash; a change copies the parts it touches. A power of two."""


class Table(Mapping[K, V]):
    """Keys to values. Order means nothing.

    Args:
        entries: What is in it.
    """

    __slots__ = ("_parts",)

    def __init__(self, entries: Iterable[tuple[K, V]] = ()) -> None:
        nothing: dict[K, V] = {}
        self._parts = _changed((nothing,) * _PARTS, (), entries)

    def exchange(self, gone: Iterable[K], come: Iterable[tuple[K, V]]) -> "Table[K, V]":
        """Another table, without the keys that are gone, if they were there, and then with what has come."""
        table: Table[K, V] = Table()
        table._parts = _changed(self._parts, gone, come)
        return table

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D, /) -> V | D: ...
    def get(self, key: K, default: object = None, /) -> object:
        """What the key leads to, or the default. A call is routed by it."""
        return self._parts[hash(key) % _PARTS].get(key, default)

    def __getitem__(self, key: K) -> V:
        return self._parts[hash(key) % _PARTS][key]

    def __contains__(self, key: object) -> bool:
        return key in self._parts[hash(key) % _PARTS]

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))


def _changed(parts: tuple[dict[K, V], ...], gone: Iterable[K], come: Iterable[tuple[K, V]]) -> tuple[dict[K, V], ...]:
    changed: dict[int, dict[K, V]] = {}
    for key in gone:
        at = hash(key) % _PARTS
        if at not in changed:
            changed[at] = parts[at].copy()
        changed[at].pop(key, None)
    for key, value in come:
        at = hash(key) % _PARTS
        if at not in changed:
            changed[at] = parts[at].copy()
        changed[at][key] = value
    if not changed:
        return parts
    whole = list(parts)
    for at, entries in changed.items():
        whole[at] = entries
    return tuple(whole)
