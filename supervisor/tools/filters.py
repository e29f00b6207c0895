"""Which of a server's tools a host gets to see. Pure."""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase, translate
from functools import lru_cache


def is_offered(tool: str, *, allow: Sequence[str], deny: Sequence[str], disabled: Sequence[str]) -> bool:
    """Whether a tool is in the catalogue: allowed, and neither denied nor switched off.

    Args:
        tool: The server's own name of it.
        allow: Globs, at least one of which it must match.
        deny: Globs, none of which it may match.
        disabled: Names that are switched off, letter by letter.
    """
    return tool not in disabled and matches(tool, allow) and not matches(tool, deny)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether the name fits one of the globs, case and all."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@lru_cache(maxsize=4096)
def fits_any(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """What says whether a name fits one of these globs, for many names: None if it does not."""
    return re.compile("|".join(map(translate, patterns)) or "(?!)").match
