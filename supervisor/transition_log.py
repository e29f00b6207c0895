"""What the log says of servers: that they come, go and give up. At a bounded rate, whatever a server does.

What stands in it is what the events say, in which secrets are taken out already.
"""

import logging
from collections import deque
from typing import Final

from attrs import define, field

from mcp_nursery.actors.enums import ServerState

from .events import StateChanged
from .security.untrusted_marks import clean_name

logger: Final = logging.getLogger(__name__)

MOST_LINES = 20
"""Lines about one server within `WITHIN`: a ladder of the default kind takes ten."""
WITHIN = 60.0
"""Seconds."""

_LOST = frozenset({ServerState.WAITING, ServerState.FAILED, ServerState.NEEDS_AUTH})
"""Where a connected server stands when nobody has asked it to end."""
_UNDER_WAY = frozenset({ServerState.CONNECTING, ServerState.CONNECTED})
"""Where its last failure is a matter of the past."""


@define(eq=False)
class TransitionLog:
    """Writes a line for each change of a server's state: INFO, and WARNING where it was lost or has given up."""

    _logged_at: dict[str, deque[float]] = field(factory=dict[str, "deque[float]"], init=False)
    """When the last lines about each server were written, on Trio's clock."""
    _left_out: dict[str, int] = field(factory=dict[str, int], init=False)

    def note(self, event: StateChanged) -> None:
        """Write what has happened, if it is more than another step on the way to a connection."""
        if event.old is event.new:
            return
        if not self._has_room(event):
            self._left_out[event.server] = self._left_out.get(event.server, 0) + 1
            return
        lost = event.old is ServerState.CONNECTED and event.new in _LOST
        level = logging.WARNING if lost or event.new is ServerState.FAILED else logging.INFO
        logger.log(level, "%s: %s", clean_name(event.server), self._line(event))

    def forget(self, server: str) -> None:
        """It is configured no more."""
        self._logged_at.pop(server, None)
        self._left_out.pop(server, None)

    def _has_room(self, event: StateChanged) -> bool:
        logged_at = self._logged_at.setdefault(event.server, deque(maxlen=MOST_LINES))
        if len(logged_at) == MOST_LINES and event.at - logged_at[0] < WITHIN:
            return False
        logged_at.append(event.at)
        return True

    def _line(self, event: StateChanged) -> str:
        line = str(event.new) if event.old is None else f"{event.old} -> {event.new}"
        if event.error and event.new not in _UNDER_WAY:
            line += f": {event.error}"
        if event.retry_in is not None:
            line += f"; start {event.attempt} of {event.max_attempts} in {round(event.retry_in, 1):g} s"
        if left_out := self._left_out.pop(event.server, 0):
            line += f" ({left_out} changes before it are left out)"
        return line
