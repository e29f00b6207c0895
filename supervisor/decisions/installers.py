"""The commands that install what they start: their first start takes as long as a download. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType

from mcp_nursery.actors.process.command import CONTAINER_CLIENTS

_ALWAYS = frozenset({"npx", "pnpx", "bunx", "uvx"})
"""Commands that install whatever is named to them."""

_WITH_WORD: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "npm": frozenset({"exec", "x"}),
        "pnpm": frozenset({"dlx"}),
        "yarn": frozenset({"dlx"}),
        "bun": frozenset({"x"}),
        "deno": frozenset({"run"}),
        "uv": frozenset({"run"}),
        "pipx": frozenset({"run"}),
        **dict.fromkeys(CONTAINER_CLIENTS, frozenset({"run"})),
    }
)
"""Commands that install with one of these words among their arguments."""


def installer_of(argv: Sequence[str]) -> str | None:
    """The name of the command, such as `npx`, if the command installs the program that it starts; else None. The first
    of `argv` is the command, by name or path."""
    if not argv:
        return None
    name = PurePath(argv[0]).name
    installs = name in _ALWAYS or not _WITH_WORD.get(name, frozenset()).isdisjoint(argv[1:])
    return name if installs else None


def runs_containers(argv: Sequence[str]) -> bool:
    """True if the command starts a container: its own processes are not those of the server."""
    return installer_of(argv) in CONTAINER_CLIENTS
