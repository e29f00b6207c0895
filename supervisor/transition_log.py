"""What the log says of servers: that they come, go and give up. At a bounded rate, whatever a server does.

What stands in it is what the events say, in which secrets are taken out already.
"""

import logging
from typing import Final

from attrs import define, field

from mcp_nursery.actors.enums import ServerState

from .events import StateChanged
from .line_limit import LineLimit
from .security.untrusted_marks import clean_name

logger: Final = logging.getLogger(__name__)

MOST_LINES = 20
"""Lines about one server within a minute: a ladder of the default kind takes ten."""

_LOST = frozenset({ServerState.WAITING, ServerState.FAILED, ServerState.NEEDS_AUTH})
"""Where a connected server stands when nobody has asked it to end."""
_UNDER_WAY = frozenset({ServerState.CONNECTING, ServerState.CONNECTED})
"""Where its last failure is a matter of the past."""


@define(eq=False)
class TransitionLog:
    """Writes a line for each change of a server's state: INFO, and WARNING where it was lost or has given up."""

    _limits: dict[str, LineLimit] = field(factory=dict[str, LineLimit], init=False)
    """Of each server."""

    def note(self, event: StateChanged) -> None:
        """Write what has happened, if it is more than another step on the way to a connection."""
        if event.old is event.new:
            return
        limit = self._limits.setdefault(event.server, LineLimit(MOST_LINES))
        if not limit.passes(event.at):
            return
        lost = event.old is ServerState.CONNECTED and event.new in _LOST
        level = logging.WARNING if lost or event.new is ServerState.FAILED else logging.INFO
        logger.log(level, "%s: %s", clean_name(event.server), _line(event, limit.take_left_out()))

    def forget(self, server: str) -> None:
        """It is configured no more."""
        self._limits.pop(server, None)


def _line(event: StateChanged, left_out: int) -> str:
    line = str(event.new) if event.old is None else f"{event.old} -> {event.new}"
    if event.error and event.new not in _UNDER_WAY:
        line += f": {event.error}"
    if event.retry_in is not None:
        line += f"; start {event.attempt} of {event.max_attempts} in {round(event.retry_in, 1):g} s"
    if left_out:
        line += f" ({left_out} changes before it are left out)"
    return line
