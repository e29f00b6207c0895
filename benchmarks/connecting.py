"""(d) Connecting 36 servers written with the SDK: when the first and the last one is ready, and how many never are."""

import argparse
import random
import statistics
from collections.abc import Iterator
from typing import Any

from environments import python_of
from harness import BASE, HERE, OURS, Contender, Table, Worker, command, verdict, wanted

ALL_AT_ONCE = 1000
CONNECTING = (
    Contender(BASE, "sdk", "connect_sdk.py", (str(ALL_AT_ONCE),)),
    Contender("SDK, asyncio, 3 at a time", "sdk", "connect_sdk.py", ("3",)),
    Contender(OURS, "here", "connect_nursery.py"),
    Contender("FastMCP ClientGroup", "fastmcp", "connect_fastmcp.py", ("group",)),
    Contender("FastMCP multi-server client", "fastmcp", "connect_fastmcp.py", ("multi",)),
)
SERVER = [str(python_of("sdk")), str(HERE / "peers" / "sdk_server.py")]
Run = dict[str, Any]


def connect(contender: Contender, servers: int) -> Run:
    worker = Worker(contender, {"commands": {f"s{index}": SERVER for index in range(servers)}})
    run = worker.hear()
    worker.close()
    return run


def runs(options: argparse.Namespace, contenders: list[Contender], servers: int) -> dict[str, list[Run]]:
    made: dict[str, list[Run]] = {one.name: [] for one in contenders}
    for _ in range(options.rounds):
        for contender in random.sample(contenders, len(contenders)):
            made[contender.name].append(connect(contender, servers))
    return made


def summary(made: list[Run]) -> dict[str, Any]:
    def middle(choose: Any) -> float | None:
        values = [choose(run["ready"]) for run in made if run["ready"]]
        return statistics.median(values) if values else None

    counts = {key: [run.get(key, 0) for run in made] for key in ("failed", "old_era", "restarted")}
    return {"first": middle(min), "last": middle(max), **counts}


def cells(figures: dict[str, Any]) -> list[str]:
    times = ["never" if figures[key] is None else f"{figures[key]:.1f}" for key in ("first", "last")]
    counts = ("failed", "old_era", "restarted")
    return [*times, *(", ".join(map(str, figures[key])) for key in counts)]


def subject(options: argparse.Namespace) -> Iterator[Table]:
    contenders = [one for one in CONNECTING if wanted(one, options)]
    header = ["", "first ready (s)", "last ready (s)", "never connected", "fell back to the old era", "restarted"]
    sizes = (1, 8) if options.quick else (1, 36)
    by_size = {}
    for servers in sizes:
        made = runs(options, contenders, servers)
        by_size[servers] = figures = {name: summary(each) for name, each in made.items()}
        rows = [[name, *cells(one)] for name, one in figures.items()]
        notes = _verdicts(by_size[1], figures) if servers > 1 else []
        title = f"Connecting to {servers} SDK server{'s' if servers > 1 else ''}: medians, and counts of each run"
        yield Table(title, header, rows, figures, notes)


def _verdicts(alone: dict[str, Any], together: dict[str, Any]) -> list[str]:
    if OURS not in together or together[OURS]["first"] is None:
        return []
    ours = together[OURS]
    slow = sum(map(sum, (ours["failed"], ours["old_era"], ours["restarted"])))
    notes = [
        verdict(ours["first"] / alone[OURS]["first"], 2, "first ready against one server alone"),
        f"Target: no probe timeout. Here {slow} servers failed, fell back or were restarted, in all runs together.",
    ]
    if BASE in together and together[BASE]["last"]:
        notes.append(verdict(ours["last"] / together[BASE]["last"], 1.05, f"last ready against {BASE}, all at once"))
    return notes


if __name__ == "__main__":
    command(subject, rounds=2)
