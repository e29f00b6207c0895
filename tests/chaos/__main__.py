"""Does to replicas behind haproxy what happens to replicas, while a hundred clients call. From the project's folder:

    python -m tests.chaos --minutes 60             an hour of moves
    python -m tests.chaos --minutes 1 --seed 7     those of one seed
    python -m tests.chaos --drain 2                each replica is drained and started again, twice
    python -m tests.chaos --kill 2                 each replica is killed and started again, twice

Replicas and servers are killed, frozen, drained and upgraded, and the database is stopped. Watched is that each request
has one answer or one clear error in time, that what must run once does, that no session is lost, and that nothing is
left. Two of five calls may become tasks of 0.5 to 3 s: clients of the newer era ask whatever replica there is about
them, and for others the gateway does. None is lost. Needs haproxy.
"""

import argparse
import random
import shutil
import sys
import time
from collections import Counter
from functools import partial
from itertools import chain

import trio

from .plan import GOOD, SERVERS, drawn, in_turn
from .run import run

PLANTS = ("twice", "process", "forget", "hasty")
"""Faults to be planted in the fleet, to see them found: a server that executes calls twice, a process that is left,
replicas that do not go on with sessions, and replicas that end at once."""

SHOWN = 20
"""Findings of one figure that are printed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--quiet", action="store_true", help="do not print each move")
    parser.add_argument("--plant", action="append", choices=PLANTS, default=[], help="a fault, to see it found")
    parser.add_argument("--drain", type=int, metavar="TIMES", help="instead: no server fails, replicas are replaced")
    parser.add_argument("--kill", type=int, metavar="TIMES", help="instead: no server fails, replicas are killed")
    asked = parser.parse_args()
    if shutil.which("haproxy") is None:
        sys.exit("haproxy is not installed: apt-get install haproxy")
    seed = random.randrange(1 << 32) if asked.seed is None else asked.seed
    began = time.monotonic()

    def say(words: str) -> None:
        if not asked.quiet:
            print(f"{time.monotonic() - began:7.1f} {words}", flush=True)

    moves, servers = drawn(seed), SERVERS
    if asked.drain or asked.kill:
        moves = chain(in_turn("drain replica", asked.drain or 0), in_turn("kill replica", asked.kill or 0))
        servers = GOOD
    started = partial(run, servers=servers, plants=frozenset(asked.plant))
    report = trio.run(started, moves, 60 * asked.minutes, say)
    findings = list(report.findings())
    print(f"seed {seed}: {report}")
    shown = Counter[str]()
    for finding in findings:
        figure = finding.partition(":")[0]
        shown[figure] += 1
        if shown[figure] <= SHOWN:
            print(f"  {finding}"[:600])
    print(f"{len(findings)} findings")
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
