"""The program that a configured command names, the environment it gets, and why it could not be started."""

import errno
import os
import shutil
from collections.abc import Mapping

from attrs import field, frozen

from ..errors import StartFailed

INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP")
"""The host's variables that a server gets. Nothing else is passed on: the rest may hold secrets."""

_OF_THE_SHELL = ("PWD", "OLDPWD", "SHLVL", "_")
"""Variables that say where and how the host was started, which means nothing to a server."""

_LASTING = frozenset(
    {
        errno.E2BIG,
        errno.EACCES,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOEXEC,
        errno.ENOTDIR,
        errno.EPERM,
    }
)
"""Errors of a start that would come again."""


@frozen
class ShownCommand:
    """The form in which errors show a command with variables."""

    command: str
    """As written."""
    cwd: str | None
    """As written."""
    secrets: tuple[str, ...] = field(default=(), repr=lambda secrets: f"<{len(secrets)} values>")
    """Values that are removed from the output of the process."""


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server's process: the inherited few, and `extra` above them."""
    return {**{name: os.environ[name] for name in INHERITED if name in os.environ}, **extra}


def host_environment() -> dict[str, str]:
    """The rest of the host's environment, for a server that is meant to have all of it, secrets included."""
    return {name: value for name, value in os.environ.items() if name not in (*INHERITED, *_OF_THE_SHELL)}


def find_program(command: str, env: Mapping[str, str], cwd: str | None, shown: ShownCommand | None = None) -> str:
    """Path of the program that `command` names for a process with this environment and working directory.

    Args:
        command: The program.
        env: The process's environment.
        cwd: Its working directory.
        shown: What errors show instead of these; None: their own text.

    Raises:
        StartFailed: There is no such executable, or the working directory does not exist.
    """
    shown = shown or ShownCommand(command, cwd)
    if cwd is not None and not os.path.isdir(cwd):
        problem = "is not a directory" if os.path.exists(cwd) else "does not exist"
        raise StartFailed(f"cwd {shown.cwd!r} {problem}", retriable=False)
    base = "" if cwd is None else os.path.abspath(cwd)
    if os.path.dirname(command):
        path = os.path.join(base, command)
        if shutil.which(path) is None:
            raise StartFailed(f"command {shown.command!r} {_why_not(path)}", retriable=False)
        return path
    places = (os.path.join(base, place) for place in env.get("PATH", os.defpath).split(os.pathsep))
    found = shutil.which(command, path=os.pathsep.join(places))
    if found is None:
        apart = "; put its arguments into args" if " " in shown.command.strip() else ""
        raise StartFailed(f"command {shown.command!r} was not found on PATH{apart}", retriable=False)
    return found


def _why_not(path: str) -> str:
    if os.path.isdir(path):
        return "is a directory"
    return "is not executable" if os.path.exists(path) else "does not exist"


def start_failed(shown: ShownCommand, error: Exception, cwd: str | None) -> StartFailed:
    """The error of a program that was found but could not be started in `cwd`, and whether another try may succeed."""
    at_cwd = isinstance(error, OSError) and cwd is not None and error.filename == cwd
    command = f"command {shown.command!r}"
    if isinstance(error, OSError):
        subject = f"cwd {shown.cwd!r}" if at_cwd else command
        # The file itself was found a moment ago.
        missing = "its interpreter does not exist" if error.errno == errno.ENOENT and not at_cwd else None
        problem = missing or (os.strerror(error.errno) if error.errno else str(error))
        return StartFailed(f"{subject} cannot be started: {problem}", retriable=error.errno not in _LASTING)
    # ValueError: a string no process can be given. RuntimeError: no thread can be started, the host is out of them.
    return StartFailed(f"{command} cannot be started: {error}", retriable=isinstance(error, RuntimeError))
