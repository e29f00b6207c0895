"""How many first starts may be under way at once: thirty servers that load at the same moment all time out."""

import math

import trio
from attrs import frozen

PATIENCE = 2.0
"""Seconds after which a start that is still mute gives up its place: a hung server must not hold up the others."""


@frozen(eq=False)
class Place:
    """A place in a pool."""

    until: float
    """When it is free again at the latest, on Trio's clock."""


class StartPool:
    """Places for starts. One is free again when its holder leaves, or after `PATIENCE` seconds."""

    def __init__(self, size: float) -> None:
        self._size = size
        self._places: set[Place] = set()
        self._left = trio.lowlevel.ParkingLot()

    async def enter(self) -> Place:
        """Wait for a place."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while len(self._taken()) >= self._size:
            with trio.move_on_at(min(place.until for place in self._places)):
                await self._left.park()
        place = Place(trio.current_time() + PATIENCE)
        self._places.add(place)
        return place

    def leave(self, place: Place) -> None:
        """Free the place, unless it is free."""
        if place in self._places:
            self._places.discard(place)
            self._left.unpark()

    def _taken(self) -> set[Place]:
        now = trio.current_time()
        self._places = {place for place in self._places if place.until > now}
        return self._places


NO_POOL = StartPool(math.inf)
"""For starts that need not wait."""
