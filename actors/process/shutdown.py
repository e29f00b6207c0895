"""Since when a host has been ending all its servers: a thousand process trees cannot all be told in the same moment.

Each of them would have its grace periods from when its turn came, and the last would come to its end seconds late.
"""

import math
from contextvars import ContextVar

import trio


class Leaving:
    """Told by the host, read by the trees."""

    def __init__(self) -> None:
        self.since: float = math.inf
        """When all were to end, on Trio's clock; infinite as long as nobody leaves."""

    def step_end(self, began: float, step: int, grace: float) -> float:
        """When a step of a close is over: `grace` seconds after it began, and no later than without a queue.

        Args:
            began: When the close began.
            step: Its number, from 1.
            grace: Seconds of one step. Half of it is given to each, however long the queue was.
        """
        now = trio.current_time()
        return min(now + grace, max(min(began, self.since) + step * grace, now + grace / 2))


LEAVING: ContextVar[Leaving] = ContextVar("mcp_nursery_leaving", default=Leaving())  # noqa: B039 - nobody writes to it
"""For the processes that the current task and its children start."""
