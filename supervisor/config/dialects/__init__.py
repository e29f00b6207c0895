"""The dialects of configuration files, and the places where each host keeps its own. Pure."""

import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, cast

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.records import field, frozen
from mcp_nursery.supervisor.config.document import as_object
from mcp_nursery.supervisor.decisions.suggestions import keys_meant

from . import codex, opencode, other_hosts
from .translation import Translate, Translation

__all__ = ["DIALECTS", "OWN", "Dialect", "Translation", "entries_of", "recognise"]


@frozen
class Dialect:
    """The dialect of one host's configuration."""

    name: str
    """The name of the host, for people."""
    roots: tuple[str, ...]
    """The keys of a file under which its servers may stand."""
    translate: Translate = Translation
    project: tuple[str, ...] = ()
    """The paths of its files in the folder of a project."""
    user: tuple[str, ...] = ()
    """The paths of its files in the user's home."""
    anywhere: tuple[str, ...] = ()
    """Names that only its files have, wherever they are."""
    marks: Mapping[str, type] = field(factory=dict[str, type])
    """Keys of an entry that only this host writes, if the value is of this type."""
    switch: str = "disabled"
    """The key of an entry with which the host switches it off, `enabled` or `disabled`; reading takes either."""
    rules: str | None = None
    """The key of a file whose lists `allowed` and `excluded` switch servers off by their names."""
    shares: bool = False
    """True if its files are another program's settings: their other content is not for us, whatever it looks like."""

    @cached_property
    def places(self) -> tuple[tuple[str, ...], ...]:
        """The endings of the paths of its files."""
        return tuple(PurePath(place).parts for place in (*self.project, *self.user, *self.anywhere))

    def is_off(self, document: Mapping[str, Any], server: str) -> bool:
        """True if the file's `rules` switch a server off."""
        rules = as_object(document.get(self.rules)) or {} if self.rules is not None else {}
        allowed, excluded = rules.get("allowed"), rules.get("excluded")
        return (isinstance(allowed, list) and server not in allowed) or (
            isinstance(excluded, list) and server in excluded
        )


_SUPPORT = "Library/Application Support" if sys.platform == "darwin" else ".config"

OWN = Dialect("mcp-nursery", ("mcpServers",), switch="enabled")

_CLAUDE = Dialect(
    "Claude",
    ("mcpServers",),
    other_hosts.claude,
    project=(".mcp.json",),
    user=(".claude.json", f"{_SUPPORT}/Claude/claude_desktop_config.json"),
    anywhere=("claude_desktop_config.json",),
)
_VSCODE = Dialect(
    "VS Code",
    ("servers",),
    other_hosts.vscode,
    project=(".vscode/mcp.json",),
    user=(f"{_SUPPORT}/Code/User/mcp.json",),
)
_CURSOR = Dialect(
    "Cursor", ("mcpServers",), other_hosts.cursor, project=(".cursor/mcp.json",), user=(".cursor/mcp.json",)
)
_CODEBUDDY = Dialect(
    "CodeBuddy",
    ("mcpServers", "servers"),
    other_hosts.codebuddy,
    project=(".codebuddy/mcp.json",),
    user=(".codebuddy/mcp.json", ".codebuddy.json"),
    marks={"transport": dict},
)
_WINDSURF = Dialect(
    "Windsurf",
    ("mcpServers",),
    other_hosts.windsurf,
    project=(".windsurf/mcp_config.json",),
    user=(".codeium/windsurf/mcp_config.json",),
    marks={"serverUrl": object},
)
_GEMINI = Dialect(
    "Gemini CLI",
    ("mcpServers",),
    other_hosts.gemini,
    project=(".gemini/settings.json",),
    user=(".gemini/settings.json",),
    marks={"httpUrl": object, "includeTools": object, "excludeTools": object},
    rules="mcp",
)
_CODEX = Dialect(
    "Codex",
    ("mcp_servers",),
    codex.translate,
    project=(".codex/config.toml",),
    user=(".codex/config.toml",),
    switch="enabled",
)
_OPENCODE = Dialect(
    "OpenCode",
    ("mcp",),
    opencode.translate,
    project=("opencode.json", "opencode.jsonc"),
    user=(".config/opencode/opencode.json", ".config/opencode/opencode.jsonc"),
    switch="enabled",
)
_SIDECAR = Dialect(
    "SideCar",
    ("sidecar.mcpServers",),  # one key with a dot in it, as VS Code writes settings
    project=(".vscode/settings.json",),
    user=(f"{_SUPPORT}/Code/User/settings.json",),
    shares=True,
)
_FASTMCP = Dialect("FastMCP", ("mcpServers",), other_hosts.fastmcp, marks={"transport": str})

