"""What one server may cost its host."""

from typing import Final

from attrs import frozen

MOST_VALUES: Final = 250_000
"""Commas, colons and opening brackets outside the texts of one message: a little more than it has values and names. In
one with long numbers every 19 digits of a number count as one more. Reading so many takes about 30 ms, in which nothing
else runs: the parser holds the interpreter's lock."""

MOST_KEPT: Final = 16 << 20
"""Bytes that a server may make its host keep."""


@frozen
class Limits:
    """Bounds for one server. What goes beyond is refused, and an error names the size and the limit."""

    values: int = MOST_VALUES
    """JSON values that one message may have: see `MOST_VALUES`."""
    kept: int = MOST_KEPT
    """Bytes of its definitions, of its notifications that wait, and of its requests without an answer: the limit
    holds for each of the three."""


USUAL: Final = Limits()
"""The limits of a server that sets none."""


def size_text(count: int) -> str:
    """A number of bytes, for people."""
    return f"{count >> 20} MiB" if count and count % (1 << 20) == 0 else f"{count} bytes"
