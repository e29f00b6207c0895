"""Interference at an exact step of Trio's scheduler: a scenario is run again for each until it ends before."""

import random
from collections.abc import Callable
from typing import Final, Self

import trio
from attrs import define, field

from .profiles import EXAMPLES, QUICK, THOROUGH, chosen


@define(eq=False)
class AtStep(trio.abc.Instrument):
    """Does something once as many steps were made in its block, right before the next one."""

    steps: int
    act: Callable[[], object]
    count: int = field(default=0, init=False)
    """Steps that were made in the block, or begun."""

    @property
    def acted(self) -> bool:
        return self.count > self.steps

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        if self.count == self.steps + 1:
            self.act()

    def __enter__(self) -> Self:
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *_: object) -> None:
        trio.lowlevel.remove_instrument(self)


SCHEDULES: Final = range(4 if chosen() >= EXAMPLES[THOROUGH] else 1)
"""The orders in which Trio may run what is ready, each by its number."""
STEPS_APART: Final = 3 if chosen() < EXAMPLES[QUICK] else 1
"""Steps between two of those at which a sweep interferes."""


def sweep(run_until: Callable[[int], bool]) -> int:
    """Run a scenario again and again, each time with the interference at another step, until one run is over before its
    step: at all steps, or with the profile `brief` at each third, the first of them random. Returns the number of steps
    of the scenario."""
    step = random.randrange(STEPS_APART)
    while True:
        try:
            if not run_until(step):
                return step
        except BaseException as error:
            error.add_note(f"interfered with at step {step}")
            raise
        step += STEPS_APART
