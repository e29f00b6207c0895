"""(b) One call to each of N servers at once."""

import argparse
from collections.abc import Iterator
from typing import Any

from harness import (
    BASE,
    CONTENDERS,
    OURS,
    Contender,
    Table,
    command,
    in_process,
    measure,
    only,
    ratio_table,
    stdio,
    verdict,
)

MULTI = "FastMCP multi-server client"
STDIO = (10, 30, 100)
IN_PROCESS = (10, 50, 100, 1000)
GATHER, TASKS = 0.25, 0.33
"""The most of the SDK's time, to 30 and 100 servers."""
WITH_TASKS = Contender(f"{OURS}, a task a call", "here", "nursery.py", ("tasks",))


def subject(options: argparse.Namespace) -> Iterator[Table]:
    for servers in STDIO[: 2 if options.quick else None]:
        figures = measure(stdio(servers), options, [*CONTENDERS, WITH_TASKS])
        table = ratio_table(f"Fan-out to {servers} stdio servers, per call", figures)
        for name, target in ((OURS, GATHER), (WITH_TASKS.name, TASKS)):
            if servers > 10 and {name, BASE} <= figures.keys():
                ratio = figures[name]["wall_p25"] / figures[BASE]["wall_p25"]
                table.notes.append(verdict(ratio, target, f"wall p25 of {name} against {BASE}"))
        yield table
    yield from _in_process(options)


def _in_process(options: argparse.Namespace) -> Iterator[Table]:
    """FastMCP's clients take no part at 1000: there one burst takes minutes."""
    by_size: dict[int, Any] = {}
    for servers in IN_PROCESS[: 2 if options.quick else None]:
        everybody = [one for one in CONTENDERS if one.in_process]
        takers = everybody if servers < 1000 else only(BASE, "SDK, Trio", OURS)
        by_size[servers] = figures = measure(in_process(servers), options, takers)
        title = f"Fan-out to {servers} in-process servers, per call"
        table = ratio_table(title, figures, target=0.9 if servers == 50 else None)
        if servers == 50 and MULTI in figures and OURS in figures:
            ratio = figures[OURS]["wall_p25"] / figures[MULTI]["wall_p25"]
            table.notes.append(verdict(ratio, 0.12, f"wall p25 against {MULTI}"))
        if servers == 1000 and OURS in figures:
            table.notes.append(_flat(by_size))
        yield table


def _flat(by_size: dict[int, Any]) -> str:
    growth = by_size[1000][OURS]["wall_p25"] / by_size[10][OURS]["wall_p25"]
    return verdict(growth, 1.3, "per call, 1000 servers against 10")


if __name__ == "__main__":
    command(subject, rounds=30)
