import math

import pytest
import trio
import trio.testing

from mcp_nursery.actors.process.tree import Leaving


@pytest.mark.parametrize(
    ("since", "now", "step", "end"),
    [
        (math.inf, 10, 1, 12),  # nobody leaves: from the beginning
        (math.inf, 12, 2, 14),
        (math.inf, 10.5, 2, 12.5),  # its first process had exited
        (math.inf, 99, 2, 100),  # the host was stopped meanwhile
        (9.5, 10, 1, 11.5),  # half a second late to the end
        (9.5, 11.5, 2, 13.5),
        (3, 10, 1, 11),  # very late
        (3, 11, 2, 12),
        (11, 10, 1, 12),  # what was in flight ended before the drain did
    ],
)
def test_when_a_step_is_over(since, now, step, end):
    async def main():
        leaving = Leaving()
        leaving.since = since
        await trio.sleep(now)
        assert leaving.step_end(10, step, 2) == end

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
