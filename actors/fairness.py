"""Turns of the loop: how a task does long work, or takes many messages, and lets all others run in between."""

import time
from typing import Final, TypeVar

import trio

from .pieces import SMALL, Steps

T = TypeVar("T")

_SLICE_SECONDS: Final = 0.002
"""Seconds of work after which others get their turn; real ones, whatever Trio's clock says."""
_MESSAGES: Final = 16
"""Messages that are taken in a row."""


_SLICES: Final = trio.lowlevel.RunVar[trio.Lock]("_SLICES")
"""The lock of the task whose slice is next."""


async def by_turns(work: Steps[T]) -> T:
    """Do the work; all other tasks get their turn between its pieces, small ones together. Cancellable in between.

    Small work is done at once, in a quarter of a slice. After that a turn of the loop has one slice, however many tasks
    have long work: their slices would add up otherwise, and others wait for all of them.
    """
    try:
        until = time.perf_counter() + _SLICE_SECONDS / 4
        next(work)
        while time.perf_counter() < until:
            next(work)
        turn = _slices()
        while True:
            async with turn:  # the next turn of the loop at the earliest
                until = time.perf_counter() + _SLICE_SECONDS
                next(work)
                while time.perf_counter() < until:
                    next(work)
    except StopIteration as done:
        outcome: T = done.value
        return outcome
    finally:
        work.close()


def _slices() -> trio.Lock:
    try:
        return _SLICES.get()
    except LookupError:
        _SLICES.set(trio.Lock())
        return _SLICES.get()


class Pace:
    """The pace of a task that takes message after message: when it should let others run, by their number and bytes."""

    def __init__(self) -> None:
        self._messages = 0
        self._bytes = 0

    def spent(self, size: int) -> bool:
        """Count a message of `size` bytes; True if the turn is over."""
        self._messages += 1
        self._bytes += size
        if self._messages < _MESSAGES and self._bytes < SMALL:
            return False
        self._messages = self._bytes = 0
        return True
