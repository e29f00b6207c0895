"""Where configuration files are looked for, the least important first. Says what exists; reads nothing."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePath

from mcp_nursery.actors.errors import ConfigError

from .dialects import DIALECTS
from .unresolved import Origin

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
"""Files that hold other settings too: one without servers is no error."""


def absolute(path: str | os.PathLike[str]) -> Path:
    """The path from the root.

    Raises:
        ConfigError: It is relative, and the working directory was removed.
    """
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        problem = "the working directory is gone; go to one that is there"
    raise ConfigError(problem)


def project_files(folder: Path) -> list[Origin]:
    """The project's files, `.mcp.json` last: each kind in the nearest folder that has it, up to the root of the git
    repository; outside of one in `folder` alone. They came with the project. Not those that are the user's own."""
    root = next((place for place in (folder, *folder.parents) if os.path.lexists(place / ".git")), folder)
    above = [folder, *(place for place in folder.parents if place.is_relative_to(root))]
    own = set(_of_the_user())
    found: list[Origin] = []
    for name in reversed([name for dialect in DIALECTS for name in dialect.project]):
        file = next((place / name for place in above if os.path.lexists(place / name)), None)
        if file is not None and file not in own:
            found.append(as_project(file))
    return found


def as_project(file: Path) -> Origin:
    """The file as one that came with a project, whose folder is the one that its host would open."""
    parts = file.parts
    places = (PurePath(name).parts for dialect in DIALECTS for name in dialect.project)
    depth = next((len(place) for place in places if parts[-len(place) :] == place), 1)
    return Origin(str(file), trusted=False, workspace=str(file.parents[depth - 1]))


def user_files(*, hosts: bool) -> list[Origin]:
    """The user's own files: with `hosts` those of other hosts, then our own, where they exist."""
    files = [*(reversed(list(_of_the_user())) if hosts else ()), own_file()]
    return [Origin(str(file)) for file in files if os.path.lexists(file)]


def own_file() -> Path:
    """The user's own file, `servers.json` in the configuration folder of mcp-nursery."""
    from platformdirs import user_config_path

    return user_config_path("mcp-nursery") / "servers.json"


def _of_the_user() -> Iterator[Path]:
    home = Path(os.path.expanduser("~"))
    yield from (home / name for dialect in DIALECTS for name in dialect.user)
