"""The limit of first starts under way at once: thirty servers that load at the same moment all time out."""

import math
from bisect import insort
from operator import attrgetter
from types import TracebackType
from typing import Self

import trio

from mcp_nursery.actors.records import define, field, frozen

PLACE_TIMEOUT = 2.0
"""Seconds after which a start without an answer gives up its place: a hung server must not delay the others."""


@define(eq=False)
class Turn:
    """The turn of one start in the line."""

    number: float = math.inf
    """The place among starts that nobody waits for; of several with the same place, the first to come goes first."""
    awaited: float = math.inf
    """The place among starts that somebody waits for, which go before all others; `inf`: nobody waits."""
    changed: trio.Event | None = field(default=None, init=False)
    """Set when it may be its turn; None while the start does not sleep until then."""

    @property
    def place(self) -> tuple[float, float]:
        """The place in line: the least is next."""
        return self.awaited, self.number


@define(eq=False)
class StartLimiter:
    """Places for starts. One is free again when its holder leaves it, or after `PLACE_TIMEOUT` seconds."""

    _size: float
    _places: "dict[StartPermit, None]" = field(factory=dict["StartPermit", None], init=False)
    """Taken places, in the order in which they become free: each is taken for the same time."""
    _line: list[Turn] = field(factory=list[Turn], init=False)
    """The starts that wait for a place, in order. Only the next has a timer: thousands would wake at once."""

    async def enter(self, turn: Turn | None = None) -> "StartPermit":
        """Wait for a place; `turn`: its handle for `prioritise`. Of starts that come in one turn of the loop, without
        an order, the least number goes first."""
        await self._wait_in_line(turn or Turn())
        place = StartPermit(self, trio.current_time() + PLACE_TIMEOUT)
        self._places[place] = None
        return place

    async def _wait_in_line(self, turn: Turn) -> None:
        insort(self._line, turn, key=attrgetter("place"))
        try:
            await (trio.lowlevel.checkpoint_if_cancelled if self is UNLIMITED else trio.lowlevel.checkpoint)()
            while turn is not self._line[0] or self._is_full():
                until = next(iter(self._places)).until if turn is self._line[0] else math.inf
                turn.changed = trio.Event()
                with trio.move_on_at(until):
                    await turn.changed.wait()
                turn.changed = None
        finally:
            self._line.remove(turn)
            self._wake_next()

    def prioritise(self, turn: Turn, awaited: float) -> None:
        """Move a start that somebody waits for ahead of those that nobody waits for, in line already or when it comes.
        `awaited` is its place among starts that somebody waits for; if it has one already, that stays. Never waits, and
        takes no place from anybody."""
        if turn.awaited < math.inf:
            return
        waits = turn in self._line
        if waits:
            self._line.remove(turn)
        turn.awaited = awaited
        if waits:
            insort(self._line, turn, key=attrgetter("place"))
            self._wake_next()

    def leave(self, place: "StartPermit") -> None:
        """Free it, unless it is free already."""
        if place in self._places:
            del self._places[place]
            self._wake_next()

    def _wake_next(self) -> None:
        if self._line and (changed := self._line[0].changed) is not None:
            changed.set()

    def _is_full(self) -> bool:
        now = trio.current_time()
        while self._places and (first := next(iter(self._places))).until <= now:
            del self._places[first]
        return len(self._places) >= self._size


@frozen(eq=False)
class StartPermit:
    """A place of a start: free again when it is left, or at the end of its `with` block."""

    _limiter: StartLimiter
    until: float
    """The time at which it is free again at the latest, on Trio's clock."""

    def leave(self) -> None:
        """Free it, unless it is free already."""
        self._limiter.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()


UNLIMITED = StartLimiter(math.inf)
"""For starts that need not wait."""
