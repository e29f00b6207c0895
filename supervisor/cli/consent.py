"""The consent of a person: questions at the terminal, and the commands `trust` and `pins`, which record the answers."""

import json
import os
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from mcp_nursery.actors.errors import ConfigError, NotApproved
from mcp_nursery.supervisor.config import Config, TrustRequest, discover_config
from mcp_nursery.supervisor.config.loader import load_project
from mcp_nursery.supervisor.events import DefinitionChange
from mcp_nursery.supervisor.security.trust import FileRead
from mcp_nursery.supervisor.security.untrusted_marks import visible
from mcp_nursery.supervisor.storage.named import store_named

from .failures import NOT_APPROVED, OK
from .output import pick, safe_line, warn, write_json, write_line
from .runtime import Options, run_async

# -- questions --------------------------------------------------------------------------------------------------------


def can_ask() -> bool:
    """True if there is a person at a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def says_yes(question: str) -> bool:
    """Ask the person at the terminal."""
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # earlier input is no answer to this question
    sys.stderr.write(question)
    sys.stderr.flush()
    # Not input() in a thread: an abandoned one would still hold standard input when the interpreter ends.
    await trio.lowlevel.wait_readable(sys.stdin.fileno())
    return os.read(sys.stdin.fileno(), 1024).strip().lower() in (b"y", b"yes")


async def ask_for_trust(request: TrustRequest) -> bool:
    """Ask the person at the terminal about one entry of a project's file."""
    return await says_yes("\n".join([*_lines(request), "It comes with the project. Trust it? [y/N] "]))


# -- trust ------------------------------------------------------------------------------------------------------------


def trust(options: Options, file: Path | None, *, yes: bool) -> int:
    """Show each entry that needs trust, ask, and record the answer; running hosts start the servers then. Without a
    file: the project's own."""
    config = _project(file)
    requests = [spec.trust_request.as_found() for spec in config.servers if spec.trust_request is not None]
    store = store_named(options.state)
    try:
        open_ones = [request for request in requests if not store.agreed(request.digest)]
        asking = bool(open_ones) and not yes
        shown = _entries(requests, open_ones, config)
        if not options.as_json and not (asking and can_ask()):
            write_line(shown)
        if asking:
            _ask(open_ones, shown)
        for request in open_ones:
            store.agree(request)
    finally:
        store.close()
    from .running_hosts import start_trusted  # which other commands that ask do without

    started = run_async(lambda: start_trusted(requests))
    if options.as_json:
        write_json({"file": config.files[-1], "trusted": [_request_document(request) for request in requests]})
    else:
        for line in started:
            write_line(safe_line(line))
    return OK


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


def _entries(requests: Sequence[TrustRequest], open_ones: Sequence[TrustRequest], config: Config) -> str:
    entries = [[*_lines(request), *([] if request in open_ones else ["(trusted already)"])] for request in requests]
    if not entries:
        return "\n".join(f"{visible(file)}: nothing in it needs your trust" for file in config.files)
    return "\n\n".join("\n".join(lines) for lines in entries)


def _ask(requests: Sequence[TrustRequest], shown: str) -> None:
    """Ask for trust, and show the entries with the question: standard output may go to a file."""
    servers = ", ".join(request.server for request in requests)
    if not can_ask():
        raise NotApproved(servers, None, "there is no terminal to ask on; --yes trusts every entry")

    async def ask() -> bool:
        return await says_yes(f"{shown}\nTrust {'it' if len(requests) == 1 else f'these {len(requests)}'}? [y/N] ")

    if not run_async(ask):
        raise NotApproved(servers, None, "refused at the terminal")


def _lines(request: TrustRequest) -> list[str]:
    """The whole entry, literally, with nothing left out or resolved; indented, so that no key looks like our words."""
    head = [f"server: {request.server}", f"file: {request.file}", f"it: {', '.join(request.reasons)}"]
    entry = [f"  {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in request.entry.items()]
    return [visible(line) for line in (*head, *entry, *map(_read, request.files))]


def _read(file: FileRead) -> str:
    """The part of a file that belongs to the entry: the names of its variables, since values are secrets."""
    if file.problem is not None:
        return f"reads: {file.path}: {file.problem}"
    return f"reads: {file.path}, which sets {', '.join(file.variables) or 'nothing'}"


def _request_document(request: TrustRequest) -> dict[str, Any]:
    reads = [{**pick(each, "path", "variables"), "error": each.problem} for each in request.files]
    return {"name": request.server, **pick(request, "file", "reasons", "entry"), "reads": reads}


# -- pins -------------------------------------------------------------------------------------------------------------


def pins(options: Options, server: str | None, *, yes: bool) -> int:
    """Show the changes of tools and skills, ask about each, and record those that are accepted. Starts no server."""
    asking = can_ask() and not (yes or options.as_json)
    store = store_named(options.state)
    try:
        found = [each for each in store.open_changes() if server in (None, each[1].server)]
        accepted = run_async(lambda: _accepted(found)) if asking else found if yes else []
        for spec, change in accepted:
            store.accept_change(spec, change)
    finally:
        store.close()
    if options.as_json:
        write_json({"changes": [_change_document(change, accepted=yes) for _, change in found]})
    elif not (asking and found):
        write_line("\n".join(_changes([change for _, change in found])))
    if left := len(found) - len(accepted):
        warn(f"{left} of {len(found)} changes not accepted{'' if asking else '; --yes accepts every change shown'}")
        return NOT_APPROVED
    return OK


async def _accepted(found: Sequence[tuple[str, DefinitionChange]]) -> Sequence[tuple[str, DefinitionChange]]:
    return [each for each in found if await says_yes("\n".join([*_changes([each[1]]), "Accept it? [y/N] "]))]


def _changes(changes: Sequence[DefinitionChange]) -> list[str]:
    if not changes:
        return ["no tool or skill has changed since its first use"]
    return [line for change in changes for line in (_head(change), *change.diff.split("\n"), "")]


def _head(change: DefinitionChange) -> str:
    return visible(f"{change.server}: {change.tool}: {', '.join(change.fields)}")


def _change_document(change: DefinitionChange, *, accepted: bool) -> dict[str, Any]:
    return {**pick(change, "server", "kind", "tool", "fields", "diff"), "accepted": accepted}
