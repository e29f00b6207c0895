"""Several files to one configuration."""

import os
from typing import Any

from attrs import frozen

from mcp_nursery.actors.errors import ConfigError, one_line
from mcp_nursery.supervisor.spec import ServerSpec

from .document import as_object, read_document
from .entry import read_entry


@frozen
class Config:
    """What the files said."""

    servers: tuple[ServerSpec, ...]
    """One spec a name, also for the entries that cannot work: those carry an `UnusableTransport`."""
    files: tuple[str, ...]
    """The files read, in the order given."""
    warnings: tuple[str, ...]
    """One line each: the keys that mean nothing here, once a file and key."""


def load_config(*files: str | os.PathLike[str]) -> Config:
    """Read the `mcpServers` of each file.

    Naming a file is the user's act: its commands and its servers' hints are trusted. Where two files name the same
    server, the entry of the later file wins as a whole, also when it is a bad one. What else a file holds beside
    `mcpServers` belongs to other programs and is left alone.

    An entry that cannot work is its server's error alone: the spec's transport is an `UnusableTransport`.

    Raises:
        ConfigError: A file that cannot be read, is not a JSON object, says a key twice or has no `mcpServers`.
    """
    paths = tuple(os.fspath(file) for file in files)
    servers: dict[str, ServerSpec] = {}
    warnings: dict[tuple[str, str], str] = {}
    for path in paths:
        for name, entry in _entries(path).items():
            spec, unknown = read_entry(name, entry, file=path)
            servers[spec.name] = spec
            for key in unknown:
                warnings.setdefault(
                    (path, key), one_line(f"{path}: server {name!r}: unknown key {key[:80]!r} is ignored")
                )
    return Config(servers=tuple(servers.values()), files=paths, warnings=tuple(warnings.values()))


def _entries(path: str) -> dict[str, Any]:
    document = read_document(path)
    if "mcpServers" not in document:
        raise ConfigError("missing: an object with one entry a server", file=path, field="mcpServers")
    entries = as_object(document["mcpServers"])
    if entries is None:
        raise ConfigError("an object with one entry a server wanted", file=path, field="mcpServers")
    return entries
