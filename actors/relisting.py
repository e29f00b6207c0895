"""The tools of a connection, fetched again: when that is asked for, and when the server says that they changed."""

from collections.abc import Callable

import trio

from .connection import Connection, HandshakeFailed
from .messages import Relisted

_SETTLING = 0.1
"""Seconds between the word that tools changed and their listing: servers change several at a time."""


class Relisting:
    """Lists again, one list at a time: what comes while one is still to begin is answered by it.

    Args:
        incarnation: The connection's number, for the reports.
        timeout: Seconds for each list; `inf` for no limit.
        report: Told of each outcome.
    """

    def __init__(self, incarnation: int, *, timeout: float, report: Callable[[Relisted], None]) -> None:
        self._incarnation = incarnation
        self._timeout = timeout
        self._report = report
        self._start: Callable[[], None] | None = None
        """Starts the task that lists; None while there is no connection."""
        self._running = False
        self._wanted = False
        """A list is wanted that has not begun."""
        self._settling = 0.0

    def open(self, connection: Connection, nursery: trio.Nursery) -> None:
        """List from now on, also what was wanted before. The task runs in this nursery, and only when it is needed."""
        self._start = lambda: nursery.start_soon(self._list_all, connection)
        if self._wanted:
            self.ask()

    def close(self) -> None:
        """Nothing can be started any more."""
        self._start = None

    def ask(self) -> None:
        """A list is wanted now."""
        self._wanted = True
        if self._start is not None and not self._running:
            self._running = True
            self._start()

    def tools_changed(self) -> None:
        """A list is wanted once the server has had the time to change more of them."""
        self._settling = _SETTLING
        self.ask()

    async def _list_all(self, connection: Connection) -> None:
        try:
            while self._wanted:
                await trio.sleep(self._settling)
                self._wanted, self._settling = False, 0.0
                self._report(await self._list(connection))
        except HandshakeFailed:
            return  # with the connection; the end that follows is all there is to tell
        finally:
            self._running = False

    async def _list(self, connection: Connection) -> Relisted:
        """The outcome of one list.

        Raises:
            HandshakeFailed: The connection was lost.
        """
        with trio.move_on_after(self._timeout):
            try:
                return Relisted(self._incarnation, await connection.list_tools())
            except HandshakeFailed as failure:
                if failure.lost:
                    raise
                return Relisted(self._incarnation, error=failure.loss.message)
        return Relisted(self._incarnation, error=f"tools/list got no answer within {self._timeout:g} s")
