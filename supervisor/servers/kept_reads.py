"""What was read of one server's resources, for as long as the server says that it stays true (`ttlMs`)."""

from typing import Final

import trio
from attrs import define, evolve, field, frozen

from ..resources.results import ResourceResult

_MOST_KEPT: Final = 1000
"""Resources of one server."""
_AT_LEAST: Final = 1000
"""Bytes that one counts for, however little it holds."""
_LONGEST: Final = 86_400.0
"""Seconds, whatever the server says: the MCP SDK's limit too."""


@frozen
class _Kept:
    result: ResourceResult
    until: float
    size: int


@define(eq=False)
class KeptReads:
    """What was read since the server was connected, or last said that something changed. Then these are others: what
    comes of a read that was under way is kept where nobody looks any more."""

    _most: int
    """Bytes that it may make its host keep here. The oldest go first."""
    _kept: dict[str, _Kept] = field(factory=dict[str, _Kept], init=False)
    """By URI, the oldest first."""
    _size: int = field(default=0, init=False)

    def find(self, uri: str, max_chars: int) -> ResourceResult | None:
        """What the resource holds, if that is known; a model is shown so many characters of it."""
        kept = self._kept.get(uri)
        if kept is None or kept.until <= trio.current_time():
            return None
        return evolve(_own(kept.result), duration=0.0, max_result_chars=max_chars)

    def keep(self, result: ResourceResult, size: int) -> None:
        """Keep what was read just now, if its server says for how long it may be.

        Args:
            result: What the caller gets.
            size: Bytes of the message that brought it.
        """
        self._drop(result.uri)
        size = _AT_LEAST + 2 * max(size, len(result.full_text))  # as it came, and as text
        if result.fresh_for <= 0 or size > self._most:
            return
        self._kept[result.uri] = _Kept(_own(result), trio.current_time() + min(result.fresh_for, _LONGEST), size)
        self._size += size
        while self._size > self._most or len(self._kept) > _MOST_KEPT:
            self._drop(next(iter(self._kept)))

    def _drop(self, uri: str) -> None:
        if (kept := self._kept.pop(uri, None)) is not None:
            self._size -= kept.size


def _own(result: ResourceResult) -> ResourceResult:
    """With contents of its own: who gets one may change them."""
    return evolve(result, contents=[one.model_copy() for one in result.contents])
