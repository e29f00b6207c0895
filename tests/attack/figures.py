"""The five figures that are watched, and what is promised of each."""

import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import field, frozen

ECHO = [sys.executable, "-I", "-S", str(Path(__file__).parents[2] / "benchmarks" / "peers" / "echo_server.py")]
"""A quiet server."""

TURN = 0.05
"""Seconds of CPU that a turn of the loop may take."""
WAIT = 0.05
"""Seconds that a neighbour's p99 may be over its quiet."""
LATE = 0.5
"""Seconds after its time at which an outcome is late."""
MEMORY = 250 << 20
"""Bytes of a host with one hostile server."""
MEMORY_MORE = 150 << 20
"""Bytes for another one."""
MEMORY_WITH_CLIENTS = 700 << 20
"""Bytes, with any number of clients that do not read."""
FILES = 1200
"""Open files at any time: the bound of connections, and what servers need."""


def p99(took: Sequence[float]) -> float:
    """Seconds."""
    return statistics.quantiles(took, n=100, method="inclusive")[-1] if len(took) > 1 else sum(took)


@frozen
class Waits:
    """How long calls took in some time."""

    p99: float
    count: int
    longest: float
    at: float
    """When the longest began, in seconds of that time."""


class Calls:
    """How long calls take."""

    def __init__(self) -> None:
        self.cut()

    def add(self, began: float) -> None:
        """One that is over now."""
        self._took.append((trio.current_time() - began, began - self._since))

    def cut(self) -> Waits:
        """Those until now; then begin again."""
        took = [each for each, _ in getattr(self, "_took", ())]
        longest, at = max(getattr(self, "_took", ()), default=(0.0, 0.0))
        self._took: list[tuple[float, float]] = []
        self._since = trio.current_time()
        return Waits(p99(took), len(took), longest, at)


class Turns(trio.abc.Instrument):
    """The longest turns of the loop."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self.slowest = ""
        self._began = time.perf_counter(), time.thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self._began = time.perf_counter(), time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        wall, cpu = time.perf_counter() - self._began[0], time.thread_time() - self._began[1]
        self.wall = max(self.wall, wall)
        if cpu > self.cpu:
            self.cpu, self.slowest = cpu, f"{task.name.rpartition('.')[2]} {' < '.join(_places(task.coro))}"


def _places(coroutine: Any) -> list[str]:
    """Where it is now, the innermost three."""
    found = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        found.append(f"{Path(frame.f_code.co_filename).stem}:{frame.f_lineno}")
        coroutine = coroutine.cr_await
    return found[::-1][:3]


@frozen
class Outcome:
    """What became of one call."""

    server: str
    key: str
    said: str
    """`result`, a delivery, `taken back`, or `no call` if it was refused before."""
    words: str
    most: int
    """Executions that are right."""
    took: float
    bound: float
    """Seconds in which it had to have one."""


@frozen
class Report:
    """All that was seen of one assault."""

    host: Mapping[str, Any]
    neighbours: Mapping[str, tuple[Waits, Waits]]
    """Calls of each client of the gateway, quiet and beside the attack."""
    lost: Sequence[str]
    """Calls of theirs without the right answer."""
    outcomes: Sequence[Outcome]
    ledger: Counter[str]
    memory: int
    files: int
    """The most at any time."""
    hostile: int
    """How many servers are."""
    clients: bool
    """Whether there are hostile clients too."""
    unrest: float
    """Seconds by which the machine itself is late, p99: a task of no importance that sleeps."""
    broken: Sequence[str] = field(default=())
    """What ended the run."""

    def findings(self) -> Iterator[str]:
        """What is not as promised: the figure, and how far off."""
        yield from (f"outcome: {problem}" for problem in self.broken)
        if self.broken:
            return
        yield from self._neighbours()
        cpu, _, whose = self.host["turn"]
        if cpu > TURN:
            yield f"turn: {cpu * 1e3:.0f} ms of CPU in one turn of the loop, {whose}"
        if self.memory > self.memory_bound:
            yield f"memory: {self.memory >> 20} MiB, over {self.memory_bound >> 20}"
        if self.files > FILES:
            yield f"files: {self.files} open at once"
        for problem in self.host["sick"]:
            yield f"{'files' if problem.startswith('open files') else 'outcome'}: {problem}"
        for wrong in (self._untrue, self._late):
            for outcome in self.outcomes:
                yield from (f"outcome: {problem}, {outcome}" for problem in wrong(outcome))

    @property
    def memory_bound(self) -> int:
        """Bytes."""
        alone = MEMORY + MEMORY_MORE * (self.hostile - 1)
        return max(alone, MEMORY_WITH_CLIENTS) if self.clients else alone

    @property
    def _waits(self) -> Mapping[str, tuple[Waits, Waits]]:
        return {"the library": self.host["waits"], **self.neighbours}

    def _neighbours(self) -> Iterator[str]:
        for name, (quiet, beside) in self._waits.items():
            if beside.p99 - quiet.p99 > WAIT + quiet.p99 + 4 * self.unrest:  # a busy machine shows in both
                told = f"p99 of {name} {beside.p99 * 1e3:.0f} ms, quiet {quiet.p99 * 1e3:.0f} ms"
                longest = (
                    f"of {beside.count} calls the longest {beside.longest * 1e3:.0f} ms, begun at {beside.at:.2f} s"
                )
                yield f"neighbour: {told}; {longest}"
        for words in (*self.host["lost"], *self.lost):
            yield f"neighbour: a call of a quiet server came to {words}"

    def _untrue(self, outcome: Outcome) -> Iterator[str]:
        executed = self.ledger[outcome.key]
        if executed > outcome.most:
            yield f"executed {executed} times"
        if outcome.said in ("not_sent", "no call") and executed:
            yield f"not sent, and executed {executed} times"
        if outcome.said == "none":
            yield "no answer"

    def _late(self, outcome: Outcome) -> Iterator[str]:
        if outcome.took > outcome.bound + LATE + 4 * self.unrest:
            yield f"late by {outcome.took - outcome.bound:.2f} s"

    def __str__(self) -> str:
        if self.broken:
            return "; ".join(self.broken)
        cpu, wall, _ = self.host["turn"]
        over = max(beside.p99 - quiet.p99 for quiet, beside in self._waits.values())
        kinds = Counter(outcome.said for outcome in self.outcomes).most_common()
        calls = f"{len(self.outcomes)} calls ({', '.join(f'{count} {kind}' for kind, count in kinds)})"
        return (
            f"p99 {self.host['waits'][1].p99 * 1e3:.1f} ms ({over * 1e3:+.1f} at most), turn {cpu * 1e3:.0f} ms CPU "
            f"{wall * 1e3:.0f} wall, {self.memory >> 20} MiB, {self.files} files, {calls}, "
            f"unrest {self.unrest * 1e3:.1f} ms"
        )