DIALECTS = (_CLAUDE, _VSCODE, _CURSOR, _CODEBUDDY, _WINDSURF, _GEMINI, _CODEX, _OPENCODE, _SIDECAR, _FASTMCP)
"""All dialects but our own, in the order in which they are tried: of two that fit, the first is taken."""

_BY_ROOT = {"mcpServers": OWN, "servers": _VSCODE, "mcp_servers": _CODEX, "mcp": _OPENCODE, _SIDECAR.roots[0]: _SIDECAR}
"""The dialects of files of which only this key is known, in this order."""


def recognise(file: str, document: Mapping[str, Any]) -> tuple[Dialect, str]:
    """The dialect of a file, and the key under which its servers stand.

    The place of the file decides, if its content fits; else an entry that only one host writes so; else that key.

    Raises:
        ConfigError: The file has none of those keys.
    """
    wanted = OWN.roots[0]
    parts = Path(file).absolute().parts
    for dialect in DIALECTS:
        if any(parts[-len(place) :] == place for place in dialect.places):
            wanted = dialect.roots[0]
            root = next((root for root in dialect.roots if root in document), None)
            if root is not None:
                return dialect, root
            if dialect.shares:
                raise _no_servers(file, document, wanted)
    for root, dialect in _BY_ROOT.items():
        if root in document:
            written: list[tuple[str, Any]] = []
            for _, entry in _entries(document, root):
                written += cast("dict[str, Any]", entry).items() if isinstance(entry, dict) else ()
            for each in DIALECTS:
                marked = (isinstance(value, each.marks[key]) for key, value in written if key in each.marks)
                if root in each.roots and any(marked):
                    return each, root
            is_list = root == "servers" and isinstance(document[root], list)
            return _CODEBUDDY if is_list else dialect, root
    raise _no_servers(file, document, wanted)


def _no_servers(file: str, document: Mapping[str, Any], wanted: str) -> ConfigError:
    misspelt = keys_meant(wanted, document)
    meant = f"; did you mean that by {misspelt[0][:80]!r}?" if misspelt else ""
    return ConfigError(f"missing: an object with one entry per server{meant}", file=file, field=wanted)


def entries_of(file: str, document: Mapping[str, Any], dialect: Dialect, root: str) -> list[tuple[str, Any]]:
    """The servers of a file by name, in order.

    Raises:
        ConfigError: The servers are neither an object nor, for CodeBuddy, a list of objects with a `name`, or two of
            these have the same name.
    """
    if not isinstance(document[root], list | dict if dialect is _CODEBUDDY else dict):
        raise ConfigError("must be an object with one entry per server", file=file, field=root)
    entries = _entries(document, root)
    names: set[str] = set()
    for name, _ in entries:
        if name in names and name:
            raise ConfigError(f"the name {name[:80]!r} appears twice", file=file, field=root)
        names.add(name)
    return entries


def _entries(document: Mapping[str, Any], root: str) -> list[tuple[str, Any]]:
    servers = document[root]
    if isinstance(servers, list):
        named = [(as_object(entry) or {}, entry) for entry in cast("list[object]", servers)]
        return [(name if isinstance(name := parts.get("name"), str) else "", entry) for parts, entry in named]
    if not isinstance(servers, dict):
        return []
    found = cast("dict[str, Any]", servers)
    return list((opencode.servers(found) if root == "mcp" else found).items())
