"""Interference at an exact step of Trio's scheduler: a scenario is run again for each until it ends before."""

from collections.abc import Callable
from typing import Self

import trio
from attrs import define, field


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
