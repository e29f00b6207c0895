"""(a) One call after another: what the way from the caller to the server and back costs."""

import argparse
from collections.abc import Iterator

from harness import CONTENDERS, Table, command, in_process, measure, ratio_table, stdio


def subject(options: argparse.Namespace) -> Iterator[Table]:
    figures = measure(stdio(1, timeout=30), options, CONTENDERS)
    yield ratio_table("One call, stdio, with a timeout of 30 s", figures, target=0.35)
    figures = measure(stdio(1, arguments=["plain"]), options, CONTENDERS)
    yield ratio_table("One call, stdio, no timeout, a tool without output schema", figures, target=0.42)
    figures = measure(in_process(1, timeout=30), options, [one for one in CONTENDERS if one.in_process])
    yield ratio_table("One call, in-process, with a timeout of 30 s", figures, target=1.1)


if __name__ == "__main__":
    command(subject, rounds=50)
