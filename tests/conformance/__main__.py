"""Runs the official conformance suite, and prints a table of what was passed. From the project's folder:

python -m tests.conformance                         every scenario, one after another
python -m tests.conformance --parallel 50           all at once
python -m tests.conformance --scenario tools_call   one, with all that the suite and the client say
python -m tests.conformance --sdk                   the same with a client of the bare SDK
"""

import argparse
import sys

import trio

from .scenarios import ALL
from .suite import HEAD, Result, run, suite


async def main(asked: argparse.Namespace) -> int:
    chosen = [one for one in ALL if asked.scenario in (None, one[1])]
    limiter = trio.CapacityLimiter(asked.parallel)
    results: dict[tuple[str, str], Result] = {}

    async def keep(revision: str, scenario: str) -> None:
        async with limiter:
            results[revision, scenario] = await run(revision, scenario, "sdk" if asked.sdk else "supervisor")

    await trio.to_thread.run_sync(suite)
    async with trio.open_nursery() as nursery:
        for one in chosen:
            nursery.start_soon(keep, *one)
    print(HEAD)
    for one in chosen:
        print(results[one].row)
    if asked.scenario:
        print(*(f"\n{result.output}" for result in results.values()))
    passed = sum(result.passed for result in results.values())
    print(f"\n{passed} of {len(chosen)} passed")
    return int(passed < len(chosen))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", choices=sorted({name for _, name in ALL}), metavar="NAME", help="only this one")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="how many at once")
    parser.add_argument("--sdk", action="store_true", help="a client of the bare SDK, for comparison")
    sys.exit(trio.run(main, parser.parse_args()))
