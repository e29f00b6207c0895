"""The contender's half of a benchmark: rounds on demand. Standard library only, and any event loop.

A line `round K` on stdin runs the plan K times and prints one JSON line with the wall and CPU seconds of a call;
`capacity WIDTH SECONDS SEED` and `load RATE SECONDS SEED` are those of `open_loop.py`.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import open_loop

sys.path.append(str(Path(__file__).parent.parent / "peers"))

Call = tuple[str, str, dict[str, Any]]
"""The server, its tool, the arguments."""


@dataclass
class Job:
    """What the driver wants; it came as JSON in the first argument."""

    commands: dict[str, list[str]] = field(default_factory=dict)
    """Servers to start, by name."""
    in_process: list[str] = field(default_factory=list)
    """Names of servers to have in this process."""
    urls: dict[str, str] = field(default_factory=dict)
    """Servers on streamable HTTP, by name."""
    plan: list[Call] = field(default_factory=list)
    """The calls of one burst, all in flight at once."""
    before: list[Call] = field(default_factory=list)
    """Calls made once, before anything is measured."""
    timeout: float | None = None
    """Seconds, given to each call."""


def job() -> Job:
    return Job(**json.loads(sys.argv[1]))


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def resident_bytes() -> int:
    """Private and shared memory of this process that is in RAM."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check(plan: Sequence[Call], texts: Sequence[str]) -> None:
    """Every call got its own answer, in order."""
    for (_, tool, arguments), text in zip(plan, texts, strict=True):
        right = text == arguments["text"] if tool == "echo" else len(text) == arguments["size"]
        if not right:
            raise SystemExit(f"wrong answer to {arguments}: {text[:80]!r}")


async def serve(
    the_job: Job,
    call: Callable[[str, str, dict[str, Any]], Awaitable[Any]],
    gather: Callable[[], Awaitable[Sequence[Any]]],
    text_of: Callable[[Any], str],
) -> None:
    """Answer the driver until it closes stdin. `gather` makes all calls of the plan at once."""
    for early in the_job.before:
        await call(*early)

    async def alone() -> Sequence[Any]:
        return [await call(*the_job.plan[0])]

    burst = alone if len(the_job.plan) == 1 else gather
    say(await _checked(the_job, burst, text_of))
    for line in sys.stdin:
        match line.split():
            case ["round", count]:
                say(await _round(burst, int(count), len(the_job.plan)))
            case ["check"]:
                say(await _checked(the_job, burst, text_of))
            case ["capacity", width, seconds, seed]:
                say(await open_loop.capacity(the_job.plan, call, int(width), float(seconds), int(seed)))
            case ["load", rate, seconds, seed]:
                say(await open_loop.load(the_job.plan, call, float(rate), float(seconds), int(seed)))
            case ["memory"]:
                say({"resident": resident_bytes()})


async def _checked(
    the_job: Job, burst: Callable[[], Awaitable[Sequence[Any]]], text_of: Callable[[Any], str]
) -> dict[str, Any]:
    if the_job.plan:
        check(the_job.plan, [text_of(result) for result in await burst()])
    return {"checked": len(the_job.plan)}


async def _round(burst: Callable[[], Awaitable[object]], count: int, calls: int) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(count):
        await burst()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": wall / (count * calls), "cpu": cpu / (count * calls), "round": wall}
