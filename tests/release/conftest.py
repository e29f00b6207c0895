"""The distributions of this tree, and an environment with the wheel alone: each is made once for all processes of a
run, in a repository of its own, so that its commit is known."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import frozen

ROOT = Path(__file__).parents[2]
NOT_SOURCES = shutil.ignore_patterns(
    *(".git", ".venv", "venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".coverage*", ".hypothesis"),
    "commit.txt",
)


def run(*command, **options):
    """What a command prints; its errors go to ours."""
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE, timeout=240, **options).stdout


@frozen
class Distributions:
    wheel: Path
    sdist: Path
    commit: str
    """Of the tree that they were built from."""
    files: frozenset[str]
    """Those of the tree."""


@frozen
class Installed:
    folder: Path
    """The environment."""

    @property
    def python(self):
        return self.folder / "bin" / "python"

    def run(self, *command, cwd, given=""):
        """Run a program of the environment, with nothing of this one's paths."""
        env = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "COV"))}
        program, *arguments = (str(word) for word in command)
        words = [self.folder / "bin" / program, *arguments]
        return subprocess.run(
            words, cwd=cwd, env=env, input=given, capture_output=True, text=True, timeout=120, check=False
        )


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Makes a folder of that name, unless a process of this run has done so."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name, make):
        folder = shared / name
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / ".complete").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                (folder / ".complete").touch()
        return folder

    return made


@pytest.fixture(scope="session")
def distributions(made):

    def build(folder):
        source = folder / "source"
        shutil.copytree(ROOT, source, ignore=NOT_SOURCES)
        git = ("git", "-C", source, "-c", "user.name=ann", "-c", "user.email=ann@example.com")
        run(*git, "init", "-q")
        run(*git, "add", "-A")
        run(*git, "commit", "-q", "-m", "All of it")
        run(sys.executable, "-m", "build", "--outdir", folder / "dist", source)

    folder = made("distributions", build)
    git = ("git", "-C", folder / "source")
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    commit = run(*git, "rev-parse", "--short=12", "HEAD").strip()
    return Distributions(wheel, sdist, commit, frozenset(run(*git, "ls-files").splitlines()))


@pytest.fixture(scope="session")
def installed(made, distributions):
    """An environment with the wheel, and what it brings without extras."""

    def install(folder):
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
        run(*pip, "install", "--quiet", "--no-compile", distributions.wheel)

    return Installed(made("installed", install))
