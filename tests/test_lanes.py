"""A lane runs its tests and no others, skips what it may, and leaves nothing, even when it is killed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from .lab.processes import eventually, is_alive
from .lanes import ALL, LANES
from .timings import read

ROOT = Path(__file__).parents[1]
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
NOT_OURS = {"PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_DEBUG_TEMPROOT"}


def environment(**others):
    return {name: value for name, value in os.environ.items() if name not in NOT_OURS} | others


@pytest.fixture(autouse=True)
def timings(tmp_path, monkeypatch):
    """The folder of the timings of runs in this test: the run of this test has its own."""
    monkeypatch.setenv("MCP_NURSERY_TIMINGS", str(tmp_path / "timings"))
    return tmp_path / "timings"


@pytest.fixture
def run(tmp_path):
    """Runs a file of tests as one of a lane, with the conftest of this folder."""

    def run_file(text, *options, named=True, workers=0):
        (tmp_path / "test_it.py").write_text(text)
        command = [*PYTEST, "-p", "tests.conftest", f"-n{workers}", f"--rootdir={tmp_path}", *options]
        command += ["-c", str(ROOT / "pyproject.toml"), *(["test_it.py"] if named else ["-o", "testpaths=test_it.py"])]
        env = environment(PYTHONPATH=str(ROOT))
        return subprocess.run(
            command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    return run_file


SKIPPED = 'import pytest\n\n\ndef test_it():\n    pytest.skip("{}")\n'


def test_a_skip_that_no_list_allows_fails_the_lane(run):
    done = run(SKIPPED.format("there is no elephant"), "--lane=readme")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "FAILED test_it.py::test_it - skipped: there is no elephant" in done.stdout


@pytest.mark.night
def test_a_module_that_is_skipped_fails_the_lane(run):
    done = run('import pytest\n\npytest.importorskip("no_such_package")\n', "--lane=readme")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "FAILED test_it.py - skipped: could not import 'no_such_package'" in done.stdout


@pytest.mark.night
def test_whoever_names_a_path_may_skip(run):
    done = run(SKIPPED.format("there is no elephant"))
    assert done.returncode == 0


MARKED = "import pytest\n\n\n" + "\n\n".join(
    f"@pytest.mark.{lane}\ndef test_{lane}(): pass" if lane != "readme" else "def test_readme(): pass" for lane in LANES
)


@pytest.mark.night
@pytest.mark.parametrize("lane", LANES)
def test_a_lane_has_its_own_tests(run, lane):
    done = run(MARKED, f"--lane={lane}", "-v")
    assert re.findall(r"::test_(\w+) PASSED", done.stdout) == [lane]


CUBE = """
import pytest


@pytest.mark.push
@pytest.mark.parametrize("client", ["stdio", "http"])
@pytest.mark.parametrize(("era", "said"), [("old", "a"), ("new", "b"), ("both", "b")])
@pytest.mark.parametrize("server", ["stdio", "http"])
def test_it(client, era, said, server): pass


@pytest.mark.push
@pytest.mark.parametrize(("client", "era", "server"), [(1, 2, 3), (1, 2, 4), (1, 1, 4), (2, 2, 4)])
def test_rows(client, era, server): pass
"""


def test_of_a_cube_the_push_has_each_pair_and_the_night_the_rest(run):
    def cases(lane):
        done = run(CUBE, f"--lane={lane}", "-v")
        return [tuple(name.split("-")) for name in re.findall(r"::test_it\[(.*)\] PASSED", done.stdout)], done.stdout

    (push, printed), (night, _) = cases("push"), cases("night")
    assert printed.count("test_rows") == 4
    assert len(push) == 6
    assert len({*push, *night}) == len(push) + len(night) == 12
    for i, j in ((0, 1), (0, 3), (1, 3)):
        assert {(case[i], case[j]) for case in push} == {(case[i], case[j]) for case in (*push, *night)}


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.night), 2])
def test_without_a_path_the_lane_of_the_readme_runs_in_a_random_order(run, workers):
    done = run(MARKED, "-v", named=False, workers=workers)
    assert re.search(r"^lanes: readme; in the order of --shuffle=\d+$", done.stdout, re.MULTILINE)
    assert done.returncode == 0
    assert "1 passed" in done.stdout


def test_a_process_that_is_left_fails_the_run(run):
    done = run(
        "import subprocess, sys\n\n\n"
        "def test_it():\n"
        "    command = [sys.executable, '-c', 'import time; time.sleep(3600)']\n"
        "    subprocess.Popen(command, start_new_session=True).returncode = 0\n"
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    (pid,) = re.findall(r"^FAILED process (\d+): .*sleep\(3600\)", done.stdout, re.MULTILINE)
    assert not is_alive(int(pid))


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGKILL, "-n1"),
        *(
            pytest.param(number, workers, marks=pytest.mark.night)
            for number, workers in [(signal.SIGKILL, "-n0"), (signal.SIGTERM, "-n0"), (signal.SIGTERM, "-n1")]
        ),
    ],
)
async def test_a_run_that_is_killed_leaves_nothing(tmp_path, number, workers):
    pids = tmp_path / "pids"
    command = [*PYTEST, workers, "tests/lab/programs/killed_run.py"]
    env = environment(PIDS=str(pids))
    process = await trio.lowlevel.open_process(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    await eventually(lambda: pids.exists() and pids.read_text().endswith("\n"), within=120)
    started = [int(pid) for pid in pids.read_text().split()]
    assert all(map(is_alive, started))
    process.send_signal(number)
    await process.wait()
    await eventually(lambda: not any(map(is_alive, started)))


@pytest.mark.night
def test_a_run_leaves_its_timings(run, timings):
    run("def test_it(): pass\n", "--lane=readme,night")
    (found,) = read(timings / "readme-night.jsonl")
    assert found[0] == "test_it.py::test_it"
    printed = subprocess.run(
        [sys.executable, "-m", "tests.timings"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert re.search(r"^readme-night +\d+\.\d +\d+\.\d +\d+% +1  test_it\.py$", printed.stdout, re.MULTILINE)


@pytest.mark.night
def test_a_failure_is_written_down_at_once_and_gone_with_the_next_run(run, timings):
    run("def test_it(): assert 1 == 2\n", "--lane=readme")
    assert (timings / "readme.failed").read_text().startswith("test_it.py::test_it (call)\n")
    run("def test_it(): pass\n", "--lane=readme")
    assert not (timings / "readme.failed").exists()


@pytest.mark.night
def test_every_test_is_in_one_lane():
    def collected(lane):
        command = [*PYTEST, "-n0", "--collect-only", "-q", f"--lane={lane}"]
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
        return [line for line in done.stdout.splitlines() if "::" in line]

    of_lanes = [name for lane in LANES for name in collected(lane)]
    assert sorted(of_lanes) == sorted(collected(ALL))
