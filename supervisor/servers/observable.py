"""A value with one writer and any number of tasks that wait for it to become something."""

from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")
R = TypeVar("R")


class Observable(Generic[T]):
    """Holds an immutable value. Waiters look at what it is, not at what it was: short-lived values may be missed."""

    def __init__(self, value: T) -> None:
        self.value: T = value
        """The value now; read only, but for its one writer by `set`."""
        self._waiters = trio.lowlevel.ParkingLot()

    def set(self, value: T) -> None:
        """Replace the value; for its one writer."""
        self.value = value
        self._waiters.unpark_all()

    def notify(self) -> None:
        """Have every waiter look again: something else that it looks at has changed."""
        self._waiters.unpark_all()

    async def changed(self) -> None:
        """Wait until there is a reason to look again."""
        await self._waiters.park()

    async def wait(self, find: Callable[[T], R | None]) -> R:
        """Wait until `find` finds something in the value, and return it. `find` may raise to end the wait."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while (found := find(self.value)) is None:
            await self._waiters.park()
        return found
