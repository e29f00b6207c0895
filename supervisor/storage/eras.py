"""What is remembered of the era that a server speaks: a probe is made once a spec, not once a run."""

import math
from contextlib import suppress

import trio
from attrs import define, field

from mcp_nursery.actors.enums import Era

from .store import DOUBT, StoreUnreadable
from .worker import StoreWorker


@define(eq=False)
class EraMemory:
    """The era of one server: what earlier runs found, and what this one finds. For its keeper.

    A server that was mute for a moment, and then answered `initialize`, may still speak the modern era: what its
    silence says is believed for a day.
    """

    _worker: StoreWorker
    """Who writes it down."""
    _server: str
    """Its name."""
    _spec: str | None
    """The digest of how it is reached; None for what does not last: nothing is written down."""
    _recalled: bool = field(default=False, init=False)
    _era: Era | None = field(default=None, init=False)
    _until: float = field(default=math.inf, init=False)
    """When it is not believed any more, on Trio's clock; `inf` for what the server has answered itself."""

    @property
    def era(self) -> Era | None:
        """What is known now."""
        return self._era if trio.current_time() < self._until else None

    async def recall(self) -> None:
        """Read what earlier runs found, once. What cannot be read is not known."""
        if self._recalled:
            return
        if (spec := self._spec) is not None:
            with suppress(StoreUnreadable):
                note = await self._worker.ask(lambda store: store.era(self._server, spec))
                if note is not None:
                    self._believe(note.era, note.seconds)
        self._recalled = True

    def learn(self, era: Era | None, *, answered: bool) -> None:
        """An incarnation has found this, if it was of this spec: before anything was recalled, none was.

        Args:
            era: What it has found.
            answered: Whether it follows from an answer of the server's to the probe, and not from its silence.
        """
        if not self._recalled or era is None:
            return
        if era is self.era and (self._until == math.inf or not answered):
            return
        self._believe(era, math.inf if answered else DOUBT)
        if (spec := self._spec) is not None:
            self._worker.submit(lambda store: store.remember_era(self._server, spec, era, answered=answered))

    def _believe(self, era: Era, seconds: float) -> None:
        self._era, self._until = era, trio.current_time() + seconds
