"""Files that are found without being named: the places where they are searched, the least important first, and their
owners.

In a shared folder anybody can put a file, and every command in a folder below would read it and contact the servers in
it (CVE-2022-24765 was such a fault in git): it has to be the user's own or root's. Finds files, and reads none.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.records import frozen

from ..user_folders import config_folder
from .dialects import DIALECTS

SETTINGS = frozenset(
    {
        ".claude.json",
        ".codebuddy.json",
        "claude_desktop_config.json",
        "config.toml",
        "opencode.json",
        "opencode.jsonc",
        "settings.json",
    }
)
"""Files that hold other settings, too: one without servers is no error."""


@frozen
class EntryOrigin:
    """The place of an entry."""

    file: str
    trusted: bool = True
    """True if its user named the file, or it is the user's own."""
    workspace: str | None = None
    """The value of `${workspaceFolder}`: the folder of a project's file; None for the host's working directory."""
    root: str = "mcpServers"
    """The file's key under which the entry stands."""


def absolute(path: str | os.PathLike[str]) -> Path:
    """The path from the root.

    Raises:
        ConfigError: The path is relative, and the working directory was removed.
    """
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        problem = "the working directory does not exist any more; change to one that does"
    raise ConfigError(problem)


def project_files(folder: Path) -> list[EntryOrigin]:
    """The project's files, `.mcp.json` last: each kind in the nearest folder that has it, up to the root of the git
    repository; outside of a repository, in `folder` alone. They came with the project; the user's own files are left
    out."""
    root = next((place for place in (folder, *folder.parents) if os.path.lexists(place / ".git")), folder)
    above = [folder, *(place for place in folder.parents if place.is_relative_to(root))]
    own = set(_of_the_user())
    found: list[EntryOrigin] = []
    for name in reversed([name for dialect in DIALECTS for name in dialect.project]):
        file = next((place / name for place in above if os.path.lexists(place / name)), None)
        if file is not None and file not in own:
            found.append(as_project(file))
    return found


def as_project(file: Path) -> EntryOrigin:
    """The origin of a file that came with a project; the project's folder is the one that its host would open."""
    parts = file.parts
    places = (PurePath(name).parts for dialect in DIALECTS for name in dialect.project)
    depth = next((len(place) for place in places if parts[-len(place) :] == place), 1)
    return EntryOrigin(str(file), trusted=False, workspace=str(file.parents[depth - 1]))


def user_files(*, hosts: bool) -> list[EntryOrigin]:
    """The user's own files that exist: with `hosts` those of other hosts, then our own."""
    files = [*(reversed(list(_of_the_user())) if hosts else ()), own_file()]
    return [EntryOrigin(str(file)) for file in files if os.path.lexists(file)]


def own_file() -> Path:
    """The user's own file, `servers.json` in the configuration folder of mcp-nursery."""
    return config_folder() / "servers.json"


def _of_the_user() -> Iterator[Path]:
    home = Path(os.path.expanduser("~"))
    yield from (home / name for dialect in DIALECTS for name in dialect.user)


def problem_with_owner(origin: EntryOrigin) -> str | None:
    """The reason why a file that was found may not be used, a phrase; None if it may, or if it cannot be examined.

    The file, its folder (for `.vscode/mcp.json` and the like the project's, too), and every link among them with its
    target must belong to the user or to root, and not be writable by everybody; in a folder like `/tmp`, where
    everybody can write and only owners can replace, the file's own owner counts. A group may have write access: on many
    systems each user has a group of their own.
    """
    if not hasattr(os, "geteuid"):
        return None
    ours = _ours()
    try:
        return next(filter(None, (_problem(path, ours) for path in _on_the_way(origin))), None)
    except OSError:
        return None  # reading it will raise


def _ours() -> set[int]:
    """The user and root; under `sudo` also the user who called it, as in git."""
    user = os.geteuid()
    caller = os.environ.get("SUDO_UID", "") if user == 0 else ""
    return {0, user, *([int(caller)] if caller.isdecimal() else [])}


def _on_the_way(origin: EntryOrigin) -> Iterator[Path]:
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
