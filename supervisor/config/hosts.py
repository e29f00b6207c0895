"""The hosts in which the gateway can be installed: where each keeps its servers, how it writes an entry, which
variables it replaces itself, and which of its servers can go behind the gateway. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from mcp_nursery.actors.records import frozen
from mcp_nursery.supervisor.transports import UnusableTransport

from .dialects import DIALECTS, Dialect, entries_of, opencode
from .dialects.translation import each_text
from .discovery import EntryOrigin
from .document import as_object
from .entry import Entry, read_entry
from .values import FieldError
from .variables import command_of, texts_of, variables_in

GATEWAY_ENTRY = "mcp-nursery"
"""The name of the gateway in a host's file."""

_VARIABLE_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_MATCHES_NOTHING = "(?!)"
_PLACE_NAMES = "userHome|pathSeparator|/"


def _plain(argv: Sequence[str]) -> dict[str, Any]:
    return {"command": argv[0], "args": list(argv[1:])}


def _with_type(argv: Sequence[str]) -> dict[str, Any]:
    return {"type": "stdio", **_plain(argv)}


def _with_required(argv: Sequence[str]) -> dict[str, Any]:
    """The entry of a required server: Codex waits one second for others, and goes on without their tools."""
    return {"required": True, **_plain(argv)}


def _one_list(argv: Sequence[str]) -> dict[str, Any]:
    return {"type": "local", "command": list(argv)}


def _by_name(names: Sequence[str]) -> dict[str, Any]:
    return {"env_vars": list(names)} if names else {}


def _by_value(names: Sequence[str]) -> dict[str, Any]:
    return {"env": {name: f"${name}" for name in names}} if names else {}


def _nothing(_names: Sequence[str]) -> dict[str, Any]:
    return {}


@frozen
class HostProgram:
    """A host that reads its servers from a file."""

    name: str
    """The name by which the command line knows it."""
    title: str
    dialect: Dialect
    user: tuple[str, ...]
    """The file of its user, in the home folder; of several, the one that exists, else the first."""
    project: tuple[str, ...]
    """The file of a project, in the project's folder; empty if the host has none."""
    written: Callable[[Sequence[str]], dict[str, Any]] = _plain
    """The function that makes an entry that starts a command."""
    replaces: str = _MATCHES_NOTHING
    """The pattern of the texts between the braces of those `${…}` that the host replaces itself. Others are plain text
    to it."""
    passes: Callable[[Sequence[str]], dict[str, Any]] = _nothing
    """The function that returns the members by which an entry is passed these variables, if the host holds them back
    otherwise."""

    def root(self, document: Mapping[str, Any]) -> tuple[str, ...]:
        """The path in the file at which its servers stand, or would."""
        root = next((root for root in self.dialect.roots if root in document), self.dialect.roots[0])
        nested = opencode.nested_servers(as_object(document.get(root)) or {}) if root == "mcp" else None
        return (root,) if nested is None else (root, "servers")


def _of(title: str) -> Dialect:
    return next(dialect for dialect in DIALECTS if dialect.name == title)


_CLAUDE, _GEMINI, _CODEX, _OPENCODE = map(_of, ("Claude", "Gemini CLI", "Codex", "OpenCode"))
_CURSOR, _VSCODE = map(_of, ("Cursor", "VS Code"))

HOSTS = (
    HostProgram(
        "claude-code",
        "Claude Code",
        _CLAUDE,
        _CLAUDE.user[:1],
        _CLAUDE.project,
        written=_with_type,
        replaces=f"{_VARIABLE_NAME}(:-.*)?",
    ),
    HostProgram("claude-desktop", "Claude Desktop", _CLAUDE, _CLAUDE.user[1:], ()),
    # Cursor alone knows the folder that is open, and does not start servers there.
    HostProgram(
        "cursor",
        "Cursor",
        _CURSOR,
        _CURSOR.user,
        _CURSOR.project,
        written=_with_type,
        replaces=f"env:{_VARIABLE_NAME}|{_PLACE_NAMES}",
    ),
    HostProgram(
        "vscode",
        "VS Code",
        _VSCODE,
        _VSCODE.user,
        _VSCODE.project,
        written=_with_type,
        replaces=f"env:{_VARIABLE_NAME}|{_PLACE_NAMES}|workspaceFolder(Basename)?|input:.*",
    ),
    HostProgram(
        "gemini",
        "Gemini CLI",
        _GEMINI,
        _GEMINI.user,
        _GEMINI.project,
        replaces=f"{_VARIABLE_NAME}(:-.*)?",
        passes=_by_value,
    ),
    HostProgram("codex", "Codex", _CODEX, _CODEX.user, _CODEX.project, written=_with_required, passes=_by_name),
    HostProgram("opencode", "OpenCode", _OPENCODE, _OPENCODE.user, _OPENCODE.project, written=_one_list),
)
"""The hosts, in the order in which they are shown."""


def is_gateway(own: Mapping[str, Any]) -> bool:
    """True if an entry, in our words, starts mcp-nursery for servers of a file: behind the gateway it would start
    itself, without end."""
    match own:
        case {"command": str(command), "args": [*args]}:
            return PurePath(command).name == GATEWAY_ENTRY and args[:1] == ["serve"] and "--" not in args
        case _:
            return False


def projects_with_servers(document: Mapping[str, Any]) -> int:
    """The number of projects for which Claude Code keeps servers in its user's file."""
    projects = as_object(document.get("projects")) or {}
    return sum(bool((as_object(said) or {}).get("mcpServers")) for said in projects.values())


