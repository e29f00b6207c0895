"""Several files to one configuration."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from mcp_nursery.actors.errors import ConfigError, one_line
from mcp_nursery.supervisor.spec import ServerSpec

from .document import as_object, read_document
from .entry import read_entry
from .expansion import unresolved_in_header
from .unresolved import Origin, Unresolved

PROJECT_FILE = ".mcp.json"
"""The name of a project's file."""


@frozen
class Config:
    """What the files said."""

    servers: tuple[ServerSpec, ...]
    """One spec a name, also for the entries that cannot work: those carry an `UnusableTransport`."""
    files: tuple[str, ...]
    """The files read, in the order given."""
    warnings: tuple[str, ...]
    """One line each: the keys that mean nothing here, once a file and key, and headers that a variable leaves empty."""
    errors: tuple[str, ...] = ()
    """One line each: files that were found and cannot be used."""


def load_config(*files: str | os.PathLike[str]) -> Config:
    """Read the `mcpServers` of each file.

    Naming a file is the user's act: its commands and its servers' hints are trusted. Where two files name the same
    server, the entry of the later file wins as a whole, also when it is a bad one. What else a file holds beside
    `mcpServers` belongs to other programs and is left alone.

    An entry that cannot work is its server's error alone: the spec's transport is an `UnusableTransport`.

    Raises:
        ConfigError: A file that cannot be read, is not a JSON object, says a key twice or has no `mcpServers`.
    """
    origins = tuple(Origin(os.fspath(file)) for file in files)
    return _config([(origin, _entries(origin.file)) for origin in origins])


def discover_config(folder: str | os.PathLike[str] | None = None, *, project: bool = True, user: bool = True) -> Config:
    """Read the user's own file and the current project's, where they exist; the user's entries go first.

    The user's file is `servers.json` in the user's configuration folder, and trusted. The project's is the nearest
    `.mcp.json` from `folder` up to the root of its git repository, outside of one in `folder` alone. It came with the
    project: what its entries would start, run or read has to be agreed to first.

    A file that cannot be used is one of `Config.errors`.

    Args:
        folder: Where the project is looked for; the working directory by default.
        project: False leaves the project's file alone.
        user: False leaves the user's file alone.
    """
    origins = [_project_origin(Path(folder or os.curdir).absolute())] if project else []
    origins += [_user_origin()] if user else []
    sources: list[tuple[Origin, dict[str, Any]]] = []
    errors: list[str] = []
    for origin in origins:
        if origin is not None:
            try:
                sources.append((origin, _entries(origin.file)))
            except ConfigError as error:
                errors.append(str(error))
    return evolve(_config(sources), errors=tuple(errors))


def load_project(file: str | os.PathLike[str]) -> Config:
    """Read one file as a project's: what its entries would start, run or read has to be agreed to first.

    Raises:
        ConfigError: As for `load_config`.
    """
    origin = _as_project(Path(file).absolute())
    return _config([(origin, _entries(origin.file))])


def _project_origin(folder: Path) -> Origin | None:
    root = next((place for place in (folder, *folder.parents) if os.path.lexists(place / ".git")), folder)
    for place in (folder, *folder.parents):
        if os.path.lexists(place / PROJECT_FILE):
            return _as_project(place / PROJECT_FILE)
        if place == root:
            return None
    return None


def _as_project(file: Path) -> Origin:
    return Origin(str(file), trusted=False, workspace=str(file.parent))


def _user_origin() -> Origin | None:
    from platformdirs import user_config_path

    file = user_config_path("mcp-nursery") / "servers.json"
    return Origin(str(file)) if os.path.lexists(file) else None


def _config(sources: Sequence[tuple[Origin, dict[str, Any]]]) -> Config:
    servers: dict[str, ServerSpec] = {}
    warnings: dict[tuple[str, str], str] = {}
    for origin, entries in sources:
        for name, entry in entries.items():
            spec, unknown = read_entry(name, entry, origin=origin)
            servers[spec.name] = spec
            where = f"{origin.file}: server {name!r}"
            for key in unknown:
                warnings.setdefault((origin.file, key), f"{where}: unknown key {key[:80]!r} is ignored")
            for header, variable in _empty_headers(spec):
                problem = f"{where}: field 'headers.{header}': {variable} is not in its env, and so empty"
                warnings.setdefault((where, f"{header} {variable}"), problem)
    return Config(
        servers=tuple(servers.values()),
        files=tuple(origin.file for origin, _ in sources),
        warnings=tuple(map(one_line, warnings.values())),
    )


def _empty_headers(spec: ServerSpec) -> list[tuple[str, str]]:
    if not isinstance(spec.transport, Unresolved):
        return []
    headers: Mapping[str, str] = getattr(spec.transport.transport, "headers", {})
    found = {name: unresolved_in_header(text, spec.transport.env) for name, text in headers.items()}
    return [(name, variable) for name, variables in found.items() for variable in variables]


def _entries(path: str) -> dict[str, Any]:
    document = read_document(path)
    if "mcpServers" not in document:
        raise ConfigError("missing: an object with one entry a server", file=path, field="mcpServers")
    entries = as_object(document["mcpServers"])
    if entries is None:
        raise ConfigError("an object with one entry a server wanted", file=path, field="mcpServers")
    return entries
