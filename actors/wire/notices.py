"""Notifications that wait for the session, in the order of the wire. Bounded, and a change is never lost."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import trio
from mcp.shared.subscriptions import LISTEN_STREAM_METHODS

Params = Mapping[str, Any] | None

_LIMIT = 1024
"""Notifications that may wait before logs and progress are dropped: two thousand logs must not hide a list_changed."""


class Notices:
    """A queue that drops, when full, only what may be dropped: logs, progress, and changes that wait already."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._queue: deque[tuple[str, Params]] = deque()
        self._changes: set[tuple[str, str]] = set()
        self._ready = trio.Event()
        self.dropped = 0

    def put(self, method: str, params: Params) -> None:
        """Queue a notification. Never waits, never refuses a change."""
        change = _change(method, params)
        if len(self._queue) >= self._limit and (change is None or change in self._changes):
            self.dropped += 1
            return
        if change is not None:
            self._changes.add(change)
        self._queue.append((method, params))
        self._ready.set()

    async def get(self) -> tuple[str, Params]:
        """The next notification."""
        while not self._queue:
            self._ready = trio.Event()
            await self._ready.wait()
        method, params = self._queue.popleft()
        change = _change(method, params)
        if change is not None:
            self._changes.discard(change)
        return method, params


def _change(method: str, params: Params) -> tuple[str, str] | None:
    """What a level-triggered notification says has changed; None for the others."""
    if method not in LISTEN_STREAM_METHODS:
        return None
    return method, str((params or {}).get("uri"))
