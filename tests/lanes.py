"""Lanes of the tests: which tests run when, and which tests a lane may skip.

| lane | runs | holds | needs |
|---|---|---|---|
| `readme` | `pytest` | each behaviour at the lowest height that sees it, properties, one process each | `.[test]` |
| `push` | `.ci/run` | all real processes, official conformance, a client library a language, a framework | `.[dev]` |
| `night` | `.ci/nightly` | mutants, attack, chaos, sweeps, fuzz, all hosts and frameworks | `.[dev]`, root |

A test is in one lane. The longest path of `LATER` that leads to the test decides, and `readme` where there is none; a
marker `push` or `night`, or a fixture of `FIXTURES`, moves a test to a later lane. A test that needs
what its lane's environment lacks belongs to a later lane: a file of a later lane is not even imported, so that it may
import what it likes.

`pytest` alone runs the lane `readme`. `pytest PATH` runs whatever is at that path. `--lane` says otherwise.
"""

import re
from pathlib import Path

import pytest

README, PUSH, NIGHT = LANES = ("readme", "push", "night")
ALL = "all"
"""The lane of a run for which somebody named paths: it has what is there, and may skip what it wants."""

ROOT = Path(__file__).parent

LATER = {
    "attack": NIGHT,
    "chaos": NIGHT,
    "conformance": PUSH,
    "fuzz": NIGHT,
    "interop": NIGHT,
    "mutants": NIGHT,
    "real": PUSH,
    "release": PUSH,
    "sweeps": NIGHT,
    "test_dependencies.py": PUSH,
    "test_docs.py": PUSH,
    "test_kubernetes.py": PUSH,
    "test_lanes.py": PUSH,
    "test_releases.py": PUSH,
}
"""The lane of a folder, a file or a test function, by its path below `tests/`."""

FIXTURES = {"database_server": PUSH}
"""The lane of tests that use a fixture, by its name."""

_ROOT = ("only root can .*", "gives files away", "root writes everywhere")
_LINUX = (".* is Linux's", "only Linux has .*", "there is no /proc", ".* on Linux alone", "elsewhere a pipe .*")
SKIPS = {
    README: (*_ROOT, *_LINUX, "tasks begin in the next turn"),
    PUSH: (*_LINUX, "there is no docker client", "kubectl is not installed", "namespaces need .*", "unshare.*"),
    NIGHT: ("kubectl is not installed",),
}
"""Reasons for which tests of a lane may be skipped, as patterns of the whole reason."""


def lane_of_file(path):
    """The lane of a file's tests that have no marker, by its path."""
    try:
        parts = path.relative_to(ROOT).parts
    except ValueError:
        return README  # a test of the tests, in a folder of its own
    candidates = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((LATER[each] for each in candidates if each in LATER), README)


def lane_of(item):
    """The lane of a test: the latest of its file, its name, its markers and its fixtures."""
    file = lane_of_file(item.path)
    named = LATER.get(f"{item.path.relative_to(ROOT)}::{item.originalname}") if item.path.is_relative_to(ROOT) else None
    marked = [lane for lane in LANES if item.get_closest_marker(lane)]
    needed = [lane for fixture, lane in FIXTURES.items() if fixture in item.fixturenames]
    return max([file, named or file, *marked, *needed], key=LANES.index)


def lanes_of_run(config):
    """The lanes that this run has: all, unless it is said otherwise."""
    said = config.getoption("--lane")
    return LANES if said in (None, ALL) else tuple(said.split(","))


def name_of_run(config):
    """The name under which a run leaves its timings."""
    lanes = lanes_of_run(config)
    return ALL if lanes == LANES else "-".join(lanes)


class Lanes:
    """The plugin of pytest that runs the tests of some lanes, and fails a run that skips what it may not skip."""

    def __init__(self, config):
        self._lanes = lanes_of_run(config)
        is_named = config.getoption("--lane") is not None
        self._allowed = [re.compile(each) for lane in self._lanes for each in SKIPS[lane]] if is_named else None
        self._refused = {}

    def pytest_ignore_collect(self, collection_path):
        """A file whose tests are all of later lanes is not imported."""
        if collection_path.is_dir():
            return None
        first = LANES.index(lane_of_file(collection_path))
        return True if not set(LANES[first:]) & set(self._lanes) else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        others = [item for item in items if lane_of(item) not in self._lanes]
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if lane_of(item) in self._lanes]

    def pytest_runtest_logreport(self, report):
        self._look_at(report)

    def pytest_collectreport(self, report):
        self._look_at(report)

    def _look_at(self, report):
        if self._allowed is None or not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not any(each.fullmatch(reason) for each in self._allowed):
            self._refused[report.nodeid] = reason

    def pytest_sessionfinish(self, session):
        if self._refused:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self._refused:
            terminalreporter.section(f"skipped, which {' and '.join(self._lanes)} may not: tests/lanes.py")
            for name, reason in sorted(self._refused.items()):
                terminalreporter.line(f"FAILED {name} - skipped: {reason}")
