"""`mcp-nursery doctor`: one report about this machine, its files and its servers, to be pasted into a bug report.

Strangers read it: of an entry it shows the program and the names of variables, and neither arguments, values nor the
path of a URL. Messages, which may quote an entry, have the names of its fields in place of their texts.
"""

import os
import platform
import re
import resource
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.http.environment import shown_variables
from mcp_nursery.actors.nurseries import open_bare_nursery
from mcp_nursery.actors.process.command import INHERITED, host_environment, is_about_network
from mcp_nursery.actors.records import evolve
from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.config.deferred import DeferredTransport
from mcp_nursery.supervisor.config.discovery import EntryOrigin, absolute, own_file, project_files, user_files
from mcp_nursery.supervisor.config.loader import File, read_found
from mcp_nursery.supervisor.config.value_sources import EnvFileError, read_env_file
from mcp_nursery.supervisor.control.sockets import control_folder, names_of_hosts
from mcp_nursery.supervisor.http_server.listening import bind_socket
from mcp_nursery.supervisor.preload import AHEAD
from mcp_nursery.supervisor.security.redaction import Redactor
from mcp_nursery.supervisor.security.secret_values import is_plain, secrets_in
from mcp_nursery.supervisor.status import ServerStatus
from mcp_nursery.supervisor.stderr import StderrLines
from mcp_nursery.supervisor.storage.named import store_named
from mcp_nursery.supervisor.storage.sqlite import SqliteStore

from .entry_texts import EntryTexts
from .failures import USAGE
from .files import documents_of
from .output import safe_line, write_json, write_line
from .runtime import Options, read_config, run_async
from .status import settle
from .statuses import still_doing, worked
from .versions import describe_installation

Document: TypeAlias = dict[str, Any]

