"""The log: lines about servers, and the log messages of servers. No line holds secrets, and the rate of lines is
bounded, so that no server can fill a disk.

`TransitionLog` records changes of servers: each line repeats an event, from which secrets have been removed already.

`ServerLog` writes what a server sends as `notifications/message`, if the host has no callback for it, to a logger of
Python's for each server, `mcp_nursery.server.<name>`. Python's settings decide which messages are recorded. A server
that can be asked for its log is asked only for those, and not at all by a program that has not set up logging.
"""

import json
import logging
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import one_line
from mcp_nursery.actors.records import define, field
from mcp_nursery.actors.secrets import MAX_LINE

from .decisions.state_machine import Snapshot
from .events import BreakerChanged, StateChanged
from .log_limits import LineLimit
from .security.untrusted_marks import clean_name, visible

if TYPE_CHECKING:
    from mcp_types import LoggingLevel, LoggingMessageNotificationParams

logger: Final = logging.getLogger("mcp_nursery.supervisor.transition_log")

LINES_PER_MINUTE = 20
"""Lines about one server within a minute: the default ladder takes ten."""

_LONGEST_VERSION: Final = 40
"""Characters of a server's version in a line."""

FAILED_ATTRIBUTE: Final = "failed"
"""Attribute of a record: whether it reports that a server was lost, not reached or not trusted, also on the way to a
connection."""

_SERVER_ATTRIBUTE: Final = "server"
"""Attribute of a record: the name of the server that it is about."""

_LOST_STATES = frozenset({ServerState.WAITING, ServerState.FAILED, ServerState.NEEDS_AUTH})
"""The states that follow `connected` if nobody has asked the server to end."""
_UNDER_WAY = frozenset({ServerState.CONNECTING, ServerState.CONNECTED})
"""The states in which a server's last failure is a matter of the past."""

