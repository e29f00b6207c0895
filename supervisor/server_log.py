"""What a server logs (`notifications/message`), where the host has no callback for it: a logger of Python's for each
server, `mcp_nursery.server.<name>`.

Whether anybody hears is Python's to say. A server that is asked for its log is asked for what somebody hears, and no
server is asked on behalf of a program that has not set up logging at all.
"""

import json
import logging
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import define, field

from mcp_nursery.actors.errors import one_line

from .line_limit import LineLimit
from .security.untrusted_marks import clean_name, visible

if TYPE_CHECKING:
    from mcp_types import LoggingLevel, LoggingMessageNotificationParams

LEVELS: dict["LoggingLevel", int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL,
    "emergency": logging.CRITICAL,
}
"""The protocol's levels, the least severe first, and Python's."""

MOST_LINES: Final = 100
"""Messages of one server within a minute."""
MOST_CHARACTERS: Final = 2_000
"""Of one message."""
_LOOKED_AT: Final = 12_000
"""Characters of one message in which secrets are looked for."""
_MARGIN: Final = 10_000
"""Of those, where there are more, characters that are not shown: a secret may be cut apart at their end."""


@define(eq=False)
class ServerLog:
    """Writes the log messages of one server, each as a line without secrets, at a bounded rate."""

    _server: str
    """Its name. What is neither letter nor digit nor `-` of it becomes `_` in the logger's, dots too."""
    _redact: Callable[[str], str]
    """Takes the server's secrets out of a text."""
    _limit: LineLimit | None = field(default=None, init=False)
    """Made for the first message: most servers never send any."""

    @property
    def _logger(self) -> logging.Logger:
        return logging.getLogger(f"mcp_nursery.server.{clean_name(self._server).replace('.', '_')}")

    @property
    def level(self) -> "LoggingLevel | None":
        """The least severe messages that somebody hears now; None if nobody hears any."""
        logger = self._logger
        if logger.hasHandlers():
            for name, level in LEVELS.items():
                if logger.isEnabledFor(level):
                    return name
        return None

    async def take(self, params: "LoggingMessageNotificationParams") -> None:
        """A message has come."""
        logger, level = self._logger, LEVELS[params.level]
        if not (logger.isEnabledFor(level) and logger.hasHandlers()):
            return
        limit = self._limit = self._limit or LineLimit(MOST_LINES)
        if limit.passes(trio.current_time()):
            left_out = limit.take_left_out()
            more = f" ({left_out} messages before it are left out)" if left_out else ""
            logger.log(level, "%s%s", self._said(params), more)

    def _said(self, params: "LoggingMessageNotificationParams") -> str:
        text = _text(params.data)
        if params.logger is not None:
            text = f"{params.logger}: {text}"
        shown = self._redact(text[:_LOOKED_AT])
        return one_line(visible(shown if len(text) <= _LOOKED_AT else f"{shown[:-_MARGIN]}…"), MOST_CHARACTERS)


def _text(data: Any) -> str:
    """What a message says, or at least its beginning."""
    if isinstance(data, str):
        return data
    encoder = json.JSONEncoder(ensure_ascii=False, default=str)
    try:
        return "".join(islice(encoder.iterencode(data), _LOOKED_AT + 1))
    except (TypeError, ValueError, RecursionError):
        return "<what has no JSON form>"
