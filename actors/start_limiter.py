"""How many first starts may be under way at once: thirty servers that load at the same moment all time out."""

import math
from itertools import chain
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
    _awaited: "dict[Turn, None]" = field(factory=dict["Turn", None], init=False)
    """Those in line for whom somebody waits. They go before the others, in the order in which they were put first."""
    _line: "dict[Turn, None]" = field(factory=dict["Turn", None], init=False)
    """The others in line. Only the next of all has a timer: thousands would wake at once."""

    async def enter(self, turn: "Turn | None" = None) -> "Place":
        """Wait for a place; `turn`: by what `put_first` knows this start."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._next is not None or self._is_full():
            await self._wait_in_line(turn or Turn())
        place = Place(self, trio.current_time() + PATIENCE)
        self._places[place] = None
        return place

    async def _wait_in_line(self, turn: "Turn") -> None:
        (self._awaited if turn.is_awaited else self._line)[turn] = None
        try:
            while turn is not self._next or self._is_full():
                until = next(iter(self._places)).until if turn is self._next else math.inf
                with trio.move_on_at(until):
                    await turn.changed.park()
        finally:
            self._awaited.pop(turn, None)
            self._line.pop(turn, None)
            self._wake_next()

    def put_first(self, turn: "Turn") -> None:
        """Somebody waits for what this start brings: where it waits for a place, or comes to, it goes before those for
        whom nobody does. Never waits, and takes no place from anybody."""
        turn.is_awaited = True
        if turn in self._line:
            del self._line[turn]
            self._awaited[turn] = None
            self._wake_next()

    def leave(self, place: "Place") -> None:
        """Free the place, unless it is free."""
        if place in self._places:
            del self._places[place]
            self._wake_next()

    @property
    def _next(self) -> "Turn | None":
        return next(chain(self._awaited, self._line), None)

    def _wake_next(self) -> None:
        if (first := self._next) is not None:
            first.changed.unpark()

    def _is_full(self) -> bool:
        now = trio.current_time()
        while self._places and (first := next(iter(self._places))).until <= now:
            del self._places[first]
        return len(self._places) >= self._size


@define(eq=False)
class Turn:
    """One start, where it waits in line."""

    is_awaited: bool = field(default=False, init=False)
    """Whether it was put first."""
    changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    """Where it sleeps until it may be its turn."""


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
