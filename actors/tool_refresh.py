"""The tools of a connection, fetched again: when that is asked for, and when the server says that they changed."""

import math
from collections.abc import Callable

import trio
from attrs import define, field

from .messages import ToolsRefreshed
from .session.base import Connection, HandshakeFailed

_SETTLING = 0.1
"""Seconds between the word that tools changed and their listing: servers change several at a time."""
_SETTLING_AT_MOST = 30.0
"""The same for a server that says so again and again: from the fifth time on twice as many each time. After as long
without such a list the first applies again."""
_UNHINDERED = 5


@define(eq=False)
class ToolRefresh:
    """Lists again, one list at a time: what comes while one is still to begin is answered by it."""

    _incarnation: int
    """The connection's number, for the reports."""
    _timeout: float
    """Seconds for each list; `inf` for no limit."""
    _report: Callable[[ToolsRefreshed], None]
    """Called with each outcome."""
    _start: Callable[[], None] | None = field(default=None, init=False)
    """Starts the task that lists; None while there is no connection."""
    _running: bool = field(default=False, init=False)
    _wanted: bool = field(default=False, init=False)
    """A list is wanted that has not begun."""
    _settling: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """The wait for a server to have changed all; cancelled when somebody wants a list now."""
    _in_a_row: int = field(default=0, init=False)
    """Lists that the server has caused, one soon after the other."""
    _settled_at: float = field(default=-math.inf, init=False)
    """When the last list ended that a server had caused."""
    _changed: bool = field(default=False, init=False)
    """A list is wanted because the tools changed, and for no other reason."""

    def open(self, connection: Connection, nursery: trio.Nursery) -> None:
        """List from now on, also what was wanted before. The task runs in this nursery, and only when it is needed."""
        self._start = lambda: nursery.start_soon(self._list_all, connection)
        if self._wanted:
            self._want()

    def ask(self) -> None:
        """A list is wanted now."""
        self._changed = False
        self._settling.cancel()
        self._want()

    def _want(self) -> None:
        self._wanted = True
        if self._start is not None and not self._running:
            self._running = True
            self._start()

    def tools_changed(self) -> None:
        """A list is wanted once the server has had the time to change more of them."""
        self._changed = self._changed or not self._wanted
        self._want()

    async def _list_all(self, connection: Connection) -> None:
        try:
            while self._wanted:
                changed = self._changed
                if changed:
                    await self._settle()
                self._wanted = self._changed = False
                self._report(await self._list(connection))
                if changed:
                    self._settled_at = trio.current_time()
        except HandshakeFailed:
            return  # with the connection; the end that follows is all there is to tell
        finally:
            self._running = False

    async def _settle(self) -> None:
        """Wait; longer for a server that has just caused a list."""
        calm = trio.current_time() - self._settled_at >= _SETTLING_AT_MOST
        self._in_a_row = 0 if calm else min(self._in_a_row + 1, 100)
        pause = min(_SETTLING * 2 ** max(0, self._in_a_row - _UNHINDERED), _SETTLING_AT_MOST)
        with trio.move_on_after(pause) as self._settling:
            await trio.sleep_forever()

    async def _list(self, connection: Connection) -> ToolsRefreshed:
        """The outcome of one list.

        Raises:
            HandshakeFailed: The connection was lost.
        """
        with trio.move_on_after(self._timeout):
            try:
                return ToolsRefreshed(self._incarnation, await connection.list_tools())
            except HandshakeFailed as failure:
                if failure.lost:
                    raise
                return ToolsRefreshed(self._incarnation, error=failure.loss.message)
        return ToolsRefreshed(self._incarnation, error=f"tools/list got no answer within {self._timeout:g} s")
