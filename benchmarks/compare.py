"""(l) Two revisions of mcp-nursery, interleaved with the SDK and with each other: `compare.py REV_A REV_B`.

A revision is anything that git knows, or `.` for the package that is installed here. Each is installed from its commit
into an environment of its own, with dependencies of the versions that are installed here.
"""

import argparse
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from environments import REVISION, python_of
from gateway import Gateway, free_port, opened, running, serving
from harness import BASE, ECHO, OURS, Contender, Table, command, measure, only, p25, ratio_table, stdio, verdict
from memory import rows, slope

HERE = "."
MOST = 1.0
"""Of the time or memory of REV_A that REV_B may take: small steps back have added up to a third before."""


def contender(revision: str) -> Contender:
    """The revision as a contender; its name has the short hash."""
    (ours,) = only(OURS)
    if revision == HERE:
        return replace(ours, name="the package that is installed here")
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--verify", f"{revision}^{{commit}}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode:
        sys.exit(f"compare.py: git knows no commit {revision!r}")
    commit = found.stdout.strip()
    return replace(ours, name=f"mcp-nursery at {commit[:7]}", environment=f"{REVISION}{commit}")


def calls(options: argparse.Namespace, before: Contender, after: Contender) -> Iterator[Table]:
    kinds: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "One call, stdio, with a timeout of 30 s": (stdio(1, timeout=30), ()),
        "`gather` of one call to each of 30 stdio servers, per call": (stdio(30), ()),
        "A task for each of these calls, per call": (stdio(30), ("tasks",)),
        "128 calls at once on one stdio server, per call": (stdio(1, width=128), ()),
    }
    for title, (job, arguments) in kinds.items():
        both = [replace(each, arguments=arguments) for each in (before, after)]
        figures = measure(job, options, [*only(BASE), *both])
        table = ratio_table(title, figures)
        if before.name in figures and after.name in figures:
            ratio = figures[after.name]["wall_p25"] / figures[before.name]["wall_p25"]
            table.notes.append(verdict(ratio, MOST, f"wall p25 of {after.name} against {before.name}"))
        yield table


def memory(options: argparse.Namespace, both: Sequence[Contender]) -> Table:
    found: dict[str, list[float]] = {one.name: [] for one in both}
    for _ in range(max(1, options.rounds // 10)):
        for one in random.sample(both, len(both)):
            found[one.name].append(slope(one))
    before, after = (statistics.median(each) for each in found.values())
    note = verdict(after / before, MOST, f"median of {both[1].name} against {both[0].name}")
    header = ["", "KB a server, median", "least", "ratio"]
    return Table("Memory of the host for an idle stdio server", header, rows(found), dict(found), [note])


def through_gateways(options: argparse.Namespace, both: Sequence[Contender]) -> Table:
    """Both serve the same server on standard streams over HTTP, at one time."""
    with ExitStack() as stack:
        started: list[Gateway] = []
        for one in both:
            port, program = free_port(), python_of(one.environment).with_name("mcp-nursery")
            process = stack.enter_context(running(serving(str(program), port, "--", *ECHO)))
            started.append(opened(one.name, port, process))
        for _ in range(options.rounds):
            for gateway in random.sample(started, len(started)):
                gateway.round(20)
        found = {one.name: {"alone": p25(one.alone), "together": p25(one.together)} for one in started}
    cells = [[name, f"{each['alone'] * 1e6:.0f}", f"{each['together'] * 1e6:.0f}"] for name, each in found.items()]
    before, after = (found[one.name] for one in both)
    notes = [
        verdict(after[key] / before[key], MOST, f"{what}, p25 of {both[1].name} against {both[0].name}")
        for key, what in (("alone", "one call"), ("together", "each of 100 clients"))
    ]
    header = ["", "one call (us)", "100 clients at once, each (us)"]
    return Table("A call through `serve --http`", header, cells, found, notes)


def subject(options: argparse.Namespace) -> Iterator[Table]:
    before, after = contender(options.before), contender(options.after)
    if before.name == after.name:
        sys.exit("compare.py: both revisions are one commit")
    yield from calls(options, before, after)
    yield through_gateways(options, (before, after))
    yield memory(options, (before, after))


if __name__ == "__main__":
    command(subject, rounds=30, arguments=["before", "after"])
