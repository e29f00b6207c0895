"""Promised upper bounds by the wall clock, on a machine that others use too."""

from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from typing import Any

TRIES = 3
"""Late three times is late."""

LATE: list[str] = []
"""What was late and is tried again, in the test that runs: told in the summary, so that nobody takes it for nothing."""


class Late(AssertionError):
    """It took longer than is promised; the code may be at fault, or a machine that was busy with something else."""


def in_time(took: float, bound: float) -> None:
    """What took so many seconds took less than the bound. For tests that are `timely`."""
    if not took < bound:
        raise Late(f"took {took:.3f} s, and less than {bound} s are promised")


def timely(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Run a test until nothing in it is late; if something is each time, it fails.

    What the code adds it adds to every try, and what a busy machine adds it does not. Nothing but `Late` is forgiven:
    what else goes wrong, a lower bound that does not hold included, fails at once. Fixtures are the same in each try,
    and so is the default store: a test of something that is remembered gives each try a store of its own.
    """

    @wraps(test)
    async def tried(**fixtures: Any) -> None:
        for _ in range(TRIES - 1):
            try:
                return await test(**fixtures)
            except* Late as late:
                LATE.extend(str(each) for each in leaves(late))
        return await test(**fixtures)

    return tried


def leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from leaves(each)
        else:
            yield each
