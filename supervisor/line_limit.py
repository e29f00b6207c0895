"""How many lines of the log one subject may have: whatever a server does, it fills no disk."""

from collections import deque
from typing import Final

from attrs import Factory, define, field

WITHIN: Final = 60.0
"""Seconds over which lines are counted."""


@define(eq=False)
class LineLimit:
    """Lets so many lines pass within a minute, and counts the others."""

    most: int
    """How many."""
    _passed: deque[float] = field(
        default=Factory(lambda self: deque[float](maxlen=self.most), takes_self=True), init=False
    )
    """When the last ones passed."""
    _left_out: int = field(default=0, init=False)

    def passes(self, now: float) -> bool:
        """Whether there is room for one more at this time."""
        if len(self._passed) == self.most and now - self._passed[0] < WITHIN:
            self._left_out += 1
            return False
        self._passed.append(now)
        return True

    def take_left_out(self) -> int:
        """How many did not pass since this was asked last."""
        left_out, self._left_out = self._left_out, 0
        return left_out
