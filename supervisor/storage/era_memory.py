"""The era of one server, for its keeper: the store remembers it, since a server is probed only once."""

import math
from contextlib import suppress

import trio

from mcp_nursery.actors.enums import Remembered
from mcp_nursery.actors.records import define, field

from .store import DOUBT, StoreUnreadable
from .worker import StoreWorker


@define(eq=False)
class EraMemory:
    """The era of one server, as earlier runs and this run have found it. For its keeper.

    A server that was mute for a moment, and then answered `initialize`, may still speak the modern era: what its
    silence implies is believed for a day.
    """

    _worker: StoreWorker
    """The worker of the store that keeps it."""
    _server: str
    """The server's name."""
    _spec: str | None
    """The digest of how it is reached; None if that does not last: then nothing is recorded."""
    _recalled: bool = field(default=False, init=False)
    _era: Remembered | None = field(default=None, init=False)
    _until: float = field(default=math.inf, init=False)
    """The time at which the memory expires, on Trio's clock; `inf` for an era that the server has answered itself."""

    @property
    def era(self) -> Remembered | None:
        """The era that is known now."""
        return self._era if trio.current_time() < self._until else None

    async def recall(self) -> None:
        """Read what earlier runs found, once. If it cannot be read, it is unknown."""
        if self._recalled:
            return
        if (spec := self._spec) is not None:
            with suppress(StoreUnreadable):
                note = await self._worker.ask(lambda store: store.era(self._server, spec))
                if note is not None:
                    self._believe(note.era, note.seconds)
        self._recalled = True

    def learn(self, era: Remembered | None, *, answered: bool) -> None:
        """Record the era that an incarnation has found, from an answer of the server's to the probe if `answered`, else
        from its silence. Before `recall` none was of this spec: nothing is recorded."""
        if not self._recalled or era is None:
            return
        if era == self.era and (self._until == math.inf or not answered):
            return
        self._believe(era, math.inf if answered else DOUBT)
        if (spec := self._spec) is not None:
            self._worker.submit(lambda store: store.remember_era(self._server, spec, era, answered=answered))

    def _believe(self, era: Remembered, seconds: float) -> None:
        self._era, self._until = era, trio.current_time() + seconds
