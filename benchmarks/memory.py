"""(f) Memory of the host for one more idle stdio server: the slope of its resident size between 10 and 60 servers."""

import argparse
import random
import statistics
from collections.abc import Iterator, Sequence

from harness import BASE, CONTENDERS, OURS, Contender, Table, command, stdio, verdict, wanted, workers

FEW, MANY = 10, 60


def resident(contender: Contender, servers: int) -> int:
    """Bytes, with that many servers connected and called once."""
    with workers(stdio(servers), [contender]) as (worker,):
        return worker.ask("memory")["resident"]


def slope(contender: Contender) -> float:
    return (resident(contender, MANY) - resident(contender, FEW)) / (MANY - FEW) / 1024


def rows(found: dict[str, Sequence[float]]) -> list[list[str]]:
    base = statistics.median(found[BASE]) if BASE in found else statistics.median(next(iter(found.values())))
    return [
        [name, f"{statistics.median(each):.0f}", f"{min(each):.0f}", f"{statistics.median(each) / base:.2f}"]
        for name, each in found.items()
    ]


def subject(options: argparse.Namespace) -> Iterator[Table]:
    takers = [one for one in CONTENDERS if wanted(one, options) and not one.name.startswith("floor")]
    found: dict[str, list[float]] = {one.name: [] for one in takers}
    for _ in range(options.rounds):
        for contender in random.sample(takers, len(takers)):
            found[contender.name].append(slope(contender))
    notes = [verdict(statistics.median(found[OURS]), 48, "median", unit=" KB")] if OURS in found else []
    header = ["", "KB a server, median", "least", "ratio"]
    yield Table("Memory of the host for an idle stdio server", header, rows(found), dict(found), notes)


if __name__ == "__main__":
    command(subject, rounds=3)
