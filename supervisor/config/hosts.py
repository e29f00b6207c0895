"""The hosts that the gateway can be installed in: where each keeps its servers, how it writes one down, and which
variables it replaces itself. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from attrs import frozen

from .dialects import DIALECTS, Dialect, opencode
from .document import as_object
from .variables import variables_in

SERVER = "mcp-nursery"
"""What the gateway is called in a host's file."""

_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_NOTHING = "(?!)"
_PLACES = "userHome|pathSeparator|/"


def _plain(argv: Sequence[str]) -> dict[str, Any]:
    return {"command": argv[0], "args": list(argv[1:])}


def _typed(argv: Sequence[str]) -> dict[str, Any]:
    return {"type": "stdio", **_plain(argv)}


def _required(argv: Sequence[str]) -> dict[str, Any]:
    """Codex waits a second for a server that is not required, and goes without its tools."""
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
    """As it is given on the command line."""
    title: str
    dialect: Dialect
    user: tuple[str, ...]
    """The file of its user, in the home folder; of several the one that is there, else the first."""
    project: tuple[str, ...]
    """The file of a project, in its folder; empty where it has none."""
    written: Callable[[Sequence[str]], dict[str, Any]] = _plain
    """An entry that starts this command."""
    replaces: str = _NOTHING
    """Which `${…}` it replaces itself, a pattern of what is between the braces. Others are text to it."""
    passes: Callable[[Sequence[str]], dict[str, Any]] = _nothing
    """What an entry says besides to be given these variables, if the host keeps them back else."""

    def root(self, document: Mapping[str, Any]) -> tuple[str, ...]:
        """Where in the file its servers stand, or would."""
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
        written=_typed,
        replaces=f"{_NAME}(:-.*)?",
    ),
    HostProgram("claude-desktop", "Claude Desktop", _CLAUDE, _CLAUDE.user[1:], ()),
    # The folder that is open is known to nobody else, and not where Cursor starts a server.
    HostProgram(
        "cursor",
        "Cursor",
        _CURSOR,
        _CURSOR.user,
        _CURSOR.project,
        written=_typed,
        replaces=f"env:{_NAME}|{_PLACES}",
    ),
    HostProgram(
        "vscode",
        "VS Code",
        _VSCODE,
        _VSCODE.user,
        _VSCODE.project,
        written=_typed,
        replaces=f"env:{_NAME}|{_PLACES}|workspaceFolder(Basename)?|input:.*",
    ),
    HostProgram(
        "gemini",
        "Gemini CLI",
        _GEMINI,
        _GEMINI.user,
        _GEMINI.project,
        replaces=f"{_NAME}(:-.*)?",
        passes=_by_value,
    ),
    HostProgram("codex", "Codex", _CODEX, _CODEX.user, _CODEX.project, written=_required, passes=_by_name),
    HostProgram("opencode", "OpenCode", _OPENCODE, _OPENCODE.user, _OPENCODE.project, written=_one_list),
)
"""In the order in which they are shown."""


def is_gateway(own: Mapping[str, Any]) -> bool:
    """Whether an entry, in our words, starts mcp-nursery for servers of a file: behind itself it would start itself,
    and so on."""
    match own:
        case {"command": str(command), "args": [*args]}:
            return PurePath(command).name == SERVER and args[:1] == ["serve"] and "--" not in args
        case _:
            return False


def projects_with_servers(document: Mapping[str, Any]) -> int:
    """For how many single projects Claude Code keeps servers in its user's file."""
    projects = as_object(document.get("projects")) or {}
    return sum(bool((as_object(said) or {}).get("mcpServers")) for said in projects.values())


def foreign_variable(host: HostProgram, text: str) -> str | None:
    """A variable of ours in the text that is none to this host, or known to it alone; None if there is none."""
    return next((each for each in variables_in(text) if not re.fullmatch(host.replaces, each)), None)
