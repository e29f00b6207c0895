"""Seconds that each test takes: a run leaves them in `build/timings/`, and `python -m tests.timings` prints them.

A run of pytest writes one file, named after its lane: for each test its wall time, and the processor time of the
process that ran it and of all processes that this process started and waited for. The difference is waiting: for a
server to start, for a time limit, or for a place on a busy machine. A second run of a lane replaces the file. Beside it
stands what failed, as soon as it has: pytest says so at the end, which a run of an hour may not reach.
"""

import argparse
import json
import os
import time
from collections import defaultdict
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("MCP_NURSERY_TIMINGS") or Path(__file__).resolve().parents[1] / "build" / "timings")
"""The folder of the files; a variable names another for runs that tests start."""


def cpu_seconds():
    """Processor time of this process so far, with that of its children that have ended and were waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Timings:
    """The plugin of pytest that notes what each test takes, as soon as it has ended: a killed run leaves that, too."""

    def __init__(self, lane, writes):
        self._lane = lane
        self._file = None
        self._writes = writes
        """Whether this process writes the file: with pytest-xdist, the one that hears of the reports of all."""
        self._wall = defaultdict(float)
        self._cpu_before = 0.0
        if writes:
            self._failed.unlink(missing_ok=True)

    @property
    def _failed(self):
        return FOLDER / f"{self._lane}.failed"

    def pytest_runtest_logstart(self, nodeid, location):
        self._cpu_before = cpu_seconds()

    @pytest.hookimpl(tryfirst=True)  # before the report is made, which takes the properties along
    def pytest_runtest_makereport(self, item, call):
        if call.when == "teardown":
            item.user_properties.append(("cpu", round(cpu_seconds() - self._cpu_before, 3)))

    def pytest_runtest_logreport(self, report):
        self._wall[report.nodeid] += report.duration
        if report.failed and self._writes:
            FOLDER.mkdir(parents=True, exist_ok=True)
            with self._failed.open("a", encoding="utf-8") as file:
                print(f"{report.nodeid} ({report.when})\n{report.longreprtext}\n", file=file)
        if report.when == "teardown" and self._writes:
            wall, cpu = round(self._wall.pop(report.nodeid), 3), dict(report.user_properties).get("cpu", 0.0)
            self._write([report.nodeid, wall, cpu])

    def _write(self, row):
        if self._file is None:
            FOLDER.mkdir(parents=True, exist_ok=True)
            self._file = (FOLDER / f"{self._lane}.jsonl").open("w", encoding="utf-8")
            self._began = time.monotonic()
        print(json.dumps([*row, round(time.monotonic() - self._began, 1)]), file=self._file, flush=True)

    def pytest_unconfigure(self):
        if self._file is not None:
            self._file.close()


def read(path):
    """What a run left: the name of each test, wall and processor seconds, and the seconds of the run at its end."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def rows(found, most):
    """The rows of a lane's table: file, number of tests, wall and processor seconds."""
    files = defaultdict(lambda: [0, 0.0, 0.0])
    for name, wall, cpu, _ in found:
        of_file = files[name.partition("::")[0]]
        of_file[0] += 1
        of_file[1] += wall
        of_file[2] += cpu
    for file, (count, wall, cpu) in sorted(files.items(), key=lambda each: -each[1][1])[:most]:
        yield file, count, wall, cpu
    yield "all", *(sum(each[place] for each in files.values()) for place in range(3))


def main(most):
    """Print a table of each lane whose timings are there, the slowest files first."""
    for path in sorted(FOLDER.glob("*.jsonl")):
        found = read(path)
        print(f"\n{path.stem}: {found[-1][-1]:.0f} s")
        print(f"{'lane':14} {'seconds':>8} {'cpu':>8} {'waiting':>8} {'tests':>6}  file")
        for file, count, wall, cpu in rows(found, most):
            waiting = max(0, 1 - cpu / wall) if wall else 0
            print(f"{path.stem:14} {wall:8.1f} {cpu:8.1f} {waiting:8.0%} {count:6}  {file}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.timings", description=main.__doc__)
    parser.add_argument("--most", type=int, default=25, help="files of each lane (default: 25)")
    main(parser.parse_args().most)
