"""Keys of files that were misspelt. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

from mcp_nursery.actors.errors import did_you_mean

_ALIKE = 0.8
"""How much a key has to be like another: a word of another host that means nothing here must not be taken for one."""
_MANY = 100
"""Keys that are looked at: each may take a tenth of a millisecond, and a file may have any number."""
_LENGTH = 64
"""Characters of them."""


def keys_meant(key: str, known: Iterable[str]) -> list[str]:
    """The known keys that may have been meant, whatever the case of their letters."""
    spelt = {each[:_LENGTH].lower(): each for each in islice(known, _MANY)}
    return [spelt[each] for each in get_close_matches(key[:_LENGTH].lower(), spelt, cutoff=_ALIKE)]


def advice_for_key(key: str, known: Iterable[str]) -> str:
    """The end of a message about a key that is not known."""
    return did_you_mean(keys_meant(key, known))
