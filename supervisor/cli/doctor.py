"""`mcp-nursery doctor`: one report about this machine, its files and its servers, to be pasted into a bug report.

Strangers read it: of an entry it has the program and the names of variables, and neither arguments, values
nor the path of a URL. All of it goes through one redactor that knows the secrets of every file, before it is shown.
"""

import os
import platform
import resource
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.process.command import INHERITED
from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.config.deferred import DeferredTransport
from mcp_nursery.supervisor.config.discovery import EntryOrigin, own_file, project_files, user_files
from mcp_nursery.supervisor.config.loader import read_found
from mcp_nursery.supervisor.control.sockets import control_folder, names_of_hosts
from mcp_nursery.supervisor.http_server.listening import bind_socket
from mcp_nursery.supervisor.preload import AHEAD
from mcp_nursery.supervisor.security.redaction import Redactor
from mcp_nursery.supervisor.security.secret_values import secrets_in
from mcp_nursery.supervisor.status import ServerStatus
from mcp_nursery.supervisor.storage.named import store_named
from mcp_nursery.supervisor.storage.sqlite import SqliteStore

from .failures import USAGE
from .files import documents_of
from .installation import describe_installation
from .output import safe_line, write_json, write_line
from .runtime import Options, read_config, run_async
from .status import settle
from .statuses import worked

Document: TypeAlias = dict[str, Any]

