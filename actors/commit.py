"""The commit that this package was built from, or that its checkout is at. Run by `setup.py` too, which has nothing of
this package: it imports the standard library only.
"""

import os
import subprocess
from pathlib import Path
from typing import Final

UNKNOWN: Final = "unknown"
"""The word for an unknown commit."""
COMMIT_FILE: Final = "commit.txt"
"""The file beside this one in which a distribution has its commit."""
GIT_TIMEOUT: Final = 5.0
"""Seconds for git."""


def commit_of(package: Path) -> str:
    """Return the commit that the folder of a package comes from: what was recorded when it was built; else what git
    says of the checkout, with `-dirty` if files have changed since; else `unknown`."""
    try:
        recorded = (package / COMMIT_FILE).read_text("ascii").strip()
    except (OSError, ValueError):
        recorded = ""
    return recorded or _of_checkout(package.parent)


def _of_checkout(tree: Path) -> str:
    if not (tree / ".git").exists():  # git would look in the folders above for one, which is another project's
        return UNKNOWN
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    describe = ("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    try:
        said = subprocess.run(  # noqa: S603 - nothing in it comes from elsewhere
            ["git", "--no-optional-locks", "-C", str(tree), *describe],  # noqa: S607 - the user's own
            env=ours,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return UNKNOWN
    return said.stdout.strip() or UNKNOWN
