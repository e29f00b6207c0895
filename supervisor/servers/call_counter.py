"""The calls of each server, counted from beginning to end, and the time since which there are none."""

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

import trio

from mcp_nursery.actors.account import KEPT_FOR_SERVERS, Account
from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.records import define, field

from ..decisions.state_machine import Snapshot
from ..decisions.statistics import MOST_RECENT, ServerTally


@define(eq=False)
class CallCounter:
    """The counts of every server, and the times at which those that may become idle were last used."""

    _on_unused: Callable[[str], None]
    """Called with the name of a removed server when its last user has gone."""
    _account: Account = field(factory=lambda: Account(KEPT_FOR_SERVERS), init=False)
    """The account of what waits for all servers."""
    _configured: set[str] = field(factory=set[str], init=False)
    _tallies: dict[str, ServerTally] = field(factory=dict[str, ServerTally], init=False)
    _users: Counter[str] = field(factory=Counter[str], init=False)
    """Lists and the like that are under way."""
    _used_at: dict[str, float] = field(factory=dict[str, float], init=False)
    """The times at which the last call or list ended; only of servers that may become idle."""

    def watch(self, server: str, limit: float) -> None:
        """Record from now on when a server was last used, if it has a limit of idleness."""
        self._configured.add(server)
        self._begin(server)
        if limit == math.inf:
            self._used_at.pop(server, None)
        else:
            self._used_at.setdefault(server, -math.inf)

    def forget(self, server: str) -> None:
        """Forget a removed server once it has no calls."""
        self._configured.discard(server)
        self._drop_if_unused(server)

    def _drop_if_unused(self, server: str) -> None:
        if server in self._configured or self.tally(server).in_flight or server in self._users:
            return
        self._tallies.pop(server, None)
        self._used_at.pop(server, None)
        self._on_unused(server)

    def tally(self, server: str) -> ServerTally:
        """The counts of a server so far."""
        return self._tallies.get(server) or ServerTally()

    def begin_call(self, server: str) -> None:
        """Count a call of this server that begins."""
        tally = self._tallies.get(server) or self._begin(server)
        tally.in_flight += 1

    def _begin(self, server: str) -> ServerTally:
        tally = self._tallies.get(server)
        if tally is None:
            tally = self._tallies[server] = ServerTally(Account(whole=self._account))
        return tally

    def finish_call(self, server: str, tool: str | None, seconds: float) -> None:
        """Count a call of this server that was answered with a result, after `seconds`; `tool`: None if it was of no
        tool."""
        tally = self._tallies[server]
        tally.done += 1
        tally.of(tool).add(seconds)
        tally.recent.append((tool, seconds, None, "answered", trio.current_time()))
        del tally.recent[:-MOST_RECENT]
        tally.in_flight -= 1
        if server in self._used_at or server not in self._configured:
            self._mark_used(server)

    def fail_call(self, server: str, tool: str | None, seconds: float, error: str, delivery: str) -> None:
        """Count a call of this server that has failed with this class of error, after `seconds`."""
        tally = self._tallies[server]
        tally.failed += 1
        tally.of(tool).fail(error, delivery)
        tally.recent.append((tool, seconds, error, delivery, trio.current_time()))
        del tally.recent[:-MOST_RECENT]
        tally.in_flight -= 1
        self._mark_used(server)

    def count_task(self, server: str, before: str | None, after: str) -> None:
        """Count the status of a task that this server has made of a call, in place of the one `before`."""
        tasks = self.tally(server).tasks
        tasks[after] = tasks.get(after, 0) + 1
        if before is not None:
            tasks[before] -= 1

    def _mark_used(self, server: str) -> None:
        if server in self._used_at:
            self._used_at[server] = trio.current_time()
        if server not in self._configured:
            self._drop_if_unused(server)

    def note(self, old: Snapshot, new: Snapshot) -> None:
        """Record a server's restarts, and the time of its lists."""
        if old.state is ServerState.WAITING and new.state is ServerState.CONNECTING:
            self.tally(new.spec.name).restarts += 1
        if new.state is ServerState.CONNECTED and new.definitions is not old.definitions:
            self.tally(new.spec.name).listed_at = trio.current_time()

    @contextmanager
    def in_use(self, servers: Iterable[str]) -> Generator[None, None, None]:
        """Count these servers as used while the block lasts, by something other than a call, such as a list."""
        used = list(servers)
        self._users.update(used)
        try:
            yield
        finally:
            self._users -= Counter(used)
            now = trio.current_time()
            self._used_at.update((server, now) for server in used if server in self._used_at)
            for server in used:
                self._drop_if_unused(server)

    def idle_since(self, server: str) -> float:
        """The time at which the last call or list ended, on Trio's clock; `inf` while there is one, `-inf` if there was
        none."""
        if self.tally(server).in_flight or self._users[server]:
            return math.inf
        return self._used_at.get(server, -math.inf)
