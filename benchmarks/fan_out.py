"""(b) One call to each of N servers at once."""

import argparse
from collections.abc import Iterator
from typing import Any

from harness import BASE, CONTENDERS, OURS, Table, command, in_process, measure, only, ratio_table, stdio, verdict

MULTI = "FastMCP multi-server client"
STDIO = (10, 30, 100)
IN_PROCESS = (10, 50, 100, 1000)
STDIO_TARGETS = {30: 0.35, 100: 0.35}


def subject(options: argparse.Namespace) -> Iterator[Table]:
    for servers in STDIO[: 2 if options.quick else None]:
        figures = measure(stdio(servers), options, CONTENDERS)
        title = f"Fan-out to {servers} stdio servers, per call"
        yield ratio_table(title, figures, target=STDIO_TARGETS.get(servers))
    yield from _in_process(options)


def _in_process(options: argparse.Namespace) -> Iterator[Table]:
    """FastMCP's clients take no part at 1000: there one burst takes minutes."""
    by_size: dict[int, Any] = {}
    for servers in IN_PROCESS[: 2 if options.quick else None]:
        everybody = [one for one in CONTENDERS if one.in_process]
        takers = everybody if servers < 1000 else only(BASE, "SDK, Trio", OURS)
        by_size[servers] = figures = measure(in_process(servers), options, takers)
        table = ratio_table(f"Fan-out to {servers} in-process servers, per call", figures)
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
