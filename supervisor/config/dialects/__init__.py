"""Whose words a configuration file is written in, and where each host keeps its own. Pure."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, cast

from attrs import frozen

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.config.document import as_object

from . import claude, codebuddy, codex, cursor, fastmcp, gemini, opencode, vscode, windsurf
from .translation import Translate, Translation, in_our_words

__all__ = ["DIALECTS", "OWN", "Dialect", "Translation", "entries_of", "recognise"]


def _no_marks(_entry: dict[str, Any]) -> bool:
    return False


def _never_off(_document: Mapping[str, Any], _server: str) -> bool:
    return False


@frozen
class Dialect:
    """How one host writes its configuration."""

    name: str
    """The host's, for people."""
    roots: tuple[str, ...]
    """The keys of a file under which its servers may stand."""
    translate: Translate = in_our_words
    project: tuple[str, ...] = ()
    """Its files in the folder of a project."""
    user: tuple[str, ...] = ()
    """Its files in the user's home."""
    marks: Callable[[dict[str, Any]], bool] = _no_marks
    """Whether an entry is written as only this host does."""
    is_off: Callable[[Mapping[str, Any], str], bool] = _never_off
    """Whether the rest of a file switches off the server of this name."""
    shares: bool = False
    """Whether its files are another program's settings: what else they hold is not for us, whatever it looks like."""


_SUPPORT = "Library/Application Support" if sys.platform == "darwin" else ".config"

OWN = Dialect("mcp-nursery", ("mcpServers",))

_CLAUDE = Dialect(
    "Claude",
    ("mcpServers",),
    claude.translate,
    project=(".mcp.json",),
    user=(".claude.json", f"{_SUPPORT}/Claude/claude_desktop_config.json"),
)
_VSCODE = Dialect(
    "VS Code",
    ("servers",),
    vscode.translate,
    project=(".vscode/mcp.json",),
    user=(f"{_SUPPORT}/Code/User/mcp.json",),
)
_CURSOR = Dialect(
    "Cursor", ("mcpServers",), cursor.translate, project=(".cursor/mcp.json",), user=(".cursor/mcp.json",)
)
_CODEBUDDY = Dialect(
    "CodeBuddy",
    ("mcpServers", "servers"),
    codebuddy.translate,
    project=(".codebuddy/mcp.json",),
    user=(".codebuddy/mcp.json", ".codebuddy.json"),
    marks=codebuddy.marks,
)
_WINDSURF = Dialect(
    "Windsurf",
    ("mcpServers",),
    windsurf.translate,
    project=(".windsurf/mcp_config.json",),
    user=(".codeium/windsurf/mcp_config.json",),
    marks=windsurf.marks,
)
_GEMINI = Dialect(
    "Gemini CLI",
    ("mcpServers",),
    gemini.translate,
    project=(".gemini/settings.json",),
    user=(".gemini/settings.json",),
    marks=gemini.marks,
    is_off=gemini.is_off,
)
_CODEX = Dialect(
    "Codex", ("mcp_servers",), codex.translate, project=(".codex/config.toml",), user=(".codex/config.toml",)
)
_OPENCODE = Dialect(
    "OpenCode",
    ("mcp",),
    opencode.translate,
    project=("opencode.json", "opencode.jsonc"),
    user=(".config/opencode/opencode.json", ".config/opencode/opencode.jsonc"),
)
_SIDECAR = Dialect(
    "SideCar",
    ("sidecar.mcpServers",),  # one key with a dot in it, as VS Code writes settings
    project=(".vscode/settings.json",),
    user=(f"{_SUPPORT}/Code/User/settings.json",),
    shares=True,
)
_FASTMCP = Dialect("FastMCP", ("mcpServers",), fastmcp.translate, marks=fastmcp.marks)

DIALECTS = (_CLAUDE, _VSCODE, _CURSOR, _CODEBUDDY, _WINDSURF, _GEMINI, _CODEX, _OPENCODE, _SIDECAR, _FASTMCP)
"""All but our own, in the order in which they are looked for: of two that fit, the first is taken."""

_BY_ROOT = {"mcpServers": OWN, "servers": _VSCODE, "mcp_servers": _CODEX, "mcp": _OPENCODE, _SIDECAR.roots[0]: _SIDECAR}
"""Whose a file is of which nothing else is known, in this order."""


def recognise(file: str, document: Mapping[str, Any]) -> tuple[Dialect, str]:
    """Whose words the file is written in, and the key under which its servers stand.

    Its place decides, if what it holds fits; else entries that only one host writes so; else that key.

    Raises:
        ConfigError: It has none of those keys.
    """
    wanted = OWN.roots[0]
    for dialect in DIALECTS:
        if _is_a_place_of(dialect, file):
            wanted = dialect.roots[0]
            root = next((root for root in dialect.roots if root in document), None)
            if root is not None:
                return dialect, root
            if dialect.shares:
                raise ConfigError("missing: an object with one entry a server", file=file, field=wanted)
    for root, dialect in _BY_ROOT.items():
        if root in document:
            entries = [entry for _, value in _entries(document, root) if (entry := as_object(value)) is not None]
            marked = (each for each in DIALECTS if root in each.roots and any(map(each.marks, entries)))
            listed = _CODEBUDDY if root == "servers" and isinstance(document[root], list) else dialect
            return next(marked, listed), root
    raise ConfigError("missing: an object with one entry a server", file=file, field=wanted)


def entries_of(file: str, document: Mapping[str, Any], dialect: Dialect, root: str) -> list[tuple[str, Any]]:
    """The servers of a file by name, in order.

    Raises:
        ConfigError: They are neither an object nor, for CodeBuddy, a list of objects with a `name`, or two of those
            have the same.
    """
    if not isinstance(document[root], list | dict if dialect is _CODEBUDDY else dict):
        raise ConfigError("an object with one entry a server wanted", file=file, field=root)
    entries = list(_entries(document, root))
    names: set[str] = set()
    for name, _ in entries:
        if name in names and name:
            raise ConfigError(f"the name {name[:80]!r} stands twice", file=file, field=root)
        names.add(name)
    return entries


def _entries(document: Mapping[str, Any], root: str) -> Iterator[tuple[str, Any]]:
    if isinstance(document[root], list):
        for entry in cast("list[object]", document[root]):
            name = (as_object(entry) or {}).get("name")
            yield name if isinstance(name, str) else "", entry
        return
    servers = as_object(document[root]) or {}
    yield from (opencode.servers(servers) if root == "mcp" else servers).items()


def _is_a_place_of(dialect: Dialect, file: str) -> bool:
    parts = Path(file).absolute().parts
    places = (PurePath(place).parts for place in (*dialect.project, *dialect.user))
    return any(parts[-len(place) :] == place for place in places) or (
        dialect is _CLAUDE and parts[-1:] == ("claude_desktop_config.json",)
    )
