"""Objects that tasks wait for: a value, with one writer, to become something; and tools that no server has yet."""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count
from typing import Final, Generic, TypeVar

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.records import define, field

from ..catalogue.server_tools import ServerTools, ToolKey
from ..decisions.state_machine import Snapshot

T = TypeVar("T")
R = TypeVar("R")

NON_TOOLS: Final = "resources and prompts"
"""The key under which the callers of anything but a tool wait: few, and no tool has a name with a space."""


@define(eq=False)
class Observable(Generic[T]):
    """An immutable value that is replaced. Waiters see the present value, not earlier values: short-lived values may
    be missed."""

    value: T
    """The value now; written only by its one writer, by `set`."""
    _waiters: trio.lowlevel.ParkingLot | None = field(default=None, init=False)
    """The tasks that wait; made for them, and dropped when they look again."""

    def set(self, value: T) -> None:
        """Replace the value; for its one writer."""
        self.value = value
        self.notify()

    def notify(self) -> None:
        """Have every waiter look again: something else that it looks at has changed."""
        waiters, self._waiters = self._waiters, None
        if waiters is not None:
            waiters.unpark_all()

    async def changed(self) -> None:
        """Wait until there is a reason to look again."""
        if self._waiters is None:
            self._waiters = trio.lowlevel.ParkingLot()
        await self._waiters.park()

    async def wait(self, find: Callable[[T], R | None]) -> R:
        """Wait until `find` finds something in the value, and return it. `find` may raise to end the wait."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while (found := find(self.value)) is None:
            await self.changed()
        return found


@define(eq=False)
class AwaitedTools:
    """Calls of tools that no server has yet: whether a tool may still come, and which calls look again when it has.

    With hundreds of servers and as many calls that wait for them at the start, each change of a server wakes only those
    that it concerns. What keepers write is recorded here, in one step with the catalogue; nothing here grows with the
    number of connected servers.
    """

    _unsettled: set[str] = field(factory=set[str], init=False)
    """Servers whose first attempt is under way."""
    _unlisted: set[str] = field(factory=set[str], init=False)
    """Servers that are idle, and were not connected in this run, or never listed anything."""
    _starting: set[str] = field(factory=set[str], init=False)
    """Servers that were sent a command to start for somebody, and whose state has not changed since."""
    _asked: dict[str, int] = field(factory=dict[str, int], init=False)
    """Servers that somebody waits for, and their places in the order in which they were asked for first."""
    _places: Iterator[int] = field(factory=count, init=False)
    _callers: dict[str, trio.lowlevel.ParkingLot] = field(factory=dict[str, trio.lowlevel.ParkingLot], init=False)
    """The callers that wait, by the public name."""

    # -- whether a tool may come ----------------------------------------------------------------------------------

    @property
    def expected(self) -> bool:
        """True if a server may yet bring unknown tools: in a first attempt, or once it is started."""
        return bool(self._unsettled or self._unlisted)

    def claim_start(self, server: str) -> bool:
        """True if this caller is to start the server: one does, however many want it, until its state changes."""
        if server in self._starting:
            return False
        self._starting.add(server)
        return True

    def place(self, server: str) -> int:
        """The place of a server for which somebody waits among all such, until it has settled."""
        if server not in self._asked:
            self._asked[server] = next(self._places)
        return self._asked[server]

    def unlisted(self) -> Collection[str]:
        """The servers that must be started before a tool counts as unknown, and that nobody has started yet."""
        return self._unlisted - self._starting

    # -- what happens ---------------------------------------------------------------------------------------------

    def note(self, snapshot: Snapshot, *parts: ServerTools) -> None:
        """Record a server's present snapshot; `parts`: its part of the catalogue before, and now."""
        server, expected = snapshot.spec.name, self.expected
        self._starting.discard(server)
        if snapshot.state is not ServerState.IDLE and snapshot.settled:
            self._asked.pop(server, None)
        (self._unsettled.discard if snapshot.settled else self._unsettled.add)(server)
        unlisted = snapshot.started_by_unknown_names
        (self._unlisted.add if unlisted else self._unlisted.discard)(server)
        if expected and not self.expected:
            self.notify()
        elif self._callers:
            for part in parts:
                self._wake(tool.name for tool in part.tools)
                self._wake(part.held)
                self._wake(part.departed)
            if parts and parts[0].offers is not parts[-1].offers:
                self._wake([NON_TOOLS])

    def forget(self, server: str) -> None:
        """Forget this server. The caller notifies those who wait."""
        for servers in (self._unsettled, self._unlisted, self._starting):
            servers.discard(server)
        self._asked.pop(server, None)

    def notify(self) -> None:
        """Have everybody look again."""
        for callers in self._callers.values():
            callers.unpark_all()

    def _wake(self, keys: Iterable[ToolKey]) -> None:
        for key in keys:
            if isinstance(key, str) and key in self._callers:
                self._callers[key].unpark_all()

    # -- waiting --------------------------------------------------------------------------------------------------

    async def wait(self, name: str) -> None:
        """Wait for a change of the tool of this public name, or of `NON_TOOLS`, or of whether it may still come."""
        callers = self._callers.setdefault(name, trio.lowlevel.ParkingLot())
        try:
            await callers.park()
        finally:
            if not callers and self._callers.get(name) is callers:
                del self._callers[name]