_LIMITS: Final = {"open files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC}
_STDERR_LINES: Final = 10
"""Lines of a server's standard error that are shown."""


def doctor(options: Options, *, start: bool, timeout: float) -> int:
    """Describe this machine, its files and its servers. Fails as `status` does, and if a file or an entry has an error.

    Args:
        options: The servers, and how they are shown.
        start: True to start the servers that are trusted, and stop them.
        timeout: Seconds to wait for servers that are connecting.
    """
    config, problems = _read(options)
    files, specs = _files(options)
    entries = run_async(partial(_entries, options, config.servers))
    problems += [entry["error"] for entry in entries if entry["error"]]
    started = run_async(partial(_start, options, config, timeout if start else None))
    for entry in entries:
        entry["start"] = None if (found := started.get(entry["name"])) is None else _start_document(*found)
    report: Document = {
        "versions": _versions(),
        "paths": [_path(what, path) for what, path in _paths(options)],
        "files": files,
        "servers": entries,
        "inherited": [name for name in INHERITED if name in os.environ],
        "hosts": _running(),
        "ports": _ports(),
        "limits": {what: _limit(which) for what, which in _LIMITS.items()},
        "errors": problems,
        "warnings": list(config.warnings),
    }
    shown = _redactor([*specs, *config.servers]).value(report)
    if options.as_json:
        write_json(shown)
    else:
        write_line("\n".join(map(_line, _lines(shown))))
    return USAGE if problems else worked([status for status, _ in started.values()])


def _read(options: Options) -> tuple[Config, list[str]]:
    """The servers that a command with these options would start, and the errors of files."""
    try:
        config = read_config(options)
    except ConfigError as error:
        return Config((), (), ()), [error.fact]
    return config, list(config.errors)


# -- this machine -----------------------------------------------------------------------------------------------------


def _versions() -> Document:
    parts = dict(line.split(maxsplit=1) for line in describe_installation())
    return {**parts, "platform": platform.platform()}


def _ports() -> Document:
    """The addresses of this machine, and whether a port can be had there, as `serve --http` and logins need one."""
    found: Document = {}
    for address in ("127.0.0.1", "::1"):
        try:
            with bind_socket(address, 0):
                found[address] = True
        except ConfigError:
            found[address] = False
    return found


def _paths(options: Options) -> Iterator[tuple[str, Path]]:
    """The places of what outlasts a run. Consent, pins and tokens stand in the state, which may be no file."""
    yield "own servers", own_file()
    store = store_named(options.state)
    try:
        if isinstance(store, SqliteStore):
            yield "state, trust and tokens", store.path
            yield "folder of the state", store.path.parent
    finally:
        store.close()
    yield "sockets of hosts", control_folder()


def _path(what: str, path: Path) -> Document:
    try:
        mode: str | None = stat.filemode(path.stat().st_mode)
    except OSError:
        mode = None
    nearest = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    return {"what": what, "path": str(path), "mode": mode, "writable": os.access(nearest, os.W_OK)}


def _running() -> list[str] | None:
    """The hosts that listen on a control socket; None if the folder is not to be trusted."""
    try:
        return names_of_hosts()
    except OSError:
        return None


def _limit(which: int) -> list[int | None]:
    """The soft and the hard limit; None where there is none."""
    return [None if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(which)]


# -- files and entries ------------------------------------------------------------------------------------------------


def _files(options: Options) -> tuple[list[Document], list[ServerSpec]]:
    """Each file that is named, or that is found for any host, by itself; and the entries of all."""
    origins = [EntryOrigin(str(file)) for file in options.config]
    if not origins:
        origins = [*user_files(hosts=True), *(project_files(Path.cwd()) if options.project else ())]
    documents: list[Document] = []
    specs: list[ServerSpec] = []
    for origin in origins:
        read, errors = read_found([origin])
        entries = [(name, entry.spec) for file in read for name, entry in file.entries]
        specs += [spec for _, spec in entries]
        host = read[0].host if read else None
        names = [name for name, _ in entries]
        documents.append({"file": origin.file, "host": host, "servers": names, "errors": list(errors)})
    return documents, specs


async def _entries(options: Options, specs: Sequence[ServerSpec]) -> list[Document]:
    found = await documents_of(options, specs)
    return [{**entry, **_entry(spec, trusted=entry["trusted"])} for entry, spec in zip(found, specs, strict=True)]


def _entry(spec: ServerSpec, *, trusted: bool) -> Document:
    deferred = spec.transport if isinstance(spec.transport, DeferredTransport) else None
    transport: Any = spec.transport if deferred is None else deferred.transport
    reasons = () if trusted or spec.trust_request is None else spec.trust_request.reasons
    return {
        "enabled": spec.enabled,
        "starts": _program(transport),
        "environment": sorted({**getattr(transport, "env", {}), **({} if deferred is None else deferred.env)}),
        "blocked": [*reasons],
    }


def _program(transport: Any) -> str | None:
    """The program, the image or the machine: an argument, or the path of a URL, may be a secret by itself."""
    text: str = getattr(transport, "command", None) or getattr(transport, "image", None) or ""
    if text:
        return text.split(maxsplit=1)[0]
    try:
        return urlsplit(getattr(transport, "url", "")).hostname
    except ValueError:
        return None


def _redactor(specs: Iterable[ServerSpec]) -> Redactor:
    """The redactor that knows the secrets of these entries and of the environment, which variables may stand for."""
    redactor = Redactor.of(secrets_in(env=os.environ, headers={}))
    for spec in specs:
        redactor = redactor.also_of(spec.transport)
    return redactor


# -- a start ----------------------------------------------------------------------------------------------------------

_Started: TypeAlias = tuple[ServerStatus, float | None]


async def _start(options: Options, config: Config, timeout: float | None) -> Mapping[str, _Started]:
    """Each server when it had settled, and the seconds until then. None of those that are blocked is started; without
    a time limit none at all."""
    if timeout is None or not config.servers:
        await trio.lowlevel.checkpoint()
        return {}
    AHEAD.set(False)  # nothing is called
    begun = trio.current_time()
    took: dict[str, float] = {}
    async with open_supervisor(config, state=options.state, gate=0.0) as supervisor, supervisor.events() as events:

        async def look() -> Sequence[ServerStatus]:
            return supervisor.status()

        async def report(new: Sequence[ServerStatus], _all: Sequence[ServerStatus]) -> None:
            took.update({status.name: trio.current_time() - begun for status in new})

        statuses = await settle(look, events.receive, report, timeout)
    return {status.name: (status, took.get(status.name)) for status in statuses}


def _start_document(status: ServerStatus, took: float | None) -> Document:
    late = status.state is ServerState.CONNECTING
    return {
        "state": status.state.value,
        "seconds": None if took is None else round(took, 3),
        "tools": status.tool_count,
        "error": status.error or ("still connecting" if late else None),
        "stderr": (status.stderr_tail or "").splitlines()[:_STDERR_LINES],
    }


# -- output -----------------------------------------------------------------------------------------------------------


def _line(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" "))] + safe_line(text)


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """The document as lines: `name: value`, and what is within it further to the right."""
    pairs: Iterable[tuple[str, Any]] = (
        cast("Document", value).items() if isinstance(value, dict) else (("-", each) for each in value)
    )
    for name, each in pairs:
        label = name if name == "-" else f"{name}:"
        if isinstance(each, (dict, list)) and each:
            yield indent + label
            yield from _lines(each, f"{indent}  ")
        else:
            yield f"{indent}{label} {_word(cast('object', each))}"


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None or value in ([], {}) else str(value)
