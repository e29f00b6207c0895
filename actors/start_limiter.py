"""How many first starts may be under way at once: thirty servers that load at the same moment all time out."""

import math
from types import TracebackType
from typing import Self

import trio
from attrs import define, field, frozen

PATIENCE = 2.0
"""Seconds after which a start without an answer gives up its place: a hung server must not delay the others."""


@define(eq=False)
class StartLimiter:
    """Places for starts. One is free again when its holder leaves it, or after `PATIENCE` seconds."""

    _size: float
    _places: "dict[Place, None]" = field(factory=dict["Place", None], init=False)
    """Taken places, in the order in which they become free: each is taken for the same time."""
    _line: trio.StrictFIFOLock = field(factory=trio.StrictFIFOLock, init=False)
    """Held by the next in line. The others wait for it without a timer: thousands would all wake at once."""
    _left: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    async def enter(self) -> "Place":
        """Wait for a place."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._line.locked() or self._is_full():
            async with self._line:
                while self._is_full():
                    with trio.move_on_at(next(iter(self._places)).until):
                        await self._left.park()
        place = Place(self, trio.current_time() + PATIENCE)
        self._places[place] = None
        return place

    def leave(self, place: "Place") -> None:
        """Free the place, unless it is free."""
        if place in self._places:
            del self._places[place]
            self._left.unpark()

    def _is_full(self) -> bool:
        now = trio.current_time()
        while self._places and (first := next(iter(self._places))).until <= now:
            del self._places[first]
        return len(self._places) >= self._size


@frozen(eq=False)
class Place:
    """A place of a start: free again when it is left, or at the end of its `with` block."""

    _limiter: StartLimiter
    until: float
    """When it is free again at the latest, on Trio's clock."""

    def leave(self) -> None:
        """Free it, unless it is free."""
        self._limiter.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()


UNLIMITED = StartLimiter(math.inf)
"""For starts that need not wait."""
