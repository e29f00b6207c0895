"""(e) One result of 32 MB: CPU of the client, and our longest turn."""

import argparse
from collections.abc import Iterator

import hostile_neighbour
from harness import CONTENDERS, ECHO, OURS, Contender, Table, command, measure, ratio_table, verdict

ALONE = Contender("orjson alone", "here", "orjson_alone.py", in_process=False)


def subject(options: argparse.Namespace) -> Iterator[Table]:
    size = (4 if options.quick else 32) << 20
    job = {"commands": {"s0": ECHO}, "plan": [("s0", "big", {"size": size})]}
    figures = measure(job, options, [ALONE, *CONTENDERS])
    title = f"One result of {size >> 20} MB, stdio"
    table = ratio_table(title, figures, base=ALONE.name, unit="ms")
    if OURS in figures and ALONE.name in figures:
        ratio = figures[OURS]["cpu_p25"] / figures[ALONE.name]["cpu_p25"]
        table.notes.append(verdict(ratio, 2.5, "CPU p25 against orjson alone on the same bytes"))
        turn = hostile_neighbour.run("letters", size >> 10)["turn_cpu"]
        table.notes.append(verdict(turn * 1e3, 20, "CPU of the longest turn of the loop", unit=" ms"))
    yield table


if __name__ == "__main__":
    command(subject, rounds=4)
