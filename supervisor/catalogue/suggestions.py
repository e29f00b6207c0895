"""Suggestions for a name that does not exist. Pure.

To compare two names as a whole takes a tenth of a millisecond, and a server chooses how many names there are and how
long they are. Who mistypes a name keeps its beginning or its end: only those names are compared that share the most of
either.
"""

import difflib
from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import islice

_LENGTH = 64
"""Characters that are compared."""
_NEIGHBOURS = 8
"""Names that are compared on each side of where the name would stand among the others, read forwards or backwards."""
_MOST = 3
_MANY = 10_000
"""Names that are put in order in one go: 40 ms."""


class NearNames:
    """Names to look among, put in order once.

    Args:
        known: The names, in any order.
    """

    def __init__(self, known: Iterable[str]) -> None:
        self._known = {name[:_LENGTH]: name for name in known}
        self._forwards = sorted(self._known)
        self._backwards = sorted(name[::-1] for name in self._known)

    def of(self, name: str) -> list[str]:
        """At most three that may have been meant, nearest first."""
        name = name[:_LENGTH]
        candidates = {
            *_neighbours(name, self._forwards),
            *(each[::-1] for each in _neighbours(name[::-1], self._backwards)),
        }
        return [self._known[each] for each in difflib.get_close_matches(name, sorted(candidates), n=_MOST)]


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """See `NearNames.of`. Of so many that it would take long to put them in order some are looked at."""
    return NearNames(islice(known, _MANY)).of(name)


def _neighbours(name: str, ordered: Sequence[str]) -> Sequence[str]:
    at = bisect(ordered, name)
    return ordered[max(at - _NEIGHBOURS, 0) : at + _NEIGHBOURS]
