"""Latency under load: calls to 30 stdio servers that are due by a clock, from 100 bytes to 1 MB.

A client that waits for an answer before it asks again hides how long others would have waited. So here the calls are
due at random moments, at the same ones for everybody, and the latency of each counts from its moment (an open loop). A
size ten times as large is a third as frequent. How many calls a second each contender can do at all is found first,
with 64 always in flight; the loads are shares of what the SDK can do on asyncio.
"""

import argparse
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import plot
from harness import BASE, CONTENDERS, OURS, Table, Worker, WorkerFailed, command, stdio, verdict, wanted, workers

SERVERS = 30
SIZES = {10**power: 3.0 ** (2 - power) for power in range(2, 7)}
"""Bytes of text in a result, and how frequent that is."""
WIDTH = 64
SHARES = (0.1, 0.25, 0.5, 0.75, 0.95)
"""The loads, as shares of what the base can do."""
SECONDS = 4.0
"""A round is about this long."""
PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
TARGETS = {"p50": 1.5, "p99": 20, "p99.9": 40}
"""Milliseconds at half load."""
PICTURE = Path(__file__).parent / "open_loop.svg"
Latencies = dict[float, list[float]]
"""Seconds, by load in calls a second."""


def job() -> dict[str, Any]:
    """So many calls that their sizes are spread as they should be; each is due as often as any other."""
    chance = random.Random(0)
    calls = [
        (f"s{chance.randrange(SERVERS)}", "big", {"size": size})
        for size in chance.choices(list(SIZES), list(SIZES.values()), k=1_000)
    ]
    return {**stdio(SERVERS), "plan": calls}


def subject(options: argparse.Namespace) -> Iterator[Table]:
    contenders = [one for one in CONTENDERS if wanted(one, options) and not one.name.startswith("floor")]
    with workers(job(), contenders) as started:
        capacities = _capacities(started, options.rounds)
        rate = capacities.get(BASE) or capacities[OURS]
        shares = SHARES[1:3] if options.quick else SHARES
        found = _latencies(started, capacities, [share * rate for share in shares], options.rounds)
    figures = {
        name: {
            "capacity": capacities[name],
            "loads": {f"{load:.0f}": _percentiles(each) for load, each in loads.items()},
        }
        for name, loads in found.items()
        if name in capacities
    }
    PICTURE.write_text(plot.open_loop(figures))
    yield _table(figures, 0.5 * rate)


def _capacities(started: Sequence[Worker], rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for seed in range(rounds):
        for worker, answer in _asked(started, f"capacity {WIDTH} {SECONDS / 2} {seed}"):
            found.setdefault(worker.contender.name, []).append(answer["capacity"])
    return {name: statistics.median(each) for name, each in found.items()}


def _latencies(
    started: Sequence[Worker], capacities: Mapping[str, float], loads: Sequence[float], rounds: int
) -> dict[str, Latencies]:
    """Of each contender under the loads that it can bear: under others its calls would only pile up."""
    found: dict[str, Latencies] = {}
    for seed in range(rounds):
        for load in random.sample(loads, len(loads)):
            able = [worker for worker in started if capacities[worker.contender.name] > load]
            for worker, answer in _asked(able, f"load {load} {SECONDS} {seed}"):
                found.setdefault(worker.contender.name, {}).setdefault(load, []).extend(answer["latencies"])
    return {name: {load: sorted(each[load]) for load in loads if load in each} for name, each in found.items()}


def _asked(started: Sequence[Worker], line: str) -> Iterator[tuple[Worker, dict[str, Any]]]:
    """The answers of all, in a random order."""
    for worker in random.sample(started, len(started)):
        try:
            yield worker, worker.ask(line)
        except WorkerFailed as reason:
            raise SystemExit(str(reason)) from None


def _percentiles(latencies: Sequence[float]) -> dict[str, float]:
    return {
        name: latencies[min(len(latencies) - 1, math.floor(part * len(latencies)))]
        for name, part in PERCENTILES.items()
    }


def _table(figures: Mapping[str, Any], half: float) -> Table:
    """Milliseconds at half load, and calls a second."""
    column = f"{half:.0f}"
    rows = [[name, *_milliseconds(one["loads"].get(column)), f"{one['capacity']:.0f}"] for name, one in figures.items()]
    notes = []
    if OURS in figures:
        ours = figures[OURS]["loads"][column]
        notes = [verdict(ours[name] * 1e3, target, name, unit=" ms") for name, target in TARGETS.items()]
        notes.append(verdict(figures[OURS]["capacity"], 6_000, "capacity", unit=" calls/s", at_least=True))
    title = (
        f"{SERVERS} stdio servers, results of 100 B to 1 MB, {half:.0f} calls a second (half of what the SDK can do)"
    )
    header = ["", *(f"{name} (ms)" for name in PERCENTILES), f"capacity, {WIDTH} in flight (calls/s)"]
    return Table(title, header, rows, dict(figures), notes)


def _milliseconds(found: Mapping[str, float] | None) -> list[str]:
    return ["" if found is None else f"{found[name] * 1e3:.1f}" for name in PERCENTILES]


if __name__ == "__main__":
    command(subject, rounds=5)
