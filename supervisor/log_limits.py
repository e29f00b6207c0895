"""The limits of log lines: neither a server nor a client that does something again and again fills a disk."""

import logging
from typing import Final

import trio

from mcp_nursery.actors.records import define, field

WITHIN: Final = 60.0
"""Seconds over which lines are counted."""


@define(eq=False)
class LineLimit:
    """The limit of log lines about one subject: lets `most` pass within a minute, and counts the others."""

    most: int
    """The number of lines that pass."""
    _passed: list[float] = field(factory=list[float], init=False)
    """The times of the last lines that passed, the oldest first. A list: an empty deque is ten times as large."""
    _left_out: int = field(default=0, init=False)

    def passes(self, now: float) -> bool:
        """True if there is room for one more line at this time."""
        if len(self._passed) == self.most:
            if now - self._passed[0] < WITHIN:
                self._left_out += 1
                return False
            del self._passed[0]
        self._passed.append(now)
        return True

    def take_left_out(self) -> int:
        """Return the number of lines that did not pass since the previous call."""
        left_out, self._left_out = self._left_out, 0
        return left_out


_LIMITS: Final[trio.lowlevel.RunVar[dict[str, LineLimit]]] = trio.lowlevel.RunVar("mcp_nursery_client_log")
"""The limits of this run of Trio, by message."""


def log_of_client(
    logger: logging.Logger, level: int, message: str, *args: object, exc_info: BaseException | None = None
) -> None:
    """Log what a client has caused, as `logging.Logger.log` does: of each message one line a minute, with the number of
    those left out before it. The message, before `args` are put in, is no text of a client."""
    try:
        limits = _LIMITS.get()
    except LookupError:
        limits = dict[str, LineLimit]()
        _LIMITS.set(limits)
    limit = limits.setdefault(message, LineLimit(1))
    if limit.passes(trio.current_time()):
        left_out = limit.take_left_out()
        more = f" ({left_out} such lines before it are left out)" if left_out else ""
        logger.log(level, f"{message}%s", *args, more, exc_info=exc_info)
