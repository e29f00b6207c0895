"""Long work in pieces: what one server sends must not hold up what others wait for.

Work of unknown size is a generator that yields between its pieces, each a few milliseconds long at most whatever it is
given. Who has a task lets all others run at each of them; who has none does it in one go.
"""

from collections.abc import Generator
from typing import Final, TypeVar

import trio

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work in pieces. What it returns is its outcome."""

SMALL: Final = 64 << 10
"""Bytes, or characters, that are seen to in one go: whatever they are, that takes a few milliseconds."""
_MESSAGES: Final = 16
"""Messages that are taken in a row."""


async def by_turns(work: Steps[T]) -> T:
    """Do the work; all other tasks get their turn after each piece. Cancellable there."""
    try:
        while True:
            next(work)
            await trio.lowlevel.checkpoint()
    except StopIteration as done:
        outcome: T = done.value
        return outcome
    finally:
        work.close()


def at_once(work: Steps[T]) -> T:
    """Do the work in one go."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        outcome: T = done.value
        return outcome


class Pace:
    """Says when whoever takes messages one after the other is to let others run: by their number and by their bytes."""

    def __init__(self) -> None:
        self._messages = 0
        self._bytes = 0

    def spent(self, size: int) -> bool:
        """A message of so many bytes was taken; whether that was enough for one turn."""
        self._messages += 1
        self._bytes += size
        if self._messages < _MESSAGES and self._bytes < SMALL:
            return False
        self._messages = self._bytes = 0
        return True
