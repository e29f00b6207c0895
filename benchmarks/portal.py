"""A supervisor in a thread of its own, for asyncio and plain code, against one in Trio."""

import argparse
from collections.abc import Iterator, Mapping, Sequence

from harness import OURS, Contender, Table, command, measure, ratio_table, stdio, verdict

IN_TRIO = Contender(OURS, "here", "nursery.py")
ASYNCIO, PLAIN = "portal, asyncio", "portal, plain code"
PORTALS = (
    Contender(ASYNCIO, "here", "portal.py", ("asyncio",)),
    Contender(PLAIN, "here", "portal.py", ("plain",)),
    Contender("portal of anyio, asyncio", "here", "portal.py", ("anyio",)),
)
TASKS = (
    Contender(OURS, "here", "nursery.py", ("tasks",)),
    Contender(ASYNCIO, "here", "portal.py", ("asyncio", "tasks")),
    Contender("portal of anyio, asyncio", "here", "portal.py", ("anyio", "tasks")),
)
MORE, FAN_OUT, THROUGHPUT = 150, 1.3, 2.5
"""The most that a call may take more, in us, and the ratios of a fan-out to 30 and of 128 in flight."""


def subject(options: argparse.Namespace) -> Iterator[Table]:
    one = measure(stdio(1, timeout=30), options, (IN_TRIO, *PORTALS))
    table = ratio_table("One call, stdio, with a timeout of 30 s", one, base=OURS)
    for name in (ASYNCIO, PLAIN):
        more = (one[name]["wall_p25"] - one[OURS]["wall_p25"]) * 1e6
        table.notes.append(verdict(more, MORE, f"{name}: more than in Trio", unit=" us"))
    yield table
    yield from _at_once(
        "Fan-out to 30 stdio servers by `gather`, per call", stdio(30), FAN_OUT, options, (IN_TRIO, *PORTALS)
    )
    yield from _at_once(
        "128 tasks at once on one stdio server, per call", stdio(1, width=128), THROUGHPUT, options, TASKS
    )


def _at_once(
    title: str, job: Mapping[str, object], target: float, options: argparse.Namespace, contenders: Sequence[Contender]
) -> Iterator[Table]:
    figures = measure(dict(job), options, contenders)
    table = ratio_table(title, figures, base=OURS)
    for name in (ASYNCIO, PLAIN):
        if name in figures:
            table.notes.append(verdict(figures[name]["wall_p25"] / figures[OURS]["wall_p25"], target, name))
    yield table


if __name__ == "__main__":
    command(subject, rounds=40)
