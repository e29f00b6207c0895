"""Suggestions for a name that does not exist, of a tool or a key of a file. Pure.

Comparing two whole names takes a tenth of a millisecond, and a server chooses how many names there are and how long
they are. A mistyped name keeps its beginning or its end: only the names that share most of either are compared.
"""

from bisect import bisect
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice

from mcp_nursery.actors.errors import did_you_mean

_COMPARED_CHARACTERS = 64
"""Characters that are compared."""
_NEIGHBOURS = 8
"""Names that are compared on each side of where the name would stand among the others, read forwards or backwards."""
_MOST_SUGGESTIONS = 3
_MOST_COMPARED = 10_000
"""Names that are sorted in one go: 40 ms."""


class NearNames:
    """Names to search, sorted once."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = {name[:_COMPARED_CHARACTERS]: name for name in known}
        self._forwards = sorted(self._known)
        self._backwards = sorted(name[::-1] for name in self._known)

    def of(self, name: str) -> list[str]:
        """At most three names that may have been meant, nearest first."""
        name = name[:_COMPARED_CHARACTERS]
        candidates = {
            *_neighbours(name, self._forwards),
            *(each[::-1] for each in _neighbours(name[::-1], self._backwards)),
        }
        return [self._known[each] for each in get_close_matches(name, sorted(candidates), n=_MOST_SUGGESTIONS)]


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """The known names that are nearly this one, the best first. Of very many only some are compared, as sorting them
    would take long."""
    return NearNames(islice(known, _MOST_COMPARED)).of(name)


def _neighbours(name: str, ordered: Sequence[str]) -> Sequence[str]:
    at = bisect(ordered, name)
    return ordered[max(at - _NEIGHBOURS, 0) : at + _NEIGHBOURS]


_LEAST_LIKENESS = 0.8
"""The least likeness of a key to a known one: a word of another host that means nothing here must not be taken for
it."""
_MOST_KEYS = 100
"""Keys that are looked at: each may take a tenth of a millisecond, and a file may have any number."""
_LONGEST_KEY = 64
"""Characters of a key that are compared."""


def keys_meant(key: str, known: Iterable[str]) -> list[str]:
    """The known keys that may have been meant, whatever the case of their letters."""
    spelt = {each[:_LONGEST_KEY].lower(): each for each in islice(known, _MOST_KEYS)}
    return [spelt[each] for each in get_close_matches(key[:_LONGEST_KEY].lower(), spelt, cutoff=_LEAST_LIKENESS)]


def advice_for_key(key: str, known: Iterable[str]) -> str:
    """The end of a message about a key that is not known."""
    return did_you_mean(keys_meant(key, known))
