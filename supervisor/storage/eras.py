"""What is remembered of the era that a server speaks: a probe is made once a spec, not once a run."""

from contextlib import suppress

from mcp_nursery.actors.enums import Era

from .store import StoreUnreadable
from .worker import StoreWorker


class EraNotes:
    """The era of one server: what earlier runs found, and what this one finds. For its keeper.

    Args:
        worker: Who writes it down.
        server: Its name.
        spec: The digest of how it is reached; None for what does not last: nothing is written down.
    """

    def __init__(self, worker: StoreWorker, server: str, spec: str | None) -> None:
        self.era: Era | None = None
        """What is known now."""
        self._worker = worker
        self._server = server
        self._spec = spec
        self._recalled = False

    async def recall(self) -> None:
        """Read what earlier runs found, once. What cannot be read is not known."""
        if self._recalled:
            return
        if (spec := self._spec) is not None:
            with suppress(StoreUnreadable):
                self.era = await self._worker.ask(lambda store: store.era(self._server, spec))
        self._recalled = True

    def learn(self, era: Era | None) -> None:
        """An incarnation has found this, if it was of this spec: before anything was recalled, none was."""
        if not self._recalled or era is None or era is self.era:
            return
        self.era = era
        if (spec := self._spec) is not None:
            self._worker.submit(lambda store: store.remember_era(self._server, spec, era))
