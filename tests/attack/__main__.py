"""Attacks a supervisor and its gateway from every side, and watches five figures. From the project's folder:

    python -m tests.attack --minutes 60             assaults of one seed after another
    python -m tests.attack --seed 7 --count 1       the assault of one seed
    python -m tests.attack --replay FILE            an assault as it was printed, such as those in tests/attack/cases

The figures: a neighbour's p99, the longest turn of the loop, memory, open files, and whether every call has one true
outcome. What is not as promised in three runs of an assault is printed with its moves, which are a file for --replay.
"""

import argparse
import gc
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mcp_nursery.supervisor.preload import ALL_MODULES

from .assault import judge
from .grammar import Assault, drawn, parsed

PLANTS = ("late", "turn", "memory", "files", "twice")
"""Faults to be planted, with which it is shown that each figure can fail."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--count", type=int, default=None, help="of assaults")
    parser.add_argument("--seed", type=int, default=None, help="of the first assault; the next has the next one")
    parser.add_argument("--replay", type=Path, nargs="+", default=(), metavar="FILE")
    parser.add_argument("--tries", type=int, default=3, help="runs in each of which something is wrong: a finding")
    parser.add_argument("--plant", action="append", choices=PLANTS, default=[], help="a fault, to see it found")
    asked = parser.parse_args()
    ALL_MODULES.load()
    gc.collect()
    gc.freeze()  # as the docs advise a host; what is forked would have to copy each page that a collection looks at
    found = count = 0
    for name, assault in _assaults(asked):
        began = time.monotonic()
        *before, (report, findings) = judge(assault, asked.tries, frozenset(asked.plant))
        count, found = count + 1, found + bool(findings)
        print(f"{name}: {report}, {time.monotonic() - began:.1f} s", flush=True)
        for _, others in () if findings else before:
            print("\n".join(f"  not again: {each}"[:400] for each in others[:3]), flush=True)
        if findings:
            print("\n".join([*(f"  {each}" for each in findings[:20]), "", str(assault)]), flush=True)
    print(f"{count} assaults, {found} with findings")
    sys.exit(bool(found))


def _assaults(asked: argparse.Namespace) -> Iterator[tuple[str, Assault]]:
    if asked.replay:
        yield from ((file.name, parsed(file.read_text())) for file in asked.replay)
        return
    seed = random.randrange(1 << 32) if asked.seed is None else asked.seed
    until, first = time.monotonic() + 60 * asked.minutes, seed
    while time.monotonic() < until and (asked.count is None or seed < first + asked.count):
        yield f"seed {seed}", drawn(seed)
        seed += 1


if __name__ == "__main__":
    main()
