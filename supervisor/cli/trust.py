"""`mcp-nursery trust`: what a project's file would start, run or read, and the user's agreement to it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from mcp_nursery.actors.errors import ConfigError, NotApproved
from mcp_nursery.supervisor.config import Config, TrustRequest, discover_config
from mcp_nursery.supervisor.config.loader import load_project
from mcp_nursery.supervisor.security.trust import FileRead
from mcp_nursery.supervisor.security.untrusted_marks import visible
from mcp_nursery.supervisor.storage.sqlite import SqliteStore

from .calling import can_ask, says_yes
from .failures import OK
from .output import warn, write_json, write_line
from .runtime import Options, run_async


@frozen
class TrustOptions:
    """What `trust` can be told besides."""

    file: Path | None = None
    """The project's file; None for the one that is found."""
    yes: bool = False


def trust(options: Options, wanted: TrustOptions) -> int:
    """Show what has to be agreed to, ask, write the answer down."""
    config = _project(wanted.file)
    requests = [spec.trust_request.as_found() for spec in config.servers if spec.trust_request is not None]
    store = SqliteStore()
    try:
        open_ones = [request for request in requests if not store.agreed(request.digest)]
        asking = bool(open_ones) and not wanted.yes
        shown = _shown(requests, open_ones, config)
        if not options.as_json and not (asking and can_ask()):
            write_line(shown)
        if asking:
            _ask(open_ones, shown)
        for request in open_ones:
            store.agree(request)
    finally:
        store.close()
    if options.as_json:
        write_json({"file": config.files[-1], "trusted": [_document(request) for request in requests]})
    return OK


async def ask_for_trust(request: TrustRequest) -> bool:
    """Ask the person at the terminal about one entry."""
    return await says_yes("\n".join([*_lines(request), "It came with the project. Trust it? [y/N] "]))


def _project(file: Path | None) -> Config:
    if file is not None:
        return load_project(file)
    found = discover_config(user=False)
    if not found.files and found.errors:
        raise ConfigError(found.errors[0])
    for error in found.errors:
        warn(error)
    if not found.files:
        raise ConfigError("there is no .mcp.json here; name a file: mcp-nursery trust FILE")
    return found


def _shown(requests: Sequence[TrustRequest], open_ones: Sequence[TrustRequest], config: Config) -> str:
    entries = [[*_lines(request), *([] if request in open_ones else ["(trusted already)"])] for request in requests]
    if not entries:
        return "\n".join(f"{visible(file)}: nothing in it needs your trust" for file in config.files)
    return "\n\n".join("\n".join(lines) for lines in entries)


def _ask(requests: Sequence[TrustRequest], shown: str) -> None:
    """Standard output may go to a file: what is asked about is shown where the question is."""
    servers = ", ".join(request.server for request in requests)
    if not can_ask():
        raise NotApproved(servers, None, "there is no terminal to ask on; --yes trusts all of it")

    async def ask() -> bool:
        return await says_yes(f"{shown}\nTrust {'it' if len(requests) == 1 else f'these {len(requests)}'}? [y/N] ")

    if not run_async(ask):
        raise NotApproved(servers, None, "refused at the terminal")


def _lines(request: TrustRequest) -> list[str]:
    """All of an entry, to the letter, nothing left out or resolved; indented, so that no key of it speaks for us."""
    said = [f"server: {request.server}", f"file: {request.file}", f"it: {', '.join(request.reasons)}"]
    entry = [f"  {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in request.entry.items()]
    return [visible(line) for line in (*said, *entry, *map(_read, request.files))]


def _read(file: FileRead) -> str:
    """What a file makes part of the entry: the names, since values are secrets."""
    if file.problem is not None:
        return f"reads: {file.path}: {file.problem}"
    return f"reads: {file.path}, which sets {', '.join(file.variables) or 'nothing'}"


def _document(request: TrustRequest) -> dict[str, Any]:
    return {
        "name": request.server,
        "file": request.file,
        "reasons": list(request.reasons),
        "entry": request.entry,
        "reads": [{"path": each.path, "variables": each.variables, "error": each.problem} for each in request.files],
    }
