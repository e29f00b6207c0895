"""The commit that a distribution is built from goes into it: `mcp-nursery --version` says it. All else about the build
stands in pyproject.toml."""

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

SOURCE = Path(__file__).parent / "actors"
OF_COMMITS = runpy.run_path(str(SOURCE / "commit.py"))


def record(package: Path) -> None:
    """Write the commit of this tree into a copy of its `actors`."""
    file = package / OF_COMMITS["COMMIT_FILE"]
    file.unlink(missing_ok=True)  # of an sdist it may be a link to that of this tree
    file.write_text(OF_COMMITS["commit_of"](SOURCE) + "\n")


class BuildWithCommit(build_py):
    """The modules of a wheel, with the commit."""

    def run(self) -> None:
        """Copy them, and write it."""
        if self.editable_mode:  # then the commit is asked for when somebody wants to know
            super().run()
            return
        package = Path(self.build_lib, "mcp_nursery")
        shutil.rmtree(package, ignore_errors=True)  # modules that an earlier build left, and that are gone
        super().run()
        record(package / "actors")


class SdistWithCommit(sdist):
    """The files of an sdist, with the commit."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Link them, and write it."""
        super().make_release_tree(base_dir, files)
        record(Path(base_dir, "actors"))


setup(cmdclass={"build_py": BuildWithCommit, "sdist": SdistWithCommit})
