"""Which one-line faults do the tests nearest to them not notice? `python -m tests.mutants`, from the project's folder.

python -m tests.mutants                         all of them, one for each core at a time
python -m tests.mutants --only supervisor/calls those whose file, line or other line holds this pattern
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from .mutant import Mutant
from .mutants import MUTANTS
from .tree import Tree, Verdict

SECONDS = 300
"""For tests without a mutant."""
TIMES = 4
"""With a mutant they may take so many times what they take without."""
AT_LEAST = 15
"""Seconds that they may take at any rate."""


class Trees:
    """Copies of the repository, one for each mutant that is tried at the same time."""

    def __init__(self, folder: Path, count: int) -> None:
        self._free: SimpleQueue[Tree] = SimpleQueue()
        for number in range(count):
            tree = Tree.copied_to(folder / str(number))
            assert tree.loads_its_own(), "the tests would run on the installed packages"
            self._free.put(tree)

    @contextmanager
    def one(self) -> Iterator[Tree]:
        """One that nobody else has."""
        tree = self._free.get()
        try:
            yield tree
        finally:
            self._free.put(tree)


def patience(trees: Trees, tests: tuple[str, ...]) -> tuple[tuple[str, ...], float | None]:
    """The seconds that these tests have with a mutant; None if they fail without one."""
    with trees.one() as tree:
        began = time.monotonic()
        passed = tree.run(tests, seconds=SECONDS) is Verdict.SURVIVED
        return tests, max(AT_LEAST, TIMES * (time.monotonic() - began)) if passed else None


def tried(trees: Trees, mutant: Mutant, seconds: float | None) -> tuple[Mutant, Verdict]:
    """The mutant, and what its tests have made of it in so many seconds."""
    if seconds is None:
        return mutant, Verdict.UNSOUND
    with trees.one() as tree:
        verdict = tree.verdict(mutant, seconds=seconds)
        if verdict is Verdict.STUCK:  # or the machine was busy meanwhile: a survivor would count as killed
            verdict = tree.verdict(mutant, seconds=TIMES * seconds)
        return mutant, verdict


def is_wrong(mutant: Mutant, verdict: Verdict) -> bool:
    """Whether the list says otherwise: what is called equivalent has to survive, and all others have to be killed."""
    return verdict is not Verdict.SURVIVED if mutant.equivalent else not verdict.is_killed


def try_all(chosen: Sequence[Mutant], folder: Path, parallel: int) -> list[str]:
    """Try these, and print each verdict as it comes; those that the list does not expect."""
    unexpected: list[str] = []
    with ThreadPoolExecutor(parallel) as pool:
        trees = Trees(folder, parallel)
        seconds = dict(pool.map(partial(patience, trees), sorted({mutant.tests for mutant in chosen})))
        runs = [pool.submit(tried, trees, mutant, seconds[mutant.tests]) for mutant in chosen]
        for number, run in enumerate(as_completed(runs), 1):
            mutant, verdict = run.result()
            line = f"{mutant}: {verdict.value}"
            print(f"{number}/{len(chosen)} {line}", flush=True)
            if is_wrong(mutant, verdict):
                unexpected.append(line)
    return unexpected


def main() -> None:
    """Try them and say who survives; ends with 1 if somebody does who must not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression")
    parser.add_argument("--parallel", type=int, default=os.cpu_count(), help="so many at a time (default: the cores)")
    asked = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if re.search(asked.only, str(mutant))]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        unexpected = try_all(chosen, Path(folder), asked.parallel)
    print(f"{len(chosen)} mutants in {time.monotonic() - began:.0f} s, {len(unexpected)} not as the list says")
    for line in unexpected:
        print(f"    {line}")
    sys.exit(bool(unexpected))


if __name__ == "__main__":
    main()
