"""The name of a server that is given by its command alone: that of the program that runs, not of its launcher. Pure.

A name is shown, logged and sent to clients, and a command line may hold secrets: a name is made of a package, a module,
an image or a path, and of nothing that could be an option's value. So the options of launchers have to be known here.
An unknown option ends the reading: the word after it may be its value, and a secret.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Final
from urllib.parse import urlsplit

from attrs import field, frozen


def words(text: str) -> frozenset[str]:
    """Split a text into its words."""
    return frozenset(text.split())


LONGEST: Final = 64
"""Characters of a name."""

_GENERIC = words(
    """app bin build cjs cli cmd debug dev dist esm index lib main mcp mcp-server mod node-modules out packages release
    run scripts server src start stdio target venv"""
)
"""Words too general to name a server; its package or folder is named instead."""

_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")
_REQUIREMENT = re.compile(r"[\[<>=!~;#\s@].*$")
"""Extras, versions and markers after the name of a package."""
_ASSIGNMENT = re.compile(r"\w+=")
_FILE_SUFFIX = re.compile(r"\.(py|[mc]?js|[mc]?ts|tsx|jar|sh|exe|git|tgz|whl)$")
_ADDRESS = re.compile(r"(git\+)?[a-z]+://|git@")


def name_of_command(command: Sequence[str], folder: str) -> str:
    """Make a name from a command: `A-Z`, `a-z`, `0-9`, `.`, `_` and `-`, 64 characters at most.

    Args:
        command: The program, and its arguments.
        folder: The working directory, absolute, from which relative paths are resolved.
    """
    return _name(command, folder) or _clean(PurePath(command[0]).stem) or "server"


def _name(command: Sequence[str], folder: str) -> str | None:
    """The name; None if the program is unclear."""
    if not command:
        return None
    program, *arguments = command
    launcher = re.sub(r"(?<=[a-z])[\d.]+$", "", PurePath(program).name.removesuffix(".exe"))
    if launcher in _LAUNCHERS:
        return _LAUNCHERS[launcher](arguments, folder)
    return _path(program, folder) if _is_path(program) else _first_special([_stem(program)])


# -- names of what runs -----------------------------------------------------------------------------------------------


def _first_special(names: Iterable[str]) -> str | None:
    """The first name that is not too general, else the first."""
    cleaned = [name for name in map(_clean, names) if name]
    special = (name for name in cleaned if name.lower().replace("_", "-") not in _GENERIC)
    return next(special, cleaned[0] if cleaned else None)


def _clean(text: str) -> str:
    """The text as a name; empty if it holds a value, or nothing of a name."""
    return "" if "=" in text else _FOREIGN.sub("-", text).strip("-._")[:LONGEST].rstrip("-._")


def _stem(text: str) -> str:
    return _FILE_SUFFIX.sub("", text.rpartition("/")[2])


def _is_path(word: str) -> bool:
    return "/" in word or bool(_FILE_SUFFIX.search(word))


def _path(path: str, folder: str) -> str | None:
    """The name of a file, or of its folder if the name of the file is too general."""
    if _ADDRESS.match(path):
        return _address(path)
    *folders, file = os.path.normpath(os.path.join(folder, path)).split("/")
    return _first_special([_stem(file), *reversed(folders)])


def _address(url: str) -> str | None:
    """The last part of a path that is a good name, without versions; never the part that may hold a password."""
    try:
        path = url.partition(":")[2] if url.startswith("git@") else urlsplit(url).path
    except ValueError:
        return None
    return _first_special(_stem(part.partition("@")[0]) for part in reversed(path.split("/")))


def _package(package: str, folder: str) -> str | None:
    """The name of a package, without scope and version."""
    package = re.sub(r"^(npm|jsr):/?", "", package)
    if _ADDRESS.match(package):
        return _address(package)
    if package.startswith((".", "/")) or _FILE_SUFFIX.search(package):
        return _path(package, folder)
    scope, slash, name = package.removeprefix("@").partition("/")
    if not slash:
        scope, name = "", package
    elif package.startswith("@"):
        name = name.partition("/")[0]
    return _first_special([_REQUIREMENT.sub("", name.rpartition("/")[2]), scope.rpartition(":")[2]])


def _module(module: str) -> str | None:
    return _first_special(reversed(module.split(".")))


def _image(image: str) -> str | None:
    """The name of an image, without registry, tag and digest."""
    first, *others = image.partition("@")[0].split("/")
    parts = others if others and (set(first) & {".", ":"} or first == "localhost") else [first, *others]
    return _first_special(part.partition(":")[0] for part in reversed(parts))


# -- options of launchers ----------------------------------------------------------------------------------------------


@frozen
class LauncherOptions:
    """The options of one launcher."""

    alone: frozenset[str] = field(converter=words)
    """Options without a value."""
    valued: frozenset[str] = field(converter=words)
    """Options whose value follows, or is joined to them."""
    last: frozenset[str] = field(converter=words)
    """Options that name the program to start: after their value its arguments begin."""

    def read(self, arguments: Sequence[str]) -> tuple[Mapping[str, str], Sequence[str]] | None:
        """Read the options with a value, and the words after all options; None if an option is not known."""
        given: dict[str, str] = {}
        rest = list(arguments)
        while rest and rest[0].startswith("-") and rest[0] != "-":
            word = rest.pop(0)
            if word == "--":
                break
            option, value = self._option(word)
            if option is None:
                return None
            if option in self.alone:
                continue
            if value is None:
                if not rest:
                    return None
                value = rest.pop(0)
            given[option] = value
            if option in self.last:
                break
        return given, rest

    def _option(self, word: str) -> tuple[str | None, str | None]:
        """The option in a word, or the last of several letters, with the value that is joined to it."""
        option, equals, value = word.partition("=")
        takes = self.valued | self.last
        if option in takes:
            return option, value if equals else None
        if word in self.alone:
            return word, None
        if word.startswith("--"):
            return (option if equals else None), value
        for at, letter in enumerate(word[1:], 2):
            option = f"-{letter}"
            if option in takes:
                return option, word[at:] or None
            if option not in self.alone:
                return None, None
        return option, None


NPX = LauncherOptions(
    alone="""-y --yes -n --no --no-install -q --quiet -s --silent -d --verbose --ignore-existing --prefer-online
    --prefer-offline --offline --no-audit --no-fund --ignore-scripts -g --global --workspaces --bun
    --no-update-notifier""",
    valued="-p --package --prefix --registry --cache -w --workspace --userconfig --loglevel --node-options -C --dir",
    last="-c --call",
)
UV = LauncherOptions(
    alone="""-q --quiet -v --verbose -n --no-cache --offline --no-progress --no-config --native-tls --system-certs
    --managed-python --no-managed-python --no-python-downloads --isolated --active --no-project --frozen --locked
    --no-sync --exact --all-extras --no-dev --dev --only-dev --all-groups --no-default-groups --all-packages
    --no-editable --no-env-file --reinstall --refresh -U --upgrade --no-index --no-build --no-binary --no-sources
    --no-build-isolation --compile-bytecode -s --script --gui-script""",
    valued="""--from --with -w --with-editable --with-requirements --directory --project --package --extra --no-extra
    --group --no-group --only-group -p --python --index --default-index -i --index-url --extra-index-url -f
    --find-links --env-file --config-file --cache-dir --color --resolution --prerelease --index-strategy
    --keyring-provider --link-mode -C --config-setting --python-preference --python-platform --exclude-newer
    --allow-insecure-host -c --constraints --overrides --refresh-package --reinstall-package -P --upgrade-package""",
    last="-m --module",
)
PIPX = LauncherOptions(
    alone="-q --quiet -v --verbose --no-cache --path --pypackages",
    valued="--spec --python --pip-args -i --index-url",
    last="",
)
PYTHON = LauncherOptions(
    alone="-b -B -d -E -i -I -O -P -q -R -s -S -u -v -x", valued="-W -X --check-hash-based-pycs", last="-m -c"
)
NODE = LauncherOptions(
    alone="""--no-warnings --no-deprecation --inspect --inspect-brk --watch --enable-source-maps --trace-warnings
    --trace-uncaught --experimental-strip-types --experimental-transform-types --experimental-vm-modules --expose-gc
    --preserve-symlinks --no-addons --use-system-ca --no-cache""",
    valued="""-r --require --import --loader --experimental-loader -C --conditions --env-file --env-file-if-exists
    --title --tsconfig""",
    last="-e --eval -p --print",
)
BUN = LauncherOptions(
    alone="-b --bun --silent --verbose --watch --hot --smol --no-install -i --prefer-offline -y --yes",
    valued="--cwd -r --preload --require --import --env-file -c --config --tsconfig-override -p --package -d --define",
    last="-e --eval --print",
)
DENO = LauncherOptions(
    alone="""-A --allow-all -R --allow-read -W --allow-write -N --allow-net -E --allow-env -S --allow-sys --allow-run
    --allow-ffi -I --allow-import --no-prompt --no-remote --no-npm --check --no-check --no-lock --frozen -q --quiet
    --unstable --cached-only -r --reload --node-modules-dir --watch --no-config -y --yes""",
    valued="-c --config --import-map --lock --cert --location --seed -L --log-level --ext --env-file",
    last="",
)
DOCKER = LauncherOptions(
    alone="-D --debug --tls --tlsverify",
    valued="-c --context -H --host --config -l --log-level --tlscacert --tlscert --tlskey",
    last="",
)
DOCKER_RUN = LauncherOptions(
    alone="""-i --interactive -t --tty --rm -d --detach --init --privileged --read-only -P --publish-all -q --quiet
    --no-healthcheck --oom-kill-disable --sig-proxy --disable-content-trust --replace""",
    valued="""-e --env --env-file -v --volume --volumes-from --mount --tmpfs --name -p --publish --network --net
    --network-alias --link --entrypoint -w --workdir -u --user --platform --pull -l --label --label-file --add-host
    --cap-add --cap-drop --cpus -c --cpu-shares --cpuset-cpus -m --memory --memory-swap --shm-size --gpus --device
    --dns --expose -h --hostname --ip --ipc --pid --pids-limit --userns --uts --restart --security-opt --stop-signal
    --stop-timeout --sysctl --ulimit --log-driver --log-opt --group-add --runtime --cidfile --health-cmd -a --attach
    --cgroup-parent --cgroupns --isolation --annotation --mac-address --secret""",
    last="",
)
ENV = LauncherOptions(
    alone="-i --ignore-environment -0 --null -v --debug", valued="-u --unset -C --chdir", last="-S --split-string"
)
SHELL = LauncherOptions(alone="-e -u -x -l -i", valued="-o", last="-c")
JAVA = LauncherOptions(
    alone="-server --enable-preview", valued="-cp -classpath --class-path --add-opens --add-modules -D -X", last="-jar"
)
SDK = LauncherOptions(alone="--no-banner --reload", valued="-t --transport --with -f --with-editable", last="")
"""The options of `mcp run` and `fastmcp run`."""

# -- launchers --------------------------------------------------------------------------------------------------------

_Launcher = Callable[[Sequence[str], str], str | None]


def _read(options: LauncherOptions, arguments: Sequence[str]) -> tuple[Mapping[str, str], Sequence[str]]:
    """The options with a value, and the words after all options: at least one, which is empty if the words are
    unclear."""
    given, rest = options.read(arguments) or ({}, ())
    return given, rest or ("",)


def _npx(arguments: Sequence[str], folder: str) -> str | None:
    given, rest = _read(NPX, arguments)
    return _package(rest[0] or given.get("--package", given.get("-p", "")), folder)


def _verb(verbs: Iterable[str], options: LauncherOptions, start: _Launcher) -> _Launcher:
    """A launcher with a verb, such as `npm exec`."""

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
    """The name of a server's file, with or without the object in it."""
    _, (verb, *rest) = _read(SDK, arguments)
    file = _read(SDK, rest)[1][0].partition(":")[0]
    return _path(file, folder) if verb == "run" and _is_path(file) else None


def _interpreter(options: LauncherOptions) -> _Launcher:
    def name(arguments: Sequence[str], folder: str) -> str | None:
        return _script(*_read(options, arguments), folder)

    return name


def _script(given: Mapping[str, str], rest: Sequence[str], folder: str) -> str | None:
    """The name of a file; None for a program given as text or on standard input."""
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
    """The name of the image; for `exec`, of the running container."""
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
    """The name of a command for the shell of Windows, with which hosts start servers there."""
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
