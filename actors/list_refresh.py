"""The lists of a connection, fetched again: on request, and when the server reports that they changed."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

import trio

from mcp_nursery.actors.records import define, evolve, field

from .enums import ListKind
from .limits import CONNECT_SETTINGS
from .messages import LISTED, Refreshed, Request
from .session.base import HandshakeFailed

if TYPE_CHECKING:
    from .session.connection import Connection

_SETTLING = 0.1
"""Seconds between the notification that a list changed and its listing: servers change several entries at a time."""
_SETTLING_AT_MOST = 30.0
"""The longest such delay: after `_UNHINDERED` refreshes in quick succession the delay doubles each time. After as long
without one it is the first again."""
_UNHINDERED = 5
"""Refreshes after the first, in quick succession, that wait no longer than the first."""

ASKED_EVERY = 1.0
"""Seconds between two fetches of a list that may have changed silently, however many ask for it."""

AWAITED_FOR = 5.0
"""Seconds that a request waits at most for a list to be fetched again: then the known one has to do."""

_ALL: Final = frozenset(ListKind)
OTHER_LISTS: Final = _ALL - {ListKind.TOOLS}
"""Lists that a server can be connected without."""


@define(eq=False)
class ListRefresh:
    """The refreshes of lists, one at a time. Requests that come before a refresh begins are answered by it, and those
    for lists with unannounced changes also by one under way, if no call was made since."""

    _incarnation: int
    """The connection's number, for the reports."""
    _timeout: float
    """Seconds for the tools, and as many for all others; `inf` for no limit."""
    _report: Callable[[Refreshed], None]
    """Called with each outcome."""
    _connection: "Connection | None" = field(default=None, init=False)
    _nursery: trio.Nursery | None = field(default=None, init=False)
    """The nursery of the task that lists."""
    _running: bool = field(default=False, init=False)
    _wanted: frozenset[ListKind] = field(default=frozenset(), init=False)
    """Lists to fetch whose refresh has not begun."""
    _asked: list[object] = field(factory=list[object], init=False)
    """The requests that wait for these lists."""
    _due: float = field(default=math.inf, init=False)
    """The time at which their refresh is to begin at the latest, on Trio's clock."""
    _listing: frozenset[ListKind] = field(default=frozenset(), init=False)
    """Lists that are being fetched."""
    _since: float = field(default=-math.inf, init=False)
    """The time at which their fetch began."""
    _answers: list[object] = field(factory=list[object], init=False)
    """The requests that this refresh answers."""
    _called: frozenset[ListKind] = field(default=frozenset(), init=False)
    """Lists that calls may have changed since they were fetched."""
    _settling: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """The delay before a refresh; cancelled when somebody wants a list now."""
    _in_a_row: int = field(default=0, init=False)
    """Refreshes that the server has caused, in quick succession."""
    _settled_at: float = field(default=-math.inf, init=False)
    """The time at which the last refresh that the server had caused ended."""
    _anew: bool = field(default=False, init=False)
    """True if the refresh is more than a look whether something has changed."""
    _changed: bool = field(default=False, init=False)
    """True if the refresh is due only because the server reported a change."""

    def open(self, connection: "Connection", nursery: trio.Nursery) -> None:
        """Begin to list, first what was asked for before. The task runs in this nursery, only while it is needed."""
        self._connection, self._nursery = connection, nursery
        if self._wanted:
            self.request_lists(self._wanted)

    def ask(self, request: object) -> None:
        """Fetch all lists now, and report when that is done."""
        self._asked.append(request)
        self._changed = False
        self.request_lists(_ALL)

    def ask_old(self, request: object, kinds: Collection[ListKind], since: float) -> bool:
        """Fetch those of these lists that may be old, as soon as they may be fetched again. A list that was just
        fetched will do, unless a call may have changed it since. A list fetched since the request was made, at `since`
        on Trio's clock, will do, too.

        Returns:
            True if the request will be answered; else the known lists have to do.
        """
        now = trio.current_time()
        if self._connection is None or (self._listing and now >= self._since + AWAITED_FOR):
            return False
        old = self._connection.old_lists(kinds)
        due = {kind for kind, at in old.items() if at.begun <= now - ASKED_EVERY and at.known_from < since}
        due -= self._listing
        wanted = (old.keys() & self._called) | due
        if wanted:
            self._asked.append(request)
            self._want(wanted, due=max(old[kind].begun for kind in wanted) + ASKED_EVERY)
        elif self._listing & old.keys():
            self._answers.append(request)
        else:
            return False
        return True

    def note_calls(self, requests: Sequence[Request]) -> None:
        """Record requests to the server: they may change its lists."""
        if self._called is not _ALL and any(request.method not in LISTED for request in requests):
            self._called = _ALL

    def request_lists(self, kinds: Collection[ListKind]) -> None:
        """Fetch these lists; nobody waits for them."""
        self._anew = True
        self._want(kinds, due=-math.inf)

    def _want(self, kinds: Collection[ListKind], *, due: float) -> None:
        self._wanted |= frozenset(kinds)
        self._due = min(self._due, due)
        self._settling.deadline = min(self._settling.deadline, due)
        if self._nursery is not None and self._connection is not None and not self._running:
            self._running = True
            self._nursery.start_soon(self._list_all, self._connection)

    def want_expired(self) -> None:
        """Fetch the lists that are too old."""
        if self._connection is not None and (kinds := self._connection.expired_lists()):
            self.request_lists(kinds)

    def changed(self, kinds: Collection[ListKind]) -> None:
        """Fetch these lists after a delay, in which the server may change more of them."""
        self._changed = self._changed or not self._wanted
        self._anew = True
        self._want(kinds, due=math.inf)

    def look(self, kinds: Collection[ListKind]) -> None:
        """Fetch these lists now, which may have changed silently. An unchanged list stays as it is."""
        self._changed = False
        self._want(kinds, due=-math.inf if self._connection is None else self._connection.rests_until(kinds))

    async def _list_all(self, connection: "Connection") -> None:
        try:
            while self._wanted:
                changed = self._changed
                settled = max(self._settled(), connection.rests_until(self._wanted)) if changed else math.inf
                await self._wait_until(min(self._due, settled))
                anew = self._anew
                kinds = self._begin(connection)
                refreshed = await self._list(connection, kinds, anew=anew)
                self._listing = frozenset()
                self._report(evolve(refreshed, answers=tuple(self._answers)))
                if changed:
                    self._settled_at = trio.current_time()
        except HandshakeFailed:
            return  # the connection is lost, which is reported elsewhere
        finally:
            self._running = False

    def _settled(self) -> float:
        """The end of the delay after a change; later if the server has just caused refreshes."""
        now = trio.current_time()
        self._in_a_row = 0 if now - self._settled_at >= _SETTLING_AT_MOST else min(self._in_a_row + 1, 100)
        doubled: int = 2 ** max(0, self._in_a_row - _UNHINDERED)
        return now + min(_SETTLING * doubled, _SETTLING_AT_MOST)

    async def _wait_until(self, due: float) -> None:
        if due > trio.current_time():
            with trio.move_on_at(due) as self._settling:
                await trio.sleep_forever()

    def _begin(self, connection: "Connection") -> frozenset[ListKind]:
        """Begin a refresh: take over its requests; return its lists."""
        kinds, self._wanted, self._due = self._wanted, frozenset(), math.inf
        self._changed = self._anew = False
        self._answers, self._asked = self._asked, []
        self._listing, self._since = kinds, trio.current_time()
        if not connection.in_flight:
            self._called -= kinds
        return kinds

    async def _list(self, connection: "Connection", kinds: frozenset[ListKind], *, anew: bool) -> Refreshed:
        """Do one refresh; return its outcome, which is shown as a unit.

        Raises:
            HandshakeFailed: The connection was lost.
        """
        before = connection.definitions
        error, late = None, False
        if ListKind.TOOLS in kinds:
            error, late = await self._list_tools(connection, anew=anew)
        others = kinds & OTHER_LISTS
        if others:
            with trio.move_on_after(self._timeout) as limit:
                await connection.list_others(others, anew=anew)
            late = late or limit.cancelled_caught
        failed = error is not None and connection.definitions is before
        return Refreshed(self._incarnation, None if failed else connection.definitions, error, timed_out=late)

    async def _list_tools(self, connection: "Connection", *, anew: bool) -> tuple[str | None, bool]:
        """The reason why the tools could not be listed, else None; and whether their time was over."""
        with trio.move_on_after(self._timeout):
            try:
                await connection.list_tools(anew=anew)
            except HandshakeFailed as failure:
                if failure.lost:
                    raise
                return failure.loss.message, False
            return None, False
        more = f"{CONNECT_SETTINGS} in a file, gives it more"
        return f"tools/list got no answer within {self._timeout:g} s ({more})", True
