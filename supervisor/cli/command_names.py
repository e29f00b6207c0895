"""The name of a server that is given by its command alone: that of what runs, not of what starts it. Pure.

A name is shown, logged and told to clients, and a command line may hold secrets: a name is made of a package, a module,
an image or a path, and of nothing that could be an option's value.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Final
from urllib.parse import urlsplit

from .launcher_options import (
    BUN,
    DENO,
    DOCKER,
    DOCKER_RUN,
    ENV,
    JAVA,
    NODE,
    NPX,
    PIPX,
    PYTHON,
    SDK,
    SHELL,
    UV,
    LauncherOptions,
    words,
)

LONGEST: Final = 64
"""Characters of a name."""

_GENERIC = words(
    """app bin build cjs cli cmd debug dev dist esm index lib main mcp mcp-server mod node-modules out packages release
    run scripts server src start stdio target venv"""
)
"""Words that do not tell one server from another; their package or folder does."""

_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")
_REQUIREMENT = re.compile(r"[\[<>=!~;#\s@].*$")
"""Extras, versions and markers after the name of a package."""
_ASSIGNMENT = re.compile(r"\w+=")
_SUFFIX = re.compile(r"\.(py|[mc]?js|[mc]?ts|tsx|jar|sh|exe|git|tgz|whl)$")
_ADDRESS = re.compile(r"(git\+)?[a-z]+://|git@")


def name_of_command(command: Sequence[str], folder: str) -> str:
    """A name of `A-Z`, `a-z`, `0-9`, `.`, `_` and `-`, of 64 characters at most.

    Args:
        command: The program, and its arguments.
        folder: Where it runs, absolute: a relative path is taken from there.
    """
    return _name(command, folder) or _clean(PurePath(command[0]).stem) or "server"


def _name(command: Sequence[str], folder: str) -> str | None:
    """None: it is not clear what runs."""
    if not command:
        return None
    program, *arguments = command
    launcher = re.sub(r"(?<=[a-z])[\d.]+$", "", PurePath(program).name.removesuffix(".exe"))
    if launcher in _LAUNCHERS:
        return _LAUNCHERS[launcher](arguments, folder)
    return _path(program, folder) if _is_path(program) else _telling([_stem(program)])


# -- names of what runs -----------------------------------------------------------------------------------------------


def _telling(names: Iterable[str]) -> str | None:
    """The first that tells it from other servers, else the first."""
    cleaned = [name for name in map(_clean, names) if name]
    special = (name for name in cleaned if name.lower().replace("_", "-") not in _GENERIC)
    return next(special, cleaned[0] if cleaned else None)


def _clean(text: str) -> str:
    """The text as a name; empty if it holds a value, or nothing of a name."""
    return "" if "=" in text else _FOREIGN.sub("-", text).strip("-._")[:LONGEST].rstrip("-._")


def _stem(text: str) -> str:
    return _SUFFIX.sub("", text.rpartition("/")[2])


def _is_path(word: str) -> bool:
    return "/" in word or bool(_SUFFIX.search(word))


def _path(path: str, folder: str) -> str | None:
    """Of a file, or of the folder that it is the program of."""
    if _ADDRESS.match(path):
        return _address(path)
    *folders, file = os.path.normpath(os.path.join(folder, path)).split("/")
    return _telling([_stem(file), *reversed(folders)])


def _address(url: str) -> str | None:
    """The last of a path that tells something, without versions; never the part that may hold a password."""
    try:
        path = url.partition(":")[2] if url.startswith("git@") else urlsplit(url).path
    except ValueError:
        return None
    return _telling(_stem(part.partition("@")[0]) for part in reversed(path.split("/")))


def _package(package: str, folder: str) -> str | None:
    """Without scope and version."""
    package = re.sub(r"^(npm|jsr):/?", "", package)
    if _ADDRESS.match(package):
        return _address(package)
    if package.startswith((".", "/")) or _SUFFIX.search(package):
        return _path(package, folder)
    scope, slash, name = package.removeprefix("@").partition("/")
    if not slash:
        scope, name = "", package
    elif package.startswith("@"):
        name = name.partition("/")[0]
    return _telling([_REQUIREMENT.sub("", name.rpartition("/")[2]), scope.rpartition(":")[2]])


def _module(module: str) -> str | None:
    return _telling(reversed(module.split(".")))


def _image(image: str) -> str | None:
    """Without registry, tag and digest."""
    first, *others = image.partition("@")[0].split("/")
    parts = others if others and (set(first) & {".", ":"} or first == "localhost") else [first, *others]
    return _telling(part.partition(":")[0] for part in reversed(parts))


# -- launchers --------------------------------------------------------------------------------------------------------

_Launcher = Callable[[Sequence[str], str], str | None]


def _read(options: LauncherOptions, arguments: Sequence[str]) -> tuple[Mapping[str, str], Sequence[str]]:
    """The options with a value, and what is started: at least one word, which is empty if that is not clear."""
    given, rest = options.read(arguments) or ({}, ())
    return given, rest or ("",)


def _npx(arguments: Sequence[str], folder: str) -> str | None:
    given, rest = _read(NPX, arguments)
    return _package(rest[0] or given.get("--package", given.get("-p", "")), folder)


def _verb(verbs: Iterable[str], options: LauncherOptions, start: _Launcher) -> _Launcher:
    """A launcher that says with a verb what it does, such as `npm exec`."""

    def name(arguments: Sequence[str], folder: str) -> str | None:
        _, (verb, *rest) = _read(options, arguments)
        return start(rest, folder) if verb in verbs else None

    return name


def _uvx(arguments: Sequence[str], folder: str) -> str | None:
    return _package(_read(UV, arguments)[1][0], folder)


def _uv(arguments: Sequence[str], folder: str) -> str | None:
    given, (verb, *rest) = _read(UV, arguments)
    folder = os.path.join(folder, given.get("--directory", ""))
    if verb == "tool" and rest[:1] == ["run"]:
        return _uvx(rest[1:], folder)
    if verb != "run":
        return None
    given, command = _read(UV, rest)
    if module := given.get("-m", given.get("--module")):
        return _python(["-m", module, *command], folder)
    return _name([word for word in command if word], os.path.join(folder, given.get("--directory", "")))


def _pipx(arguments: Sequence[str], folder: str) -> str | None:
    return _package(_read(PIPX, arguments)[1][0], folder)


def _python(arguments: Sequence[str], folder: str) -> str | None:
    given, rest = _read(PYTHON, arguments)
    module = given.get("-m")
    if module in _SDKS:
        return _sdk(rest, folder) or module
    return _module(module) if module else _script(given, rest, folder)


def _sdk(arguments: Sequence[str], folder: str) -> str | None:
    """Of the file of a server, with or without the object in it."""
    _, (verb, *rest) = _read(SDK, arguments)
    file = _read(SDK, rest)[1][0].partition(":")[0]
    return _path(file, folder) if verb == "run" and _is_path(file) else None


def _interpreter(options: LauncherOptions) -> _Launcher:
    def name(arguments: Sequence[str], folder: str) -> str | None:
        return _script(*_read(options, arguments), folder)

    return name


def _script(given: Mapping[str, str], rest: Sequence[str], folder: str) -> str | None:
    """Of a file; None for a program that is given as text, or on standard input."""
    if given.keys() & {"-c", "-e", "--eval", "-p", "--print"} or rest[0] in ("", "-"):
        return None
    return _path(rest[0], folder)


def _bun(arguments: Sequence[str], folder: str) -> str | None:
    given, rest = _read(BUN, arguments)
    if rest[0] == "x":
        return _npx(rest[1:], folder)
    if rest[0] == "run":
        more, rest = _read(BUN, rest[1:])
        given = {**given, **more}
    return _path(rest[0], os.path.join(folder, given.get("--cwd", ""))) if _is_path(rest[0]) else None


def _deno(arguments: Sequence[str], folder: str) -> str | None:
    _, rest = _read(DENO, arguments)
    if rest[0] in ("run", "serve", "x"):
        _, rest = _read(DENO, rest[1:])
    if rest[0].startswith(("npm:", "jsr:")):
        return _package(rest[0], folder)
    return _path(rest[0], folder) if _is_path(rest[0]) else None


def _docker(arguments: Sequence[str], folder: str) -> str | None:
    """Of the image; of a container that runs already, its name."""
    del folder
    _, rest = _read(DOCKER, arguments)
    verb, *more = rest[1:] if rest[0] == "container" else rest
    return _image(_read(DOCKER_RUN, more)[1][0]) if verb in ("run", "exec") else None


def _env(arguments: Sequence[str], folder: str) -> str | None:
    given, rest = _read(ENV, arguments)
    command = list(rest)
    while command and _ASSIGNMENT.match(command[0]):
        del command[0]
    return None if given.keys() & ENV.last else _name([word for word in command if word], folder)


def _java(arguments: Sequence[str], folder: str) -> str | None:
    jar = _read(JAVA, arguments)[0].get("-jar")
    return _path(jar, folder) if jar else None


def _cmd(arguments: Sequence[str], folder: str) -> str | None:
    """Of what Windows' shell runs, as hosts there have it started."""
    return _name(arguments[1:], folder) if [word.lower() for word in arguments[:1]] == ["/c"] else None


_SDKS: Mapping[str | None, _Launcher] = dict.fromkeys(("mcp", "fastmcp"), _sdk)
_LAUNCHERS: Mapping[str, _Launcher] = {
    **dict.fromkeys(("npx", "bunx", "pnpx"), _npx),
    **dict.fromkeys(("npm", "pnpm", "yarn"), _verb(("exec", "x", "dlx"), NPX, _npx)),
    "uvx": _uvx,
    "uv": _uv,
    "pipx": _verb(("run",), PIPX, _pipx),
    **dict.fromkeys(("poetry", "pdm", "hatch", "rye", "pixi"), _verb(("run",), PIPX, _name)),
    **dict.fromkeys(("python", "pypy"), _python),
    "mcp": _sdk,
    "fastmcp": _sdk,
    **dict.fromkeys(("node", "nodejs", "tsx", "ts-node"), _interpreter(NODE)),
    **dict.fromkeys(("sh", "bash", "dash", "zsh"), _interpreter(SHELL)),
    "bun": _bun,
    "deno": _deno,
    **dict.fromkeys(("docker", "podman", "nerdctl"), _docker),
    "java": _java,
    "cmd": _cmd,
    "env": _env,
}
