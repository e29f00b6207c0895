"""Delivery is as promised for every fault at every byte: here at a part of them, the same in every run.

All of them: `python -m tests.sweeps`, which has options to look closer at some.
"""

import pytest

from .steps import FAULTS, MODES, sweep_steps
from .sweep import KINDS, rows, sweep

pytestmark = pytest.mark.night

STRIDE = 211
"""Every so many bytes: all of it together takes a minute."""
TOGETHER = 16
"""Faults for one server, so that tests are neither many nor long."""

TWINS = ("stdio-handshake", "ws-handshake", "http-stream-handshake")
"""Kinds of which another era goes the same way but for a few words: every third fault is enough."""


def parts():
    for kind in KINDS:
        faults = rows(kind)[:: 3 if kind in TWINS else 1]
        for place in range(0, len(faults), TOGETHER):
            yield pytest.param(kind, faults[place : place + TOGETHER], id=f"{kind}-{place // TOGETHER}")


@pytest.mark.parametrize(("kind", "faults"), list(parts()))
async def test_a_part_of_the_sweep(kind, faults):
    """Q14, Q15, Q36: executed once, one outcome in time, nothing left, and the next call works."""
    problems = []

    def tell(case, found):
        problems.extend(f"{case}: {problem}" for problem in found)

    assert await sweep(kind, faults, STRIDE, tell)
    assert problems == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_part_of_the_steps_of_a_call_in_this_process(fault):
    """Q14, Q15: the same of a server in this process, at every third step."""
    problems = []
    for mode in MODES:
        count, found = sweep_steps(fault, mode, 3)
        assert count
        problems += found
    assert problems == []
