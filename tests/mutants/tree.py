"""A copy of the repository, in which a mutant is tried: nothing is changed in the one that people work in."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from attrs import frozen

from .mutant import REPOSITORY, Mutant

PACKAGES = ("actors", "supervisor")
_COPIED = (*PACKAGES, "tests", "docs", "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
_PYTEST = (
    "-m",
    "pytest",
    "-n0",
    "-x",
    "-q",
    "--no-header",
    "-p",
    "no:cacheprovider",
    "-m",
    "not night and not interop",
)
_FAILED, _PASSED = 1, 0
_OF_THIS_RUN = ("CI", "PYTEST_", "COV_", "COVERAGE_")
"""How the variables begin that are not handed on, as where tests run these tests."""


class Verdict(Enum):
    """The end of the tests that ran with a mutant."""

    KILLED = "killed"
    """A test failed."""
    STUCK = "killed: the time was over"
    """They did not end in time: what waits for ever is noticed too."""
    SURVIVED = "survived"
    """All passed."""
    BROKEN = "broken"
    """They did not run: a path is wrong, or the code cannot be loaded."""
    UNSOUND = "its tests fail without it"

    @property
    def is_killed(self) -> bool:
        """Whether they have noticed it."""
        return self in (Verdict.KILLED, Verdict.STUCK)


@frozen
class Tree:
    """A copy of the repository."""

    folder: Path

    @classmethod
    def copied_to(cls, folder: Path) -> "Tree":
        """A copy in this folder, which comes into being, with the packages under the name of their import."""
        for name in _COPIED:
            source = REPOSITORY / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
                shutil.copytree(source, folder / name, ignore=ignored, symlinks=True)
            else:
                shutil.copy(source, folder / name)
        (folder / "mcp_nursery").mkdir()
        for name in PACKAGES:
            (folder / "mcp_nursery" / name).symlink_to(folder / name)
        return cls(folder)

    def verdict(self, mutant: Mutant, *, seconds: float) -> Verdict:
        """Run the mutant's tests with it, for so many seconds at most."""
        file = self.folder / mutant.file
        original = file.read_text()
        self._write(file, mutant.applied_to(original))
        try:
            return self.run(mutant.tests, seconds=seconds)
        finally:
            self._write(file, original)

    def run(self, tests: Sequence[str], *, seconds: float) -> Verdict:
        """Run these tests on the code as it stands in the copy."""
        process = subprocess.Popen(
            [sys.executable, *_PYTEST, *tests],
            cwd=self.folder,
            env=self._surroundings(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return Verdict.STUCK
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return {_FAILED: Verdict.KILLED, _PASSED: Verdict.SURVIVED}.get(code, Verdict.BROKEN)

    def loads_its_own(self) -> bool:
        """Whether the tests here load the packages of this copy, and not those that are installed."""
        found = subprocess.run(
            [
                sys.executable,
                "-c",
                "import mcp_nursery.actors as one, mcp_nursery.supervisor as other\n"
                "print(one.__file__, other.__file__, sep='\\n')",
            ],
            cwd=self.folder,
            env=self._surroundings(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        return all(Path(path).is_relative_to(self.folder) for path in found.stdout.splitlines())

    def _surroundings(self) -> dict[str, str]:
        """Of the tests: a few examples of each property, and the packages of this folder before those installed."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_THIS_RUN)}
        return {**kept, "PYTHONPATH": str(self.folder), "HYPOTHESIS_PROFILE": "quick"}

    def _write(self, file: Path, text: str) -> None:
        """No bytecode stays: two texts of one length within a second look alike to who goes by a file's time."""
        file.write_text(text)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()
