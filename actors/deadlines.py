"""The deadlines of calls, and one timer for all. A scope for each takes more CPU: 148 us for a stdio call, not 131.

A limit that the configuration sets counts the server's time: it stands still while somebody is asked about the call. A
limit that the caller names does not.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol
from weakref import ReferenceType, ref

import trio

from mcp_nursery.actors.records import define, field

_EXPIRED_AT_ONCE = 256
"""Calls that are watched before those are removed that need not be, and calls that expire in one turn."""


@define(eq=False)
class Deadline:
    """The deadline of one call, over all of its attempts."""

    at: float
    """The deadline on Trio's clock; `inf` while it stands still. Written by `pause` and `resume`."""
    timer: "Timer"
    """The timer that expires the call's slots."""
    _stands_still: bool = field(default=True, alias="stands_still")
    """True if `pause` defers it."""
    _left: float | None = field(default=None, init=False)
    """Seconds that are left while it stands still."""
    _scopes: set[trio.CancelScope] = field(factory=set[trio.CancelScope], init=False)
    """The scopes that end with it."""

    def pause(self) -> None:
        """Let it stand still."""
        if self._stands_still and self._left is None:
            self._left = self.at - trio.current_time()
            self._move(math.inf)

    def resume(self) -> None:
        """Let it go on."""
        if self._left is not None:
            self._move(trio.current_time() + self._left)
            self._left = None

    @contextmanager
    def scope(self) -> Generator[trio.CancelScope, None, None]:
        """A scope that ends with it."""
        with trio.CancelScope(deadline=self.at) as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    def _move(self, at: float) -> None:
        self.at = at
        for scope in self._scopes:
            scope.deadline = at


class Timed(Protocol):
    """A slot, as the timer knows it."""

    decided: bool
    """True if there is nothing to expire any more."""
    deadline: Deadline | None
    """The deadline of its call, if it may be deferred."""

    def expire(self) -> None:
        """Decide it: its time is over."""
        ...


@define(eq=False)
class Timer:
    """A timer that expires slots at their deadlines. A slot that is decided, or that nobody refers to, is dropped."""

    _watched: list[tuple[float, int, ReferenceType[Timed]]] = field(
        factory=list[tuple[float, int, ReferenceType[Timed]]], init=False
    )
    """A heap by deadline; the number keeps the order of equal deadlines."""
    _numbers: "count[int]" = field(factory=count, init=False)
    _bound: int = field(default=_EXPIRED_AT_ONCE, init=False)
    _alarm: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def watch(self, slot: Timed, deadline: float) -> None:
        """Expire the slot at `deadline`, on Trio's clock, unless it is decided by then."""
        if deadline == math.inf:
            return
        if len(self._watched) >= self._bound:
            self._forget()
        heappush(self._watched, (deadline, next(self._numbers), ref(slot)))
        if deadline < self._alarm.deadline:
            self._wake_at(deadline)

    async def run(self) -> None:
        """Expire due slots until cancelled."""
        while True:
            with self._alarm:
                await trio.sleep_forever()
            await self._expire_due()
            self._alarm = trio.CancelScope(deadline=self._watched[0][0] if self._watched else math.inf)

    def _wake_at(self, deadline: float) -> None:
        self._alarm.deadline = deadline

    async def _expire_due(self) -> None:
        """Expire slots in turns, until the next deadline is in the future and its slot is undecided."""
        for taken in count(1):
            if not self._watched:
                return
            slot = self._watched[0][2]()
            if slot is not None and not slot.decided:
                if self._watched[0][0] > trio.current_time():
                    return
                if slot.deadline is None or slot.deadline.at <= trio.current_time():
                    slot.expire()  # one whose deadline stands still, or was deferred, is watched anew
            heappop(self._watched)
            if taken % _EXPIRED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    def _forget(self) -> None:
        """Drop what is decided, and all but the latest deadline of the rest: a server may ask something, which defers
        the deadline, any number of times."""
        latest: dict[tuple[int, float], tuple[float, int, ReferenceType[Timed]]] = {}
        for one in self._watched:
            slot = one[2]()
            if slot is not None and not slot.decided and (slot.deadline is None or slot.deadline.at <= one[0]):
                latest[id(slot), one[0]] = one
        self._watched = list(latest.values())
        heapify(self._watched)
        self._bound = max(_EXPIRED_AT_ONCE, 2 * len(self._watched))
