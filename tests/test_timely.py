"""A test of a promised time is tried three times at most, and every retry is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .lab.timely import LATE, Late, in_time, timely

TESTS = Path(__file__).parent


@pytest.mark.parametrize(("late", "tries"), [(0, 1), (1, 2), (2, 3)])
async def test_a_busy_machine_is_forgiven_twice(late, tries):
    tried = []

    @timely
    async def test():
        tried.append(1)
        in_time(1.0 if len(tried) <= late else 0.1, 0.5)

    await test()
    assert len(tried) == tries
    assert list(LATE) == ["took 1.000 s, and less than 0.5 s are promised"] * late
    LATE.clear()


async def test_three_times_is_late():
    @timely
    async def test():
        in_time(1.0, 0.5)

    with pytest.raises(Late):
        await test()
    assert len(LATE) == 2
    LATE.clear()


async def test_nothing_else_is_forgiven():
    @timely
    async def test():
        raise AssertionError("wrong")

    with pytest.raises(AssertionError, match="wrong"):
        await test()
    assert LATE == []


SOMETIMES = """
from tests.lab.timely import in_time, timely

tried = []

@timely
async def test_sometimes():
    tried.append(1)
    in_time(1.0 if len(tried) == 1 else 0.1, 0.5)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_every_retry_is_told(tmp_path, workers):
    (tmp_path / "tests").symlink_to(TESTS)
    (tmp_path / "test_sometimes.py").write_text(SOMETIMES)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *")
    options = ["-c", str(TESTS.parent / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # of this run
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"-n{workers}", "-q", "test_sometimes.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    assert "late, and tried again: 1" in done.stdout, done.stdout + done.stderr
    assert "test_sometimes.py::test_sometimes: took 1.000 s" in done.stdout
