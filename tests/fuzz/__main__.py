"""Fuzzes every target in turn for some time, with new examples each time. From the project's folder:

    python -m tests.fuzz --minutes 60               all targets
    python -m tests.fuzz --target ws --seed 7       one of them, from this seed on

What fails is told with the smallest example that was found, and the run goes on with the next target.
"""

import argparse
import logging
import random
import sys
import time
import traceback

import psutil

from .targets import TARGETS, fuzz

ROUND = 40
"""Examples of a target before it is the next one's turn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--seed", type=int, default=None, help="of the first round; the next has the next one")
    asked = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())  # servers that say anything are no news
    seed = random.randrange(2**32) if asked.seed is None else asked.seed
    until, rounds, found = time.monotonic() + 60 * asked.minutes, 0, 0
    while time.monotonic() < until:
        for name in asked.target or TARGETS:
            try:
                fuzz(TARGETS[name], ROUND, seed=seed + rounds)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                found += 1
                print(f"\n{name}, seed {seed + rounds}:", flush=True)
                traceback.print_exception(error)
            if time.monotonic() > until:
                break
        rounds += 1
        memory = psutil.Process().memory_info().rss >> 20
        print(f"{rounds} rounds of {ROUND} examples, {found} findings, {memory} MiB", flush=True)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
