"""What the log says of servers: that they come, go and give up. At a bounded rate, whatever a server does.

What stands in it is what the events say, in which secrets are taken out already.
"""

import logging
from typing import Final

from attrs import define, field

from mcp_nursery.actors.enums import ServerState

from .events import BreakerChanged, StateChanged
from .line_limit import LineLimit
from .security.untrusted_marks import clean_name
from .state_machine import Snapshot

logger: Final = logging.getLogger(__name__)

MOST_LINES = 20
"""Lines about one server within a minute: a ladder of the default kind takes ten."""

_LONGEST_VERSION: Final = 40
"""Characters of a server's version that a line has."""

FAILED: Final = "failed"
"""Attribute of a record: whether it says that a server is lost, or was not reached or not trusted, also on the way to a
connection."""

_LOST = frozenset({ServerState.WAITING, ServerState.FAILED, ServerState.NEEDS_AUTH})
"""Where a connected server stands when nobody has asked it to end."""
_UNDER_WAY = frozenset({ServerState.CONNECTING, ServerState.CONNECTED})
"""Where its last failure is a matter of the past."""


@define(eq=False)
class TransitionLog:
    """Writes a line for each change of a server's state: INFO, and WARNING where it was lost or has given up; and for
    those of its circuit breaker: WARNING where that opens."""

    _limits: dict[str, LineLimit] = field(factory=dict[str, LineLimit], init=False)
    """Of each server."""
    _began: dict[str, float] = field(factory=dict[str, float], init=False)
    """When the last attempt of each server began, on Trio's clock."""

    def note(self, event: StateChanged, offer: str = "") -> None:
        """Write what has happened, if it is more than another step on the way to a connection.

        Args:
            event: What has.
            offer: Of a server that is connected now, what it is and has: see `offer_of`.
        """
        if event.old is event.new:
            return
        lost = event.old is ServerState.CONNECTED and event.new in _LOST
        level = logging.WARNING if lost or event.new is ServerState.FAILED else logging.INFO
        line = _line(event)
        if event.new is ServerState.CONNECTED:
            line += f": {offer}, in {round(event.at - self._began.get(event.server, event.at), 2):g} s"
        self._write(level, event, line)
        self.note_attempt(event)

    def note_attempt(self, event: StateChanged) -> None:
        """Note when an attempt begins; that of a server that was just configured is no line."""
        if event.new is ServerState.CONNECTING:
            self._began[event.server] = event.at

    def note_breaker(self, event: BreakerChanged) -> None:
        """Write that the circuit breaker of a server has opened or closed."""
        if event.retry_in is None:
            self._write(logging.INFO, event, "its circuit breaker is closed")
        elif event.state == "open" and event.retry_in:  # a probe that says nothing leaves it as it was
            said = f"{event.failures} calls in a row failed; its circuit breaker is open for {event.retry_in:g} s"
            self._write(logging.WARNING, event, said)

    def _write(self, level: int, event: StateChanged | BreakerChanged, line: str) -> None:
        limit = self._limits.setdefault(event.server, LineLimit(MOST_LINES))
        if limit.passes(event.at):
            left_out = limit.take_left_out()
            more = f" ({left_out} changes before it are left out)" if left_out else ""
            failed = isinstance(event, StateChanged) and event.new in (*_LOST, ServerState.BLOCKED)
            logger.log(level, "%s: %s%s", clean_name(event.server), line, more, extra={FAILED: failed})

    def forget(self, server: str) -> None:
        """It is configured no more."""
        self._limits.pop(server, None)
        self._began.pop(server, None)


def offer_of(snapshot: Snapshot, tools: int) -> str:
    """What a connected server is and has, for the log: its version, if it names one, and how many tools it offers."""
    info = None if snapshot.introduction is None else snapshot.introduction.server_info
    version = clean_name(str((info or {}).get("version", ""))[:_LONGEST_VERSION])
    return f"{f'version {version}, ' if version else ''}{tools} tool{'' if tools == 1 else 's'}"


def _line(event: StateChanged) -> str:
    line = str(event.new) if event.old is None else f"{event.old} -> {event.new}"
    if event.error and event.new not in _UNDER_WAY:
        line += f": {event.error}"
    if event.retry_in is not None:
        line += f"; start {event.attempt} of {event.max_attempts} in {round(event.retry_in, 1):g} s"
    return line
