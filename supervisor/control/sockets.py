"""The sockets of running hosts, in a folder that is this user's alone. Each is named by the number of its process.

A socket gets its name once its host listens. One that has a name and refuses connections was left by a killed host.
"""

import os
import socket
import stat
import struct
from collections.abc import Generator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

import trio

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.records import frozen

from ..storage.state_file import UnusableFile, make_folder
from ..user_folders import state_folder

_LISTEN_BACKLOG: Final = 64
_LONGEST_PATH: Final = 100
"""Bytes that every address can hold: 108 on Linux, 104 elsewhere, with a zero at the end."""
_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred`: pid, uid, gid."""


def control_folder() -> Path:
    """Return the folder of the sockets of this user's hosts: `control` in the user's state folder."""
    return state_folder() / "control"


@frozen
class ControlListener:
    """A socket on which this process listens."""

    socket: socket.socket
    name: str
    """The name of the host."""


@contextmanager
def listening() -> Generator[ControlListener, None, None]:
    """Listen for this process while the block lasts, in a folder that is this user's alone.

    Raises:
        ConfigError: On entering: the folder cannot be made, or other users can access it.
    """
    folder = control_folder()
    try:
        make_folder(folder)
        _check_folder(folder)
        names_of_hosts(folder)  # removes sockets of dead hosts
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            path = _bind(sock, folder)
            try:
                yield ControlListener(sock, path.name.removesuffix(_suffix()))
            finally:
                with suppress(OSError):
                    path.unlink()
    except OSError as error:
        problem = f"no control socket in {folder}: {error.strerror or error}"
    except UnusableFile as error:
        problem = f"no control socket: {error}; {error.advice}"
    else:
        return
    raise ConfigError(problem, field="control")


def _check_folder(folder: Path) -> None:
    """Raise an OSError for a folder that is not this user's alone."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(0, "it is not a folder of this user")
    if found.st_mode & 0o077:
        raise OSError(0, f"other users can access it; chmod 700 {folder}")


def _bind(sock: socket.socket, folder: Path) -> Path:
    """Let the socket listen, and then give it a name that no other socket has: so no client finds a socket that does
    not listen yet."""
    unnamed = folder / f".{os.getpid()}-{os.urandom(4).hex()}"
    with _address(unnamed) as address:
        sock.bind(address)
    try:
        unnamed.chmod(0o600)
        sock.listen(_LISTEN_BACKLOG)
        for number in range(1, 100):
            path = folder / f"{os.getpid()}{f'.{number}' if number > 1 else ''}{_suffix()}"
            with suppress(FileExistsError):
                os.link(unnamed, path)
                return path
        raise OSError(0, "this process has too many sockets")
    finally:
        unnamed.unlink()


def names_of_hosts(folder: Path | None = None) -> list[str]:
    """List the hosts of this user that listen now on this machine, by the number of their process; the second
    supervisor of a process is `PID.2`. Removes the sockets of killed hosts.

    Raises:
        OSError: The folder is not this user's alone.
    """
    folder = control_folder() if folder is None else folder
    if not os.path.lexists(folder):
        return []
    _check_folder(folder)
    names = sorted((path.name.removesuffix(_suffix()) for path in folder.glob(f"*{_suffix()}")), key=_numbers)
    return [name for name in names if not name.startswith(".") and _is_alive(folder / f"{name}{_suffix()}")]


def _numbers(name: str) -> list[int]:
    return [int(part) for part in name.split(".") if part.isdecimal()]


def _is_alive(path: Path) -> bool:
    try:
        connect(path).close()
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return False
    except FileNotFoundError:
        return False
    except OSError:  # such as too many clients at this moment
        pass
    return True


def connect(path: Path) -> socket.socket:
    """Connect to a socket of this user or root. The connection does not block.

    Raises:
        OSError: No process listens, or one of another user, or there are too many clients (EAGAIN).
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        with _address(path) as address:
            sock.connect(address)  # succeeds or fails at once
        if not is_own(sock):
            raise PermissionError(0, "another user listens there")
    except BaseException:
        sock.close()
        raise
    return sock


def path_of(name: str) -> Path:
    """Return the path of a host's socket."""
    return control_folder() / f"{name}{_suffix()}"


def is_own(sock: socket.socket | trio.socket.SocketType) -> bool:
    """True if the other end is this user or root. If the system does not report that, the folder decides."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return uid in (0, os.geteuid())


@contextmanager
def _address(path: Path) -> Generator[str, None, None]:
    """The path as an address. An address must be short, and Linux has a short name for an open folder."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _suffix() -> str:
    """The end of the names of this machine's sockets: several machines may share a home folder, and numbers of
    processes mean nothing elsewhere."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"@{sha256(f'{os.uname().nodename} {space}'.encode()).hexdigest()[:8]}.sock"