LOGGING_LEVELS: dict["LoggingLevel", int] = {
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

MESSAGES_PER_MINUTE: Final = 100
"""Messages of one server within a minute."""
MOST_MESSAGE_CHARACTERS: Final = MAX_LINE
"""Characters written of one message."""
_LOOKED_AT: Final = 12_000
"""Characters of one message that is no text which are looked at."""


def server_of(record: logging.LogRecord) -> str | None:
    """The name of the server that a record of ours is about; None if it is about none. A message about a server begins
    with its name, the first argument."""
    server: object = getattr(record, _SERVER_ATTRIBUTE, None)
    if server is None and record.name.startswith("mcp_nursery.") and str(record.msg).startswith("%s: "):
        server = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return server if isinstance(server, str) else None


@define(eq=False)
class TransitionLog:
    """The log of changes: a line at INFO for each change of a server's state, at WARNING if it was lost or has given
    up, and for those of its circuit breaker, at WARNING if that opens."""

    _limits: dict[str, LineLimit] = field(factory=dict[str, LineLimit], init=False)
    """The limit of each server."""
    _began: dict[str, float] = field(factory=dict[str, float], init=False)
    """The time at which the last attempt of each server began, on Trio's clock."""

    def record_transition(self, event: StateChanged, offer: str = "") -> None:
        """Write a line for the change, unless the state stays the same and no limit is exceeded, with the offer of a
        server that is connected now: see `offer_of`."""
        if event.old is event.new:
            if event.over_limit and event.new is ServerState.CONNECTED:
                self._write(logging.WARNING, event, event.over_limit)
            return
        lost = event.old is ServerState.CONNECTED and event.new in _LOST_STATES
        level = logging.WARNING if lost or event.new is ServerState.FAILED else logging.INFO
        line = _line(event)
        if event.new is ServerState.CONNECTED:
            line += f": {offer}, in {round(event.at - self._began.get(event.server, event.at), 2):g} s"
        self._write(level, event, line)
        self.record_attempt(event)

    def record_attempt(self, event: StateChanged) -> None:
        """Record when an attempt begins. Writes no line: a server that was just configured gets none."""
        if event.new is ServerState.CONNECTING:
            self._began[event.server] = event.at

    def record_breaker(self, event: BreakerChanged) -> None:
        """Write that the circuit breaker of a server has opened or closed."""
        if event.retry_in is None:
            self._write(logging.INFO, event, "its circuit breaker is closed")
        elif event.state == "open" and event.retry_in:  # a probe that shows nothing leaves it as it was
            said = f"{event.failures} calls in a row failed; its circuit breaker is open for {event.retry_in:g} s"
            self._write(logging.WARNING, event, said)

    def _write(self, level: int, event: StateChanged | BreakerChanged, line: str) -> None:
        limit = self._limits.setdefault(event.server, LineLimit(LINES_PER_MINUTE))
        if limit.passes(event.at):
            left_out = limit.take_left_out()
            more = f" ({left_out} changes before it are left out)" if left_out else ""
            failed = isinstance(event, StateChanged) and event.new in (*_LOST_STATES, ServerState.BLOCKED)
            logger.log(
                level,
                "%s: %s%s",
                clean_name(event.server),
                line,
                more,
                extra={FAILED_ATTRIBUTE: failed, _SERVER_ATTRIBUTE: event.server},
            )

    def forget(self, server: str) -> None:
        """Forget a server that is not configured any more."""
        self._limits.pop(server, None)
        self._began.pop(server, None)


def offer_of(snapshot: Snapshot, tools: int) -> str:
    """The offer of a connected server, for the log: its version, if it names one, and the number of its tools."""
    info = None if snapshot.introduction is None else snapshot.introduction.server_info
    version = clean_name(str((info or {}).get("version", ""))[:_LONGEST_VERSION])
    return f"{f'version {version}, ' if version else ''}{tools} tool{'' if tools == 1 else 's'}"


def _line(event: StateChanged) -> str:
    line = str(event.new) if event.old is None else f"{event.old} -> {event.new}"
    if event.error and event.new not in _UNDER_WAY:
        line += f": {event.error}"
    if event.over_limit:
        line += f": {event.over_limit}"
    if event.retry_in is not None:
        line += f"; start {event.attempt} of {event.max_attempts} in {round(event.retry_in, 1):g} s"
    return line


@define(eq=False)
class ServerLog:
    """The log messages of one server, each written as a line without secrets, at a bounded rate."""

    _server: str
    """The server's name. In the logger's name each of its characters except letters, digits and `-` becomes `_`, dots
    included."""
    _redact: Callable[[str], str]
    """The function that removes the server's secrets from a text."""
    _limit: LineLimit | None = field(default=None, init=False)
    """The limit, made for the first message: most servers never send any."""

    @property
    def _logger(self) -> logging.Logger:
        return logging.getLogger(f"mcp_nursery.server.{clean_name(self._server).replace('.', '_')}")

    @property
    def level(self) -> "LoggingLevel | None":
        """The level of the least severe messages that are recorded now; None if none are."""
        logger = self._logger
        if logger.hasHandlers():
            for name, level in LOGGING_LEVELS.items():
                if logger.isEnabledFor(level):
                    return name
        return None

    async def take(self, params: "LoggingMessageNotificationParams") -> None:
        """Write a message, within the limit."""
        logger, level = self._logger, LOGGING_LEVELS[params.level]
        if not (logger.isEnabledFor(level) and logger.hasHandlers()):
            return
        limit = self._limit = self._limit or LineLimit(MESSAGES_PER_MINUTE)
        if limit.passes(trio.current_time()):
            left_out = limit.take_left_out()
            more = f" ({left_out} messages before it are left out)" if left_out else ""
            logger.log(level, "%s%s", self._line(params), more, extra={_SERVER_ATTRIBUTE: self._server})

    def _line(self, params: "LoggingMessageNotificationParams") -> str:
        text = _text_of(params.data)
        if params.logger is not None:
            text = f"{params.logger}: {text}"
        return one_line(visible(self._redact(text)), MOST_MESSAGE_CHARACTERS)


def _text_of(data: Any) -> str:
    """The text of a message, or at least its beginning."""
    if isinstance(data, str):
        return data
    encoder = json.JSONEncoder(ensure_ascii=False, default=str)
    try:
        return "".join(islice(encoder.iterencode(data), _LOOKED_AT + 1))
    except (TypeError, ValueError, RecursionError):
        return "<what has no JSON form>"
