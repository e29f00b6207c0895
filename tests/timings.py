"""Seconds that each test takes: a run leaves them in `build/timings/`, and `python -m tests.timings` prints them.

A run of pytest writes one file, named after its lane: for each test its wall time, and the processor time of the
process that ran it and of all processes that this process started and waited for. The difference is waiting: for a
server to start, for a time limit, or for a place on a busy machine. A second run of a lane replaces the file.
"""

import argparse
import json
import os
import time
from collections import defaultdict
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "build" / "timings"


def cpu_seconds():
    """Processor time of this process so far, with that of its children that have ended and were waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Timings:
    """The plugin of pytest that notes what each test takes, and writes it when the run ends."""

    def __init__(self, lane, writes):
        self._lane = lane
        self._writes = writes
        """Whether this process writes the file: with pytest-xdist, the one that hears of the reports of all."""
        self._wall = defaultdict(float)
        self._cpu = {}
        self._cpu_before = 0.0
        self._began = time.monotonic()

    def pytest_runtest_logstart(self, nodeid, location):
        self._cpu_before = cpu_seconds()

    @pytest.hookimpl(tryfirst=True)  # before the report is made, which takes the properties along
    def pytest_runtest_makereport(self, item, call):
        if call.when == "teardown":
            item.user_properties.append(("cpu", round(cpu_seconds() - self._cpu_before, 3)))

    def pytest_runtest_logreport(self, report):
        self._wall[report.nodeid] += report.duration
        if report.when == "teardown":
            self._cpu[report.nodeid] = dict(report.user_properties).get("cpu", 0.0)

    def pytest_sessionfinish(self, session):
        if not self._writes or not self._wall:
            return
        FOLDER.mkdir(parents=True, exist_ok=True)
        tests = {name: [round(wall, 3), self._cpu.get(name, 0.0)] for name, wall in sorted(self._wall.items())}
        found = {"lane": self._lane, "seconds": round(time.monotonic() - self._began, 1), "tests": tests}
        (FOLDER / f"{self._lane}.json").write_text(json.dumps(found, indent=0), "utf-8")


def rows(found, most):
    """The rows of a lane's table: file, number of tests, wall and processor seconds."""
    files = defaultdict(lambda: [0, 0.0, 0.0])
    for name, (wall, cpu) in found["tests"].items():
        of_file = files[name.partition("::")[0]]
        of_file[0] += 1
        of_file[1] += wall
        of_file[2] += cpu
    for file, (count, wall, cpu) in sorted(files.items(), key=lambda each: -each[1][1])[:most]:
        yield file, count, wall, cpu
    yield "all", *(sum(each[place] for each in files.values()) for place in range(3))


def main(most):
    """Print a table of each lane whose timings are there, the slowest files first."""
    for path in sorted(FOLDER.glob("*.json")):
        found = json.loads(path.read_text("utf-8"))
        print(f"\n{path.stem}: {found['seconds']:.0f} s")
        print(f"{'lane':14} {'seconds':>8} {'cpu':>8} {'waiting':>8} {'tests':>6}  file")
        for file, count, wall, cpu in rows(found, most):
            waiting = max(0, 1 - cpu / wall) if wall else 0
            print(f"{found['lane']:14} {wall:8.1f} {cpu:8.1f} {waiting:8.0%} {count:6}  {file}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.timings", description=main.__doc__)
    parser.add_argument("--most", type=int, default=25, help="files of each lane (default: 25)")
    main(parser.parse_args().most)
