"""Whose a file is that nobody named. Above a shared folder anybody can put one, and every command below would read it
and contact the servers in it (CVE-2022-24765 was git's of this kind): it has to be the user's own or root's."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from .unresolved import Origin


def problem_with_owner(origin: Origin) -> str | None:
    """Why a file that was found may not be used, a phrase; None if it may, or if it cannot be looked at.

    The file, the folder it is in, for `.vscode/mcp.json` and the like also the project's, every link among them and
    what it leads to belong to the user or to root, and not everybody can write to them; in a folder like `/tmp`, where
    everybody writes and only owners replace, the file's own owner counts. That a group can write is no problem: on many
    systems each user has one.
    """
    if not hasattr(os, "geteuid"):
        return None
    ours = _ours()
    try:
        return next(filter(None, (_problem(path, ours) for path in _on_the_way(origin))), None)
    except OSError:
        return None  # reading it says why


def _ours() -> set[int]:
    """The user and root; under `sudo` also who called it, as git has it."""
    user = os.geteuid()
    caller = os.environ.get("SUDO_UID", "") if user == 0 else ""
    return {0, user, *([int(caller)] if caller.isdecimal() else [])}


def _on_the_way(origin: Origin) -> Iterator[Path]:
    file = Path(origin.file)
    top = file.parent if origin.workspace is None else Path(origin.workspace)
    named = (file, *(folder for folder in file.parents if folder.is_relative_to(top)))
    target = Path(os.path.realpath(file))
    yield from (*named, target, target.parent, *(Path(os.path.realpath(path)) for path in named))


def _problem(path: Path, ours: set[int]) -> str | None:
    found = os.lstat(path)
    if found.st_uid not in ours:
        return f"{path} belongs to another user (uid {found.st_uid})"
    writable = stat.S_ISREG(found.st_mode) or (stat.S_ISDIR(found.st_mode) and not found.st_mode & stat.S_ISVTX)
    return f"everybody can write to {path}" if writable and found.st_mode & stat.S_IWOTH else None
