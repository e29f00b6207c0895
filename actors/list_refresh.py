"""The lists of a connection, fetched again: when that is asked for, and when the server says that they changed."""

import math
from collections.abc import Callable, Collection

import trio
from attrs import define, evolve, field

from .enums import ListKind
from .messages import Refreshed
from .session.base import Connection, HandshakeFailed

_SETTLING = 0.1
"""Seconds between the notification that a list changed and its listing: servers change several entries at a time."""
_SETTLING_AT_MOST = 30.0
"""The longest such delay: from the fifth notification in a row the delay doubles each time. After as long without one
it is the first again."""
_UNHINDERED = 5

OTHERS = frozenset(ListKind) - {ListKind.TOOLS}
"""Lists that a server is connected without."""


@define(eq=False)
class ListRefresh:
    """Fetches lists again, one refresh at a time. Requests that come before a refresh begins are answered by it."""

    _incarnation: int
    """The connection's number, for the reports."""
    _timeout: float
    """Seconds for the tools, and for all others; `inf` for no limit."""
    _report: Callable[[Refreshed], None]
    """Called with each outcome."""
    _start: Callable[[], None] | None = field(default=None, init=False)
    """Starts the task that lists; None while there is no connection."""
    _expired: Callable[[], Collection[ListKind]] | None = field(default=None, init=False)
    """Says which lists are too old; None while there is no connection."""
    _running: bool = field(default=False, init=False)
    _wanted: frozenset[ListKind] = field(default=frozenset(), init=False)
    """Lists to fetch whose refresh has not begun."""
    _asked: int = field(default=0, init=False)
    """How many requests wait for these."""
    _settling: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """The delay before a refresh; cancelled when somebody wants a list now."""
    _in_a_row: int = field(default=0, init=False)
    """Refreshes that the server has caused, in quick succession."""
    _settled_at: float = field(default=-math.inf, init=False)
    """When the last refresh ended that the server had caused."""
    _changed: bool = field(default=False, init=False)
    """The refresh is due only because the server said that lists changed."""

    def open(self, connection: Connection, nursery: trio.Nursery) -> None:
        """Begin to list, first what was asked for before. The task runs in this nursery, only while it is needed."""
        self._start = lambda: nursery.start_soon(self._list_all, connection)
        self._expired = connection.expired_lists
        if self._wanted:
            self.want(self._wanted)

    def ask(self) -> None:
        """Fetch all lists now, and report when that is done."""
        self._asked += 1
        self._changed = False
        self._settling.cancel()
        self.want(tuple(ListKind))

    def want(self, kinds: Collection[ListKind]) -> None:
        """Fetch these lists; nobody waits for them."""
        self._wanted |= frozenset(kinds)
        if self._start is not None and not self._running:
            self._running = True
            self._start()

    def want_expired(self) -> None:
        """Those are wanted that are too old."""
        if self._expired is not None and (kinds := self._expired()):
            self.want(kinds)

    def changed(self, kinds: Collection[ListKind]) -> None:
        """Fetch these lists after a delay, in which the server may change more of them."""
        self._changed = self._changed or not self._wanted
        self.want(kinds)

    async def _list_all(self, connection: Connection) -> None:
        try:
            while self._wanted:
                changed = self._changed
                if changed:
                    await self._settle()
                kinds, self._wanted, self._changed = self._wanted, frozenset(), False
                answers, self._asked = self._asked, 0
                self._report(evolve(await self._list(connection, kinds), answers=answers))
                if changed:
                    self._settled_at = trio.current_time()
        except HandshakeFailed:
            return  # the connection is lost, which is reported elsewhere
        finally:
            self._running = False

    async def _settle(self) -> None:
        """Wait; longer for a server that has just caused a list."""
        calm = trio.current_time() - self._settled_at >= _SETTLING_AT_MOST
        self._in_a_row = 0 if calm else min(self._in_a_row + 1, 100)
        pause = min(_SETTLING * 2 ** max(0, self._in_a_row - _UNHINDERED), _SETTLING_AT_MOST)
        with trio.move_on_after(pause) as self._settling:
            await trio.sleep_forever()

    async def _list(self, connection: Connection, kinds: frozenset[ListKind]) -> Refreshed:
        """The outcome of one refresh, which is shown as a unit.

        Raises:
            HandshakeFailed: The connection was lost.
        """
        before = connection.definitions
        error = await self._list_tools(connection) if ListKind.TOOLS in kinds else None
        others = kinds & OTHERS
        if others:
            with trio.move_on_after(self._timeout):
                await connection.list_others(others)
        failed = error is not None and connection.definitions is before
        return Refreshed(self._incarnation, None if failed else connection.definitions, error)

    async def _list_tools(self, connection: Connection) -> str | None:
        """Why they could not be listed; None if they were."""
        with trio.move_on_after(self._timeout):
            try:
                await connection.list_tools()
            except HandshakeFailed as failure:
                if failure.lost:
                    raise
                return failure.loss.message
            return None
        return f"tools/list got no answer within {self._timeout:g} s"