def foreign_variable(host: HostProgram, text: str) -> str | None:
    """A variable in the text that is plain text to this host, or known to this host alone; None if there is none."""
    return next((each for each in variables_in(text) if not re.fullmatch(host.replaces, each)), None)


# -- a host's servers as entries of our file, behind the gateway, which starts them as the host would ------------------
#
# The gateway is started by the host, with the host's environment and in its working directory, so that variables have
# the same values. What cannot be the same is refused, and stays with the host.

_HOST_VARIABLE = re.compile(r"\$\{(env:)?([A-Za-z_][A-Za-z0-9_]*)(:-[^{}]*)?\}")


@frozen
class Adoption:
    """The servers of a host's file that can go behind the gateway, and those that cannot."""

    entries: Mapping[str, Mapping[str, Any]]
    """The servers that can, as entries in our words."""
    stay: Mapping[str, str]
    """The reasons why the others cannot, one line each."""
    notes: tuple[str, ...]
    """The differences behind the gateway, one line each."""


def host_variables_in(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """The variables of the host's environment that entries in our words ask for."""
    found: set[str] = set()
    for own in entries:
        known = as_object(own.get("env")) or {}
        for text in texts_of(dict(own)):
            found.update(name for outside, name, _ in _HOST_VARIABLE.findall(text) if outside or name not in known)
    return sorted(found)


def servers_in(file: str, document: Mapping[str, Any], dialect: Dialect, root: tuple[str, ...]) -> dict[str, Entry]:
    """The servers of a host's file by name. Those at another place in it are left out.

    Raises:
        ConfigError: The servers are not an object.
    """
    if root[0] not in document:
        return {}
    inner = document[root[0]][root[1]] if root[1:] else document[root[0]]
    origin = EntryOrigin(file, root=root[0])
    found: dict[str, Entry] = {}
    for number, (name, value) in enumerate(entries_of(file, document, dialect, root[0]), 1):
        if name in inner:
            entry = read_entry(name, value, number=number, origin=origin, dialect=dialect)
            found[name] = entry.off() if dialect.is_off(document, name) else entry
    return found


def adopt(host: HostProgram, document: Mapping[str, Any], servers: Mapping[str, Entry]) -> Adoption:
    """The adoption of a host's servers: which can go behind the gateway, and which stay."""
    entries: dict[str, Mapping[str, Any]] = {}
    stay: dict[str, str] = {}
    notes: list[str] = []
    written = document
    for key in host.root(document):
        written = written.get(key, {})
    for name, entry in servers.items():
        try:
            entries[name] = _move_behind(host, written[name], entry)
        except FieldError as error:
            stay[name] = f"{error.key}: {error}" if error.key else str(error)
        else:
            notes += [f"{name}: {key!r} means nothing behind the gateway" for key in entry.spec.extra]
    return Adoption(entries, stay, tuple(notes))


def _move_behind(host: HostProgram, written: object, entry: Entry) -> dict[str, Any]:
    """The entry in our words.

    Raises:
        FieldError: The entry cannot mean the same as for the host.
    """
    transport: Any = entry.spec.transport
    if isinstance(transport, UnusableTransport):
        raise FieldError(transport.error.problem, transport.error.field)
    if is_gateway(entry.own):
        raise FieldError("is mcp-nursery itself")
    for key, value in (as_object(written) or {}).items():
        for text in texts_of(value):
            variable = foreign_variable(host, text)
            if variable is not None:
                shown = variable.partition(":-")[0][:80]
                raise FieldError(f"${{{shown}}} is for {host.title} alone to make something of, or text", key)
    for key in ("env", "headers", "auth"):
        for value in (as_object(entry.own.get(key)) or {}).values():
            if isinstance(value, str) and command_of(value) is not None:
                raise FieldError("a value that begins with '!' would be run as a command", key)
    own = {**entry.own, **_qualify_variables(entry.own), **_headers(entry.own)}
    if transport.kind == "stdio":
        own.setdefault("inheritEnv", True)
    return own


def _qualify_variables(own: Mapping[str, Any]) -> dict[str, Any]:
    """The texts of an entry in which the host's variables are looked up in its environment, as the host does: otherwise
    the entry's own `env` would take precedence."""
    known = as_object(own.get("env")) or {}

    def meant(match: re.Match[str]) -> str:
        return f"${{env:{match[2]}{match[3] or ''}}}" if match[2] in known else match[0]

    texts = {key: own[key] for key in ("command", "args", "cwd", "url") if key in own}
    return {key: each_text(value, lambda text: _HOST_VARIABLE.sub(meant, text)) for key, value in texts.items()}


def _headers(own: Mapping[str, Any]) -> dict[str, Any]:
    """The headers, with the host's variables in them passed on in `env`: behind the gateway they see nothing else."""
    headers, env = as_object(own.get("headers")), dict(as_object(own.get("env")) or {})
    if not headers:
        return {}

    def passed_on(match: re.Match[str]) -> str:
        name, default = match[2], match[3] or ""
        again = _HOST_VARIABLE.fullmatch(env.setdefault(name, f"${{env:{name}{':-' if default else ''}}}"))
        if again is None or again[2] != name:
            raise FieldError(f"${{{name}}} is not what {name} is in env", "headers")
        return f"${{{name}{default}}}"

    said = {name: _HOST_VARIABLE.sub(passed_on, text) for name, text in headers.items()}
    return {"headers": said, **({"env": env} if env else {})}
