"""The name of a server that is given by its command alone: that of the program that runs, not of its launcher. Pure.

A name is shown, logged and sent to clients, and a command line may hold secrets: a name is made of a package, a module,
an image or a path, and of nothing that could be an option's value. An option that is not known ends the reading,
because the next word may be its value: then the server is called after its launcher.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Final, Literal

from mcp_nursery.actors.process.command import CONTAINER_CLIENTS
from mcp_nursery.actors.records import evolve, frozen

LONGEST: Final = 64
"""Characters of a name."""

_GENERIC = re.compile(
    "app|bin|build|cjs|cli|cmd|debug|dev|dist|esm|index|lib|main|mcp|mcp[-_]server|mod|node[-_]modules|out|packages"
    "|release|run|scripts|server|src|start|stdio|target|venv",
    re.IGNORECASE,
)
"""Words too general to name a server; its package or folder is named instead."""

_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")
_FILE_SUFFIX = re.compile(r"\.(py|[mc]?js|[mc]?ts|tsx|jar|sh|exe|git|tgz|whl)$")
_OBJECT = re.compile(r"(?<=\.py):\w+$")
_ADDRESS = re.compile(r"^((git\+)?[a-z]+://[^/]*|git@[^:]*:)")
"""An address up to its path, with what may be a password."""
_REGISTRY = re.compile(r"^((npm|jsr|github):/?|localhost:\d+/)")
_VERSION = re.compile(r"(?<=.)[\[<>=!~;#?\s@:].*")
"""Extras, versions, markers, tags and digests after the name of a package or an image."""


def name_of_command(command: Sequence[str], folder: str) -> str:
    """Make a name from a command: `A-Z`, `a-z`, `0-9`, `.`, `_` and `-`, 64 characters at most. Relative paths are
    resolved from the folder, which is absolute."""
    return _name(command, folder) or _clean(PurePath(command[0]).stem) or "server"


def _name(command: Sequence[str], folder: str) -> str | None:
    """The name; None if the program is unclear."""
    launcher = _LAUNCHERS.get(re.sub(r"(?<=[a-z])[\d.]+$", "", PurePath(command[0]).name.removesuffix(".exe")))
    return _name_of(command[0], folder) if launcher is None else launcher.name(command[1:], folder)


def _name_of(word: str, folder: str) -> str | None:
    """The name of a package, an image, a file or an address, without its scope, registry and version."""
    path, addresses = _ADDRESS.subn("", _OBJECT.sub("", word))
    if not addresses and (path.startswith(("/", ".")) or _FILE_SUFFIX.search(path)):
        return _first_special(os.path.normpath(os.path.join(folder, path)).split("/"))
    return _first_special(_VERSION.sub("", part) for part in _REGISTRY.sub("", path).split("/"))


def _first_special(names: Iterable[str]) -> str | None:
    """The last name that is not too general, else the last."""
    cleaned = [name for name in map(_clean, names) if name][::-1]
    return next((name for name in cleaned if not _GENERIC.fullmatch(name)), cleaned[0] if cleaned else None)


def _clean(text: str) -> str:
    """The text as a name; empty if it holds a value, or nothing of a name."""
    return "" if "=" in text else _FOREIGN.sub("-", _FILE_SUFFIX.sub("", text)).strip("-._")[:LONGEST].rstrip("-._")


@frozen
class _Launcher:
    """The words of a launcher's command before the program that it starts, as patterns of a whole word."""

    alone: str = ""
    """Options without a value; the group `module` ends them."""
    valued: str = ""
    """Options whose next word is their value."""
    verbs: str = ""
    """Other words; one is needed, unless the pattern matches an empty word, too."""
    starts: Literal["command", "file", "image"] = "command"

    def name(self, words: Sequence[str], folder: str) -> str | None:
        """The name of the program that it starts; None if the words are unclear."""
        rest, has_verb = list(words), re.fullmatch(self.verbs, "")
        while rest:
            option, equals, value = (word := rest.pop(0)).partition("=")
            alone, verb = re.fullmatch(self.alone, word), re.fullmatch(self.verbs, word)
            if alone and alone.lastgroup == "module" and rest:
                special = _name(rest, folder) if rest[0] in ("mcp", "fastmcp") else None
                return special or _first_special(rest[0].split("."))
            if not (word.startswith("-") or verb):
                return self._name_started([word, *rest], folder) if has_verb else None
            if not (equals or alone or verb or word == "--"):
                if not rest or not re.fullmatch(self.valued, option):
                    return None
                value = rest.pop(0)
            has_verb = has_verb or verb
            folder = os.path.join(folder, value) if option in ("--directory", "--cwd") else folder
        return None

    def _name_started(self, command: Sequence[str], folder: str) -> str | None:
        if self.starts == "command":
            return _name(command, folder)
        is_path = "/" in command[0] or _FILE_SUFFIX.search(_OBJECT.sub("", command[0]))
        return _name_of(command[0], folder) if is_path or self.starts == "image" else None


_NPX = _Launcher("-[ynqs]|--(yes|no-install|quiet|bun|offline|prefer-offline)", "-p|--(package|registry)")
_UV = _Launcher(
    "-[qn]|--(quiet|no-cache|offline|isolated|no-project|frozen|locked|no-sync)|(?P<module>-m|--module)",
    "-[wp]|--(from|with|python|directory|project|index|index-url|extra|env-file)",
)
_FILE = _Launcher(starts="file")
_DOCKER = _Launcher(
    "-[itd]+|--(interactive|tty|rm|init|privileged|read-only)",
    "-[evpwuc]|--(env|env-file|volume|mount|name|publish|network|entrypoint|workdir|user|platform|pull|context)",
    "container|run|exec",
    "image",
)
_LAUNCHERS: Mapping[str, _Launcher] = {
    **dict.fromkeys(("npx", "bunx", "pnpx"), _NPX),
    **dict.fromkeys(("npm", "pnpm", "yarn"), evolve(_NPX, verbs="exec|x|dlx")),
    "uvx": _UV,
    "uv": evolve(_UV, verbs="tool|run"),
    **dict.fromkeys(("pipx", "poetry", "pdm", "hatch", "rye", "pixi"), _Launcher(valued="--spec", verbs="run")),
    **dict.fromkeys(
        ("python", "pypy"), evolve(_FILE, alone="-[bBEIOPqsSu]+|(?P<module>-[bBEIOPqsSu]*m)", valued="-[WX]")
    ),
    **dict.fromkeys(("mcp", "fastmcp"), evolve(_FILE, valued="-t|--(transport|with)", verbs="|run|dev")),
    **dict.fromkeys(
        ("node", "nodejs", "tsx", "ts-node"),
        evolve(_FILE, alone="--(no-warnings|enable-source-maps|watch)", valued="-r|--(require|import|env-file)"),
    ),
    **dict.fromkeys(("sh", "bash", "dash", "zsh"), _FILE),
    "bun": evolve(_FILE, alone="--(watch|hot|silent|bun)", valued="--cwd", verbs="|run"),
    "deno": evolve(_FILE, alone="-[ARWNES]+|--(allow|no)-[a-z]+", valued="-c|--config", verbs="|run|serve"),
    "java": evolve(_FILE, alone="-jar|-X.+"),
    **dict.fromkeys(CONTAINER_CLIENTS, _DOCKER),
    "env": _Launcher(valued="-u", verbs=r"|\w+=.*"),
    "cmd": _Launcher(verbs="/[cC]"),
}
