"""The order of names in what people read: `s2` before `s10`. Pure."""

import re

_NUMBERS = re.compile("([0-9]+)")

Rank = tuple[tuple[str, int, str], ...]


def natural(name: str) -> Rank:
    """A key to sort names by: whatever the case of letters, and numbers as numbers, of any length."""
    words = _NUMBERS.split(name)
    folded = [(word.casefold(), 0, "") for word in words[::2]]
    numbers = [("", len(digits), digits) for digits in (word.lstrip("0") for word in words[1::2])]
    paired = [part for pair in zip(folded, [*numbers, ("", 0, "")], strict=True) for part in pair]
    return (*paired, (name, 0, ""))
