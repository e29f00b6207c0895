"""(c) 128 calls in flight on one stdio server."""

import argparse
from collections.abc import Iterator

from harness import BASE, CONTENDERS, OURS, Table, command, measure, ratio_table, stdio, verdict


def subject(options: argparse.Namespace) -> Iterator[Table]:
    figures = measure(stdio(1, width=128), options, CONTENDERS)
    table = ratio_table("128 calls at once on one stdio server, per call", figures)
    if BASE in figures and OURS in figures:
        gain = figures[BASE]["wall_p25"] / figures[OURS]["wall_p25"]
        table.notes.append(verdict(gain, 10, f"calls a second against {BASE}", unit="x", at_least=True))
    yield table


if __name__ == "__main__":
    command(subject, rounds=40)
