"""Notifications that wait for the session, in the order of the wire. Bounded, and a change is never lost."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import trio
from mcp.shared.subscriptions import LISTEN_STREAM_METHODS

from ..nesting import more_values_than
from ..steps import SMALL

Params = Mapping[str, Any] | None

_LIMIT = 1024
"""Notifications that may wait before logs and progress are dropped: two thousand logs must not hide a list_changed."""

_LARGEST = 1 << 20
"""Bytes of a notification."""
_MOST_VALUES = 5_000
"""JSON values of a large one: the session finds out of each what it is, in one go."""
_UPDATED = "notifications/resources/updated"


class Notices:
    """A queue that drops, when full, only what may be dropped: logs, progress, and changes that wait already.

    Args:
        limit: Notifications that may wait.
        most: Bytes that may wait: beyond it updates of resources are dropped too, which a server can name without end.
    """

    def __init__(self, limit: int = _LIMIT, most: float = math.inf) -> None:
        self._limit = limit
        self._most = most
        self._size = 0
        """Bytes that wait."""
        self._queue: deque[tuple[str, Params, int]] = deque()
        self._changes: set[tuple[str, str]] = set()
        self._ready = trio.Event()
        self.dropped: int = 0

    def put(self, method: str, params: Params, size: int = 0) -> None:
        """Queue a notification that came with so many bytes. Never waits, never refuses a list_changed."""
        change = _change(method, params)
        if _is_too_much(params, size) or self._size + size > self._most:
            params, size = None, 0
            if change is None or method == _UPDATED:
                self.dropped += 1
                return
        if len(self._queue) >= self._limit and (change is None or change in self._changes):
            self.dropped += 1
            return
        if change is not None:
            self._changes.add(change)
        self._queue.append((method, params, size))
        self._size += size
        self._ready.set()

    async def get(self) -> tuple[str, Params]:
        """The next notification."""
        while not self._queue:
            self._ready = trio.Event()
            await self._ready.wait()
        method, params, size = self._queue.popleft()
        self._size -= size
        change = _change(method, params)
        if change is not None:
            self._changes.discard(change)
        return method, params


def _is_too_much(params: Params, size: int) -> bool:
    """Whether the session would take long to find out what a notification says."""
    return size > SMALL and (size > _LARGEST or more_values_than(params, _MOST_VALUES))


def _change(method: str, params: Params) -> tuple[str, str] | None:
    """What a level-triggered notification says has changed; None for the others."""
    if method not in LISTEN_STREAM_METHODS:
        return None
    return method, str((params or {}).get("uri"))
