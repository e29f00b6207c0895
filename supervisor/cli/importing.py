"""`mcp-nursery import`: the servers of other hosts' files in one file of our own. Resolves and starts nothing."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.config.discovery import Origin, own_file, user_files
from mcp_nursery.supervisor.config.hosts import is_gateway
from mcp_nursery.supervisor.config.loader import File, read_file, read_found, warnings_of
from mcp_nursery.supervisor.config.variables import texts_of
from mcp_nursery.supervisor.config.whole_file import replace_file
from mcp_nursery.supervisor.spec import ServerSpec
from mcp_nursery.supervisor.transports import UnusableTransport

from .failures import OK
from .output import warn, write_json, write_line
from .runtime import Options


@frozen
class ImportOptions:
    """What `import` can be told besides."""

    files: tuple[Path, ...] = ()
    """The files to read; none means those of other hosts in the user's home. A project's has to be named: what is
    written is trusted."""
    to: Path | None = None
    """The file to write; None for the user's own."""
    force: bool = False


def import_servers(options: Options, wanted: ImportOptions) -> int:
    """Read, write, and say what was left out."""
    target = wanted.to or own_file()
    if os.path.lexists(target) and not wanted.force:
        raise ConfigError("exists already; --force overwrites it, --to FILE writes elsewhere", file=str(target))
    files, left = _read(wanted)
    servers: dict[str, tuple[Mapping[str, Any], ServerSpec]] = {}
    for file in files:
        left += _left_out(file)
        for name, entry in file.entries:
            if not (isinstance(entry.spec.transport, UnusableTransport) or is_gateway(entry.own)):
                if name in servers:
                    left.append(f"{servers[name][1].source}: server {name!r}: {file.path} overrides it")
                servers[name] = entry.own, entry.spec
    if not servers:
        raise ConfigError("there is nothing to import; name the files: mcp-nursery import FILE")
    written = {"mcpServers": {name: entry for name, (entry, _) in servers.items()}}
    replace_file(str(target), f"{json.dumps(written, indent=2)}\n".encode())
    for line in left:
        warn(line)
    if options.as_json:
        write_json({"file": str(target), "servers": sorted(servers), "left_out": left})
    else:
        write_line("\n".join(spec.label for _, spec in servers.values()))
        write_line(f"written to {target}")
    return OK


def _read(wanted: ImportOptions) -> tuple[list[File], list[str]]:
    if wanted.files:
        return [read_file(Origin(str(file))) for file in wanted.files], []
    others = [origin for origin in user_files(hosts=True) if origin.file != str(own_file())]
    files, errors = read_found(others)
    return files, list(errors)


def _left_out(file: File) -> list[str]:
    left: list[str] = []
    for name, entry in file.entries:
        transport = entry.spec.transport
        if is_gateway(entry.own):
            left.append(f"{file.path}: server {name!r}: it is mcp-nursery itself")
            continue
        if isinstance(transport, UnusableTransport):
            left.append(str(transport.error))
            continue
        left += [line for _, line in warnings_of(file.path, name, entry, before=len(left))]
        if any("${workspaceFolder" in text for text in texts_of(dict(entry.own))):
            left.append(f"{file.path}: server {name!r}: ${{workspaceFolder}} will be the working directory")
        left += [
            f"{file.path}: server {name!r}: its {key} will be looked for from the working directory"
            for key in ("cwd", "envFile")
            if key in entry.own and not entry.own[key].startswith(("/", "${"))
        ]
    return left
