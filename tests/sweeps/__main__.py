"""The whole sweep: every kind of wire, every fault, every byte. `python -m tests.sweeps`, from the project's folder.

python -m tests.sweeps                      all of it, with a process for each core
python -m tests.sweeps --stride 50          every fiftieth place, as CI does
python -m tests.sweeps --kind http-json --fault closed --stride 1 --verbose
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import trio

from .steps import FAULTS, MODES, sweep_steps
from .sweep import KINDS, rows, sweep

IN_PROCESS = "in-process"
SCHEDULES = 3
"""Orders in which Trio may run what is ready."""


def one(kind: str, place: int, stride: int, verbose: bool) -> tuple[str, int, list[str]]:
    """One fault on one kind of wire, in a process of its own."""
    fault = rows(kind)[place]

    logging.disable()  # servers that fail as told are no news
    problems: list[str] = []

    def tell(case: object, found: Sequence[str]) -> None:
        problems.extend(f"{case}: {problem}" for problem in found)
        if verbose:
            print(case, *found, sep="\n    ", flush=True)

    count = 0
    try:
        count = trio.run(sweep, kind, [fault], stride, tell)
    except Exception as error:  # the others go on
        problems.append(f"broken off: {error!r}")
    return f"{kind} / {fault.place.value}: {fault.name}", count, problems


def one_in_process(fault: str, place: int, stride: int) -> tuple[str, int, list[str]]:
    """One fault of a server in this process, for one way to call it."""
    logging.disable()
    count, problems = 0, list[str]()
    for schedule in range(SCHEDULES):
        steps, found = sweep_steps(fault, MODES[place], stride, schedule)
        count += steps
        problems += found
    return f"{IN_PROCESS} / {fault} / {MODES[place].name}", count, problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kind", action="append", choices=[*KINDS, IN_PROCESS], help="only this kind of wire; may repeat"
    )
    parser.add_argument("--fault", help="only faults whose name holds this")
    parser.add_argument("--stride", type=int, default=1, help="every so many bytes (default: 1)")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--verbose", action="store_true", help="tell each case")
    asked = parser.parse_args()
    wanted, word = asked.kind or [*KINDS, IN_PROCESS], asked.fault or ""
    chosen = [
        (kind, place)
        for kind in wanted
        if kind in KINDS
        for place, fault in enumerate(rows(kind))
        if word in f"{fault.place.value}: {fault.name}"
    ]
    in_process = [fault for fault in FAULTS if IN_PROCESS in wanted and word in fault]
    total, bad, began = 0, 0, time.monotonic()
    with ProcessPoolExecutor(asked.workers) as pool:
        runs = [pool.submit(one, kind, place, asked.stride, asked.verbose) for kind, place in chosen]
        runs += [
            pool.submit(one_in_process, fault, place, asked.stride)
            for fault in in_process
            for place in range(len(MODES))
        ]
        for run in as_completed(runs):
            name, count, problems = run.result()
            total += count
            bad += len(problems)
            print(f"{name}: {count} cases, {len(problems)} problems", flush=True)
            for problem in problems[:5]:
                print(f"    {problem}", flush=True)
    print(f"{total} cases in {time.monotonic() - began:.0f} s: {bad} problems")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
