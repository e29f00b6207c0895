"""The program that a configured command names, the environment it gets, and why it could not be started."""

import errno
import os
import shutil
from collections.abc import Mapping

from mcp_nursery.actors.records import field, frozen

from ..errors import StartFailed

CONTAINER_CLIENTS = ("docker", "podman", "nerdctl")
"""Programs with docker's command line."""

INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP")
"""The host's variables that every process gets."""

NETWORK = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NODE_USE_ENV_PROXY", "PIP_PROXY"),
    *("NPM_CONFIG_PROXY", "NPM_CONFIG_HTTPS_PROXY", "NPM_CONFIG_NOPROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "GIT_SSL_CAINFO"),
    *("NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA", "NPM_CONFIG_CAFILE", "DENO_CERT", "DENO_TLS_CA_STORE"),
    *("PIP_CERT", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS"),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST"),
    *("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INSECURE_HOST"),
    *("NPM_CONFIG_REGISTRY", "BUN_CONFIG_REGISTRY"),
)
"""The variables, in upper or lower case, without which a program reaches nothing in some networks: proxies, certificate
authorities, package indexes. No value is secret but the user and the query of a URL in it.

A server gets those of the host, but not a container, which has neither the host's files nor its loopback.
"""

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


def is_about_network(name: str) -> bool:
    """True if a variable is about the network, and is inherited for that."""
    return name.upper() in NETWORK


def host_environment(env: Mapping[str, str], *, whole: bool) -> dict[str, str]:
    """The host's variables for a server, besides those that every process gets: all, secrets included, if `whole`; else
    those about the network. A variable about the network among the server's own, `env`, is not joined by the host's in
    the other case, which programs may prefer."""
    left_out = {*INHERITED, *_OF_THE_SHELL}
    if "REQUEST_METHOD" in os.environ:
        left_out.add("HTTP_PROXY")  # a CGI program's client can choose it by a header
    given = {name.upper() for name in env}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in left_out and (name.upper() not in given if is_about_network(name) else whole)
    }


def find_program(command: str, env: Mapping[str, str], cwd: str | None, shown: ShownCommand | None = None) -> str:
    """Path of the program that `command` names for a process with this environment and working directory. Errors show
    `shown` instead of these, if it is given.

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
