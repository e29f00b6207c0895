"""Work on a text that takes time linear in its length, whatever the text is: measured, by the time of the processor."""

import time
from collections.abc import Callable
from itertools import cycle, islice


def seconds(work: Callable[[str], object], text: str) -> float:
    """What it takes: the least of three times."""
    times = []
    for _ in range(3):
        began = time.process_time()
        work(text)
        times.append(time.process_time() - began)
    return min(times)


def repeated(unit: str, size: int) -> str:
    """A text of so many characters."""
    return "".join(islice(cycle(unit), size))


def stays_linear(
    work: Callable[[str], object], unit: str, *, sizes: tuple[int, int], factor: float, slack: float
) -> bool:
    """Whether a long text takes less than `factor` times as long as a short one, and some seconds of slack.

    Args:
        work: What is done with a text.
        unit: What the texts repeat.
        sizes: Their lengths. Quadratic work takes as many times as long as the square of their ratio.
        factor: Between that and their ratio.
        slack: Seconds.
    """
    short, long = (seconds(work, repeated(unit, size)) for size in sizes)
    return long < factor * short + slack
