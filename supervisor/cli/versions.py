"""The parts of this installation, as `mcp-nursery --version` prints them for a bug report."""

import platform
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

from mcp_nursery.actors import commit
from mcp_nursery.actors.version import VERSION

from .options import PROGRAM

_REQUIREMENT: Final = re.compile(r"""([\w.-]+)[^;]*(?:;.*\bextra\s*==\s*["']([\w.-]+)["'])?""")
FOR_WORK: Final = frozenset({"dev", "docs", "interop", "test"})
"""Extras for work on this package."""


def describe_installation() -> Sequence[str]:
    """Return lines: the version, the commit, Python, and each dependency that is installed, with the extras that need
    it in brackets."""
    package = Path(commit.__file__).resolve().parent  # in an editable installation, the folder of its sources
    about = [f"{PROGRAM} {VERSION}", f"commit {commit.commit_of(package)}"]
    python = f"python {platform.python_version()} {platform.system()} {platform.machine()}"
    return [*about, python, *_dependencies()]


def _dependencies() -> Iterator[str]:
    try:
        required = requires(PROGRAM) or ()
    except PackageNotFoundError:  # it runs from a folder of sources
        return
    extras: dict[str, list[str]] = {}
    for requirement in required:
        if (parts := _REQUIREMENT.match(requirement)) is not None:
            name, extra = parts.groups()
            if name != PROGRAM and extra not in FOR_WORK:
                extras.setdefault(name, []).extend([] if extra is None else [extra])
    for name in sorted(extras, key=lambda name: (bool(extras[name]), name)):
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        needed = f" [{', '.join(extras[name])}]" if extras[name] else ""
        yield f"{name} {found}{needed}"
