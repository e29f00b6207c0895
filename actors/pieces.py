"""Long work in pieces: a long message of one server must not hold up the messages of others. Pure.

Work of unknown size is a generator that yields between its pieces, each a few milliseconds long at most whatever it is
given. A task lets all others run at each of them (`fairness.by_turns`); code without a task does it in one go.
"""

from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work in pieces, which returns its outcome."""

SMALL: Final = 64 << 10
"""Bytes or characters that are processed in one go, in a few milliseconds at most."""


def at_once(work: Steps[T]) -> T:
    """Do the work in one go."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        outcome: T = done.value
        return outcome
