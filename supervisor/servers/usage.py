"""The use of each server: its calls, counted from their begin to their end, and since when there are none."""

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

import trio
from attrs import define, field

from ..status import CallCounts

_NO_CALLS = CallCounts()


@define(eq=False)
class Usage:
    """Counts the calls of every server, and notes when those were last used that are to be stopped when nobody does."""

    _on_unused: Callable[[str], None]
    """Called with the name of a removed server when its last user has gone."""
    _configured: set[str] = field(factory=set[str], init=False)
    _counts: dict[str, CallCounts] = field(factory=dict[str, CallCounts], init=False)
    _users: Counter[str] = field(factory=Counter[str], init=False)
    """Lists and the like that are under way."""
    _used_at: dict[str, float] = field(factory=dict[str, float], init=False)
    """When the last call or list ended; only of servers that may become idle."""

    def watch(self, server: str, limit: float) -> None:
        """It is configured. Note from now on when it was last used, if it has a limit of idleness."""
        self._configured.add(server)
        if limit == math.inf:
            self._used_at.pop(server, None)
        else:
            self._used_at.setdefault(server, -math.inf)

    def forget(self, server: str) -> None:
        """It was removed: forget it once it has no calls."""
        self._configured.discard(server)
        self._drop_if_unused(server)

    def _drop_if_unused(self, server: str) -> None:
        if server in self._configured or self.counts(server).in_flight or server in self._users:
            return
        self._counts.pop(server, None)
        self._used_at.pop(server, None)
        self._on_unused(server)

    def counts(self, server: str) -> CallCounts:
        """The calls of a server so far."""
        return self._counts.get(server, _NO_CALLS)

    def begin_call(self, server: str) -> None:
        """A call of this server begins."""
        counts = self._counts.get(server, _NO_CALLS)
        self._counts[server] = CallCounts(counts.in_flight + 1, counts.done, counts.failed)

    def finish_call(self, server: str, *, failed: bool) -> None:
        """A call of this server has its outcome."""
        counts = self.counts(server)
        self._counts[server] = CallCounts(counts.in_flight - 1, counts.done + (not failed), counts.failed + failed)
        if server in self._used_at:
            self._used_at[server] = trio.current_time()
        self._drop_if_unused(server)

    @contextmanager
    def in_use(self, servers: Iterable[str]) -> Generator[None, None, None]:
        """While the block lasts these servers are used, by something else than a call: a list, say."""
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
        """When the last call or list ended, on Trio's clock; `inf` while there is one, `-inf` if there was none."""
        if self.counts(server).in_flight or self._users[server]:
            return math.inf
        return self._used_at.get(server, -math.inf)
