"""The state of resources: reads, kept for as long as their server states that they stay true (`ttlMs`), and the
subscriptions to changes.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import trio

from mcp_nursery.actors.queues import BoundedQueue, WhenFull
from mcp_nursery.actors.records import define, evolve, field, frozen

from ..events import ResourceUpdated
from ..resources import ResourceResult

_MOST_READS: Final = 1000
"""Kept reads of one server."""
_AT_LEAST: Final = 1000
"""Bytes that a read counts for, however little it holds."""
_LONGEST_FRESHNESS: Final = 86_400.0
"""Seconds, whatever the server says: the MCP SDK's limit too."""


@frozen
class _KeptRead:
    result: ResourceResult
    until: float
    size: int


@define(eq=False)
class KeptReads:
    """The reads since the server was connected, or last announced a change. Then another object replaces this: the
    result of a read that was under way is kept where nobody looks any more."""

    _most: int
    """Bytes that the server may make its host keep here. The oldest reads go first."""
    _kept: dict[str, _KeptRead] = field(factory=dict[str, _KeptRead], init=False)
    """The reads by URI, the oldest first."""
    _size: int = field(default=0, init=False)

    def find(self, uri: str, max_chars: int) -> ResourceResult | None:
        """The kept result for the resource, if there is one; `max_chars`: characters of it that a model is shown."""
        kept = self._kept.get(uri)
        if kept is None or kept.until <= trio.current_time():
            return None
        return evolve(_own(kept.result), duration=0.0, max_result_chars=max_chars)

    def keep(self, result: ResourceResult, size: int) -> None:
        """Keep what was read just now, if its server says for how long it may be kept. The message that brought it had
        `size` bytes."""
        self._drop(result.uri)
        size = _AT_LEAST + 2 * max(size, len(result.full_text))  # as it came, and as text
        if result.fresh_for <= 0 or size > self._most:
            return
        self._kept[result.uri] = _KeptRead(
            _own(result), trio.current_time() + min(result.fresh_for, _LONGEST_FRESHNESS), size
        )
        self._size += size
        while self._size > self._most or len(self._kept) > _MOST_READS:
            self._drop(next(iter(self._kept)))

    def _drop(self, uri: str) -> None:
        if (kept := self._kept.pop(uri, None)) is not None:
            self._size -= kept.size


def _own(result: ResourceResult) -> ResourceResult:
    """The result with contents of its own, which a caller may change."""
    return evolve(result, contents=[one.model_copy() for one in result.contents])


Updates = BoundedQueue[ResourceUpdated]
"""The update of one resource that was not received yet. After one that is certain, one that is not adds nothing."""


@define(eq=False)
class Subscriptions:
    """The open subscriptions of all servers. They outlast connections: what a server is subscribed to follows them."""

    _subscribe: Callable[[str, frozenset[str]], None]
    """Called with a server and the URIs that are subscribed now, whenever these change."""
    _open: dict[str, dict[str, set[Updates]]] = field(factory=dict[str, dict[str, set[Updates]]], init=False)
    """The channels, by server and URI."""

    @contextmanager
    def open(self, server: str, uri: str) -> Generator[Updates, None, None]:
        """A subscription that lasts as long as the block."""
        updates, of_server = Updates(1, when_full=WhenFull.LOSE_OLDEST), self._open.setdefault(server, {})
        of_server.setdefault(uri, set()).add(updates)
        if len(of_server[uri]) == 1:
            self._subscribe(server, frozenset(of_server))
        try:
            yield updates
        finally:
            updates.close()
            of_server[uri].discard(updates)
            if not of_server[uri]:
                del of_server[uri]
                if self._open.get(server) is of_server:
                    self._subscribe(server, frozenset(of_server))

    def deliver(self, update: ResourceUpdated) -> None:
        """Report an update of a resource to its subscribers."""
        for updates in self._open.get(update.server, {}).get(update.uri, ()):
            if update.certain or not len(updates):
                updates.put(update)

    def end(self, server: str) -> None:
        """End the subscriptions of a server that is gone."""
        for subscribed in self._open.pop(server, {}).values():
            for updates in subscribed:
                updates.finish()

    def end_all(self) -> None:
        """End all subscriptions."""
        for server in list(self._open):
            self.end(server)
