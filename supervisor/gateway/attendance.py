"""Clients that wait: whether they are still there, and that they hear that somebody is."""

import logging
from typing import Final

import trio
from attrs import define, field

from .http_request import UnderWay

logger: Final = logging.getLogger(__name__)

SOON: Final = 0.1
"""Seconds: who has waited for one to two of these is attended to. Most have their answer by then, and a nursery
and a task for each from the beginning cost 38 us, a tenth of a call."""
KEEPALIVE: Final = 15.0
"""Seconds between two comments to a client that waits: proxies close what is silent for longer."""


@define(eq=False)
class Waiting:
    """A client that waits for its answer."""

    request: UnderWay
    life: trio.CancelScope = field(factory=trio.CancelScope)
    ended: trio.Event | None = None
    """None while nobody attends to it."""

    async def attend(self) -> None:
        """Keep it, and end what is done for it when it has gone."""
        assert self.ended is not None  # or nobody would attend to it
        try:
            with self.life:
                await self._attend()
        except Exception:
            logger.exception("a client cannot be attended to")
            self.request.scope.cancel()
        finally:
            self.ended.set()

    async def _attend(self) -> None:
        http, gone = self.request.http, False
        while not gone:
            with trio.move_on_after(KEEPALIVE) as silence:
                gone = (await http.receive())["type"] == "http.disconnect"
            if silence.cancelled_caught:
                await http.response.keep_alive()
        if not http.response.ended:
            self.request.scope.cancel()


class Attendance:
    """Attends to clients.

    Args:
        nursery: Where that is done.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._new: set[Waiting] = set()
        self._seen: set[Waiting] = set()
        """Those that were there the last time."""
        self._some = trio.Event()
        nursery.start_soon(self._go_round)

    async def _go_round(self) -> None:
        while True:
            await self._some.wait()
            await trio.sleep(SOON)
            for waiting in self._seen:
                waiting.ended = trio.Event()
                self._nursery.start_soon(waiting.attend)
            self._seen, self._new = self._new, set()
            if not self._seen:
                self._some = trio.Event()

    def begin(self, request: UnderWay) -> Waiting:
        """A client waits from now on. Only `receive` of its request is used for it."""
        waiting = Waiting(request)
        self._new.add(waiting)
        self._some.set()
        return waiting

    async def end(self, waiting: Waiting) -> None:
        """It does not wait any more. Afterwards nobody attends to it."""
        self._new.discard(waiting)
        self._seen.discard(waiting)
        if waiting.ended is not None:
            waiting.life.cancel()
            with trio.CancelScope(shield=True):  # what is cancelled ends at once
                await waiting.ended.wait()
