"""What is known of a host's file in which the gateway was installed: our files for it, and what was there before."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from mcp_nursery.actors.errors import ConfigError

from .discovery import absolute, own_file, project_files
from .document import as_object, parse_document
from .hosts import HostProgram
from .values import FieldError, structurer
from .whole_file import read_bytes

_FORMAT = 1


@frozen
class Place:
    """A host's file, and ours that belong to it."""

    host: HostProgram
    file: Path
    """An absolute path."""
    key: str
    """What our files for it are called."""

    @property
    def servers(self) -> Path:
        """The servers of this file that are behind the gateway."""
        return own_file().parent / "hosts" / f"{self.key}.json"

    @property
    def record(self) -> Path:
        """What was before."""
        return own_file().parent / "hosts" / f"{self.key}.undo.json"


@frozen
class Record:
    """What is needed to take back what was done to a file."""

    original: str | None = None
    """What the file held, or would hold without us; None: there was none."""
    written: tuple[str, ...] = ()
    """Digests of what we made of exactly that."""
    moved: tuple[str, ...] = ()
    """The servers that went behind the gateway."""
    servers: str | None = None
    """Digest of the file with them, as we wrote it."""
    folders: tuple[str, ...] = ()
    """Those that were made for the file."""


_structure = structurer(Record)


def user_place(host: HostProgram) -> Place:
    """The host's file of its user."""
    files = [Path.home() / name for name in host.user]
    return Place(host, next((file for file in files if os.path.lexists(file)), files[0]), host.name)


def project_place(host: HostProgram) -> Place | None:
    """The host's file of the project that the working directory is in: the nearest, else one in this folder; None if it
    has none for projects.

    Raises:
        ConfigError: The working directory does not exist any more.
    """
    if not host.project:
        return None
    here = absolute(os.curdir)
    ends = [Path(name).parts for name in host.project]
    found = [Path(origin.file) for origin in project_files(here)]
    file = next((each for each in found if any(each.parts[-len(end) :] == end for end in ends)), None)
    return place_of(host, file or here / host.project[0])


def place_of(host: HostProgram, file: Path) -> Place:
    """A file that was named."""
    path = Path(os.path.normpath(absolute(file)))
    if path == user_place(host).file:
        return user_place(host)
    if path.suffix != ".toml" and host.name == "codex":
        raise ConfigError("Codex reads a file whose name ends in .toml", file=str(path))
    return Place(host, path, f"{host.name}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}")


def read_record(place: Place) -> Record | None:
    """What was done to a host's file; None: nothing.

    Raises:
        ConfigError: It cannot be read.
    """
    if not os.path.exists(place.record):
        return None
    said = parse_document(read_bytes(place.record).decode(), str(place.record))
    if said.get("format") != _FORMAT or said.get("file") != str(place.file):
        raise ConfigError("is of another file, or of another version of mcp-nursery", file=str(place.record))
    try:
        return _structure(as_object(said.get("undo")) or {})
    except FieldError as error:
        problem, where = str(error), error.key
    raise ConfigError(problem, file=str(place.record), field=where)


def record_bytes(place: Place, record: Record) -> bytes:
    """The record as it is kept."""
    document = {"format": _FORMAT, "file": str(place.file), "undo": asdict(record)}
    return (json.dumps(document, indent=2) + "\n").encode()


def servers_behind(place: Place) -> Mapping[str, Any]:
    """What is in our file with the host's servers.

    Raises:
        ConfigError: It cannot be used.
    """
    if not os.path.exists(place.servers):
        return {}
    return as_object(parse_document(read_bytes(place.servers).decode(), str(place.servers)).get("mcpServers")) or {}


def missing_folders(file: Path) -> tuple[str, ...]:
    """Those that have to be made for it, the innermost first."""
    return tuple(str(folder) for folder in file.parents if not folder.exists())


def digest_of(data: bytes | None) -> str:
    """Says whether a file is as it was."""
    return "" if data is None else hashlib.sha256(data).hexdigest()
