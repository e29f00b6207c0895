"""Calls that are due by a clock, whether earlier ones have ended or not: the second half of a contender's work.

Standard library only; of Trio or asyncio whichever the contender has imported.
"""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

Call = tuple[str, str, dict[str, Any]]
Caller = Callable[[str, str, dict[str, Any]], Awaitable[Any]]


def schedule(plan: list[Call], rate: float, seconds: float, seed: int) -> Iterator[tuple[float, Call]]:
    """Seconds from the start at which a call is due, and the call: as of many clients that know nothing of others."""
    chance = random.Random(seed)
    due = chance.expovariate(rate)
    while due < seconds:
        yield due, chance.choice(plan)
        due += chance.expovariate(rate)


async def load(plan: list[Call], call: Caller, rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """Make the calls that are due. Seconds from when each was due to its answer, in the order of the answers."""
    latencies: list[float] = []
    start = time.perf_counter()

    async def one(due: float, which: Call) -> None:
        await call(*which)
        latencies.append(time.perf_counter() - start - due)

    await _each_when_due(schedule(plan, rate, seconds, seed), one, start)
    return {"latencies": latencies}


async def capacity(plan: list[Call], call: Caller, width: int, seconds: float, seed: int) -> dict[str, Any]:
    """Calls a second, with so many always in flight."""
    chance, ended = random.Random(seed), 0
    start = time.perf_counter()

    async def one() -> None:
        nonlocal ended
        while time.perf_counter() - start < seconds:
            await call(*chance.choice(plan))
            ended += 1

    await _together([one] * width)
    return {"capacity": ended / (time.perf_counter() - start)}


def _on_trio() -> Any:
    """Trio, if it runs here."""
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_run() else None


async def _each_when_due(
    calls: Iterator[tuple[float, Call]], one: Callable[[float, Call], Awaitable[None]], start: float
) -> None:
    trio = _on_trio()
    if trio is not None:
        async with trio.open_nursery() as nursery:
            for due, which in calls:
                await trio.sleep(max(0.0, start + due - time.perf_counter()))
                nursery.start_soon(one, due, which)
        return
    async with asyncio.TaskGroup() as group:
        for due, which in calls:
            await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
            group.create_task(one(due, which))  # type: ignore[arg-type]


async def _together(functions: list[Callable[[], Awaitable[None]]]) -> None:
    trio = _on_trio()
    if trio is not None:
        async with trio.open_nursery() as nursery:
            for function in functions:
                nursery.start_soon(function)
        return
    await asyncio.gather(*(function() for function in functions))