_LIMITS: Final = {"open files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC}
_OTHER_VARIABLES: Final = (
    "MCP_TIMEOUT",
    "MCP_TOOL_TIMEOUT",
    "MCP_NURSERY_STATE",
    "MCP_NURSERY_TLS_KEY_PASSWORD",
    "MCP_NURSERY_INCARNATION",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "LISTEN_PID",
    "LISTEN_FDS",
    "PGHOST",
    "PGHOSTADDR",
    "PGSSLMODE",
    "SUDO_UID",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "BROWSER",
)
"""Variables that are read besides those about requests and those that servers inherit. Their values are not shown."""
_NOT_SHOWN: Final = "(not shown)"
_HOST: Final = re.compile(r"[a-z0-9.:-]+")
_PLACES: Final = re.compile(r"(?:OLD)?PWD|VIRTUAL_ENV|XDG_\w+")
"""Variables of the environment that name places of files, as the report itself does."""
_STDERR_LINES: Final = 10
"""Lines of a server's standard error that are shown."""


def doctor(options: Options, *, start: bool, timeout: float) -> int:
    """Describe this machine, its files and its servers. With `start`, trusted servers are started, have `timeout`
    seconds to connect, and are stopped. Fails as `status` does, and if a file or an entry has an error."""
    config, problems = _read(options)
    files = _files(options)
    entries = run_async(partial(_entries, options, config.servers))
    started = run_async(partial(_start, options, config, timeout if start else None))
    read = [file for _, file, _ in files if file is not None]
    for entry, spec in zip(entries, config.servers, strict=True):
        entry["start"] = None if (found := started.get(spec.name)) is None else _start_document(*found)
        written = _written(read, spec, trusted=entry["trusted"])
        shown = (value for value in (spec.name, spec.source, entry["starts"]) if value)
        _leave_out(entry, EntryTexts.of(written, environ=os.environ, shown=shown))
    problems += [entry["error"] for entry in entries if entry["error"]]
    report: Document = {
        "versions": _versions(),
        "paths": [_path(what, path) for what, path in _paths(options)],
        "files": [_file(*each) for each in files],
        "servers": entries,
        "variables": {
            **shown_variables(),
            **{name: _NOT_SHOWN for name in _OTHER_VARIABLES if os.environ.get(name)},
        },
        "inherited": [name for name in os.environ if name in INHERITED or is_about_network(name)],
        "hosts": _running(),
        "ports": _ports(),
        "limits": {what: _limit(which) for what, which in _LIMITS.items()},
        "errors": problems,
        "warnings": list(config.warnings),
    }
    redactor = _redactor([*(entry.spec for file in read for _, entry in file.entries), *config.servers])
    report = redactor.value(report)
    if options.as_json:
        write_json(report)
    else:
        write_line("\n".join(map(_line, _lines(report))))
    return USAGE if problems else worked([status for status, *_ in started.values()])


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
    """The addresses of this machine, and whether a port can be bound there, as `serve --http` and logins need one."""
    found: Document = {}
    for address in ("127.0.0.1", "::1"):
        try:
            with bind_socket(address, 0):
                found[address] = True
        except ConfigError:
            found[address] = False
    return found


def _paths(options: Options) -> Iterator[tuple[str, Path]]:
    """The places of all that outlasts a run. Consent, pins and tokens are in the state, which may be no file."""
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
    """The hosts that listen on a control socket; None if the folder cannot be trusted."""
    try:
        return names_of_hosts()
    except OSError:
        return None


def _limit(which: int) -> list[int | None]:
    """The soft and the hard limit; None if there is none."""
    return [None if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(which)]


# -- files and entries ------------------------------------------------------------------------------------------------


_Read: TypeAlias = tuple[EntryOrigin, File | None, Sequence[str]]


def _files(options: Options) -> list[_Read]:
    """Each file that is named, or is found for any host, read by itself, with its errors."""
    origins = [EntryOrigin(str(file)) for file in options.config]
    if not origins:
        origins = user_files(hosts=True)
        with suppress(ConfigError):  # the folder is gone, which the configuration reports as well
            origins += project_files(absolute(os.curdir)) if options.project else ()
    found: list[_Read] = []
    for origin in origins:
        read, errors = read_found([origin])
        found.append((origin, read[0] if read else None, errors))
    return found


def _file(origin: EntryOrigin, file: File | None, errors: Sequence[str]) -> Document:
    names = [] if file is None else [name for name, _ in file.entries]
    return {
        "file": origin.file,
        "host": None if file is None else file.host,
        "servers": names,
        "errors": list(errors),
    }


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
    """The program, the image or the machine alone: an argument, or the path of a URL, may be a secret. So may a text
    that is in the place of a program and is none."""
    text: str = getattr(transport, "command", None) or getattr(transport, "image", None) or ""
    if text:
        whole_or_first = (text, text.split(maxsplit=1)[0])
        return next((each for each in whole_or_first if shutil.which(each)), None) or _if_plain(whole_or_first[1])
    url: str = getattr(transport, "url", "")
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return None
    # In a URL with a variable in it, or with a password in the wrong form, something else looks like the machine.
    is_host = host is not None and _HOST.fullmatch(host) and "@" not in url.partition("://")[2].partition("/")[2]
    return host if is_host or host is None else _NOT_SHOWN


def _if_plain(text: str) -> str:
    return text if is_plain(text) else _NOT_SHOWN


# -- secrets ----------------------------------------------------------------------------------------------------------


def _written(files: Iterable[File], spec: ServerSpec, *, trusted: bool) -> Iterator[Mapping[str, Any]]:
    """The content of the entries of a server, and of all else that it is given: a file of variables, the whole
    environment."""
    for entry in (entry for file in files for name, entry in file.entries if name == spec.name):
        yield {**entry.spec.extra, **entry.own}
        if entry.own.get("inheritEnv") is True:
            yield {"env": host_environment({}, whole=True)}
    path = spec.transport.env_file_path() if isinstance(spec.transport, DeferredTransport) else None
    if path is not None and trusted:
        with suppress(EnvFileError):  # an error of the entry, which has been reported
            yield {"env": read_env_file(path).variables}


def _leave_out(entry: Document, texts: EntryTexts) -> None:
    """Replace the texts of fields in the messages about a server by the names of the fields."""
    for document in (entry, entry["start"] or {}):
        for name in {"error", "blocked", "stderr"} & document.keys():
            said: str | list[str] | None = document[name]
            document[name] = [*map(texts.leave_out, said)] if isinstance(said, list) else said and texts.leave_out(said)


def _redactor(specs: Iterable[ServerSpec]) -> Redactor:
    """The redactor that knows the secrets of these entries and of the environment, to which variables may refer."""
    environ = {
        name: value for name, value in os.environ.items() if name not in INHERITED and not _PLACES.fullmatch(name)
    }
    redactor = Redactor.of(secrets_in(env=environ, headers={}))
    for spec in specs:
        redactor = redactor.also_of(spec.transport)
    return redactor


# -- a start ----------------------------------------------------------------------------------------------------------

_Started: TypeAlias = tuple[ServerStatus, float | None, Sequence[str]]
"""The status of a server when it had settled, the seconds until then, and its first lines on standard error."""


async def _start(options: Options, config: Config, timeout: float | None) -> Mapping[str, _Started]:
    """The starts of the servers, including those that wait for a first call. Blocked servers are not started; without a
    time limit, none are."""
    if timeout is None or not config.servers:
        await trio.lowlevel.checkpoint()
        return {}
    AHEAD.set(False)  # nothing is called
    begun = trio.current_time()
    took: dict[str, float] = {}
    said: dict[str, list[str]] = {}
    eager = config.with_each(lambda spec: evolve(spec, lazy=False))
    async with (
        open_supervisor(eager, state=options.state, gate=0.0) as supervisor,
        supervisor.events() as events,
        AsyncExitStack() as stack,
        open_bare_nursery() as nursery,
    ):
        for spec in config.servers:
            lines = await stack.enter_async_context(supervisor.stderr(spec.name))
            nursery.start_soon(_read_lines, lines, said.setdefault(spec.name, []))

        async def look() -> Sequence[ServerStatus]:
            return supervisor.status()

        async def report(new: Sequence[ServerStatus], _all: Sequence[ServerStatus]) -> None:
            took.update({status.name: trio.current_time() - begun for status in new})

        statuses = await settle(look, events.receive, report, timeout)
        nursery.cancel_scope.cancel()
    return {status.name: (status, took.get(status.name), said[status.name]) for status in statuses}


async def _read_lines(lines: StderrLines, said: list[str]) -> None:
    """Read the first lines of a server."""
    try:
        while len(said) < _STDERR_LINES:
            said.append(await lines.receive())
    except trio.Cancelled:
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while len(said) < _STDERR_LINES:
                said.append(lines.receive_nowait())
        raise


def _start_document(status: ServerStatus, took: float | None, said: Sequence[str]) -> Document:
    late = status.state is ServerState.CONNECTING
    return {
        "state": status.state.value,
        "seconds": None if took is None else round(took, 3),
        "tools": status.tool_count,
        "error": status.error or (still_doing(status) if late else None),
        "stderr": list(said),
    }


# -- output -----------------------------------------------------------------------------------------------------------


def _line(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" "))] + safe_line(text)


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """The document as lines: `name: value`, with inner documents indented."""
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
