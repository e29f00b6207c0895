"""The gate before first lists: many hosts list once, and what is missing then their models never have."""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from mcp_nursery.actors.errors import UnknownServer

from ..security.untrusted_marks import clean_name
from ..supervisor import Supervisor

logger: Final = logging.getLogger(__name__)

GATE: Final = 10.0
"""Seconds that lists wait at most for servers of which nothing is known yet: hosts give up after thirty and more."""


class Gate:
    """Holds lists back while first attempts are under way that may add to them.

    The time is that of a server, not of a list: it counts from when the gateway was opened, and for a server that comes
    later from the first list after that. Whoever lists when it is over waits for that server no more.

    Args:
        supervisor: Whose servers are listed.
        seconds: How long lists wait for one of them at most.
    """

    def __init__(self, supervisor: Supervisor, seconds: float) -> None:
        self._supervisor = supervisor
        self._seconds = seconds
        self._until = dict.fromkeys(supervisor.unlisted, trio.current_time() + seconds)
        """Until when each server is waited for, on Trio's clock."""
        self._missed: set[str] = set()
        """Servers that were missing from a list."""
        self._waits: set[trio.CancelScope] = set()

    async def wait(self, matters: Callable[[str], bool]) -> None:
        """Wait until it is known what servers offer, or their time is over.

        Args:
            matters: Whether a server of this name has to do with the list.
        """
        if self._seconds:
            for server in filter(matters, self._supervisor.unlisted):
                await self._wait_for(server)

    async def _wait_for(self, server: str) -> None:
        until = self._until.setdefault(server, trio.current_time() + self._seconds)
        with trio.CancelScope(deadline=until) as scope:
            self._waits.add(scope)
            try:
                with suppress(UnknownServer):  # it has gone meanwhile
                    await self._supervisor.wait_listed(server)
            finally:
                self._waits.discard(scope)
        is_over = scope.cancelled_caught and trio.current_time() >= until
        if is_over and server in self._supervisor.unlisted and server not in self._missed:
            self._missed.add(server)
            logger.warning(
                "%s: not connected after %g s: lists go without it, and clients are told when it comes",
                clean_name(server),
                self._seconds,
            )

    def end(self) -> None:
        """Hold back those no longer that wait now."""
        for scope in self._waits:
            scope.cancel()
