"""The keys by which sessions outlive their gateway: a file that replicas share, or the user's own, and `key new`."""

import os
import secrets
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.config.whole_file import open_regular
from mcp_nursery.supervisor.gateway import SessionKeys
from mcp_nursery.supervisor.gateway.sealing import LEAST_KEY, MOST_SEALING_KEYS
from mcp_nursery.supervisor.storage.state_file import UnusableFile, check_file, make_folder
from mcp_nursery.supervisor.user_folders import state_folder

from .failures import OK
from .output import write_json, write_line
from .runtime import Options

KEY_PREFIX: Final = "mcpnkey_"
"""The prefix of keys, by which programs that look for leaked keys recognise them."""
LARGEST_KEY_FILE: Final = 64 << 10
"""Bytes of a file of keys."""


def new(options: Options) -> int:
    """Print a new key, which is kept nowhere."""
    key = _new_key()
    if options.as_json:
        write_json({"key": key})
    else:
        write_line(key)
    return OK


class SessionKeyFile:
    """The keys of a file, one a line, as it was when it was last read. For `max_age` see `SessionKeys`.

    Raises:
        ConfigError: The file cannot be read or used.
        ModuleNotFoundError: The extra is not installed.
    """

    def __init__(self, path: Path, max_age: float) -> None:
        self._path: Final = path
        self.keys: Final = SessionKeys(_read(path), max_age=max_age)
        """The keys, which `reload` replaces."""

    def reload(self) -> None:
        """Read the file again.

        Raises:
            ConfigError: The file cannot be read or used; the keys that were read before stay in use.
        """
        self.keys.replace(_read(self._path))


def own_key_file() -> Path:
    """The file with the key of this user's gateways, in the state folder. It is made if it does not exist.

    Raises:
        ConfigError: The file or its folder is not this user's alone, or the file cannot be made.
    """
    path = state_folder() / "session-keys"
    try:
        make_folder(path.parent)
        check_file(path)
        if not path.exists():
            _make(path)
    except UnusableFile as error:
        raise ConfigError(str(error), file=str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot be made: {error.strerror or error}", file=str(path)) from None
    return path


def _make(path: Path) -> None:
    """Make a file with a new key, whole or not at all. If two processes make it, both read that of the first."""
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w") as stream:
            stream.write(f"{_new_key()}\n")
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            check_file(path)
    finally:
        os.unlink(beside)


def _new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


# ConfigError is raised after each `except` block: as its context, the other error would show what was read.


def _read(path: Path) -> Sequence[bytes]:
    file = str(path)
    try:
        with open_regular(path) as stream:
            found = os.fstat(stream.fileno())
            text = stream.read(LARGEST_KEY_FILE + 1)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    else:
        # A group may read it: this is how containers are given their secrets.
        if found.st_mode & (stat.S_IRWXO | stat.S_IWGRP) or found.st_uid not in (0, os.geteuid()):
            raise ConfigError("others can read or write it, and so make ids of sessions: chmod 600", file=file)
        if len(text) > LARGEST_KEY_FILE:
            raise ConfigError(f"has more than {LARGEST_KEY_FILE} bytes", file=file)
        return _parse(text, file)
    raise ConfigError(problem, file=file)


def _parse(text: bytes, file: str) -> Sequence[bytes]:
    keys: dict[bytes, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        key = line.strip()
        if not key:
            continue
        if len(key) < LEAST_KEY:
            problem = f"a key must have {LEAST_KEY} bytes or more, and this one has {len(key)}: see mcp-nursery key new"
            raise ConfigError(f"line {number}: {problem}", file=file)
        if key in keys:
            raise ConfigError(f"line {number}: the key of line {keys[key]} again", file=file)
        keys[key] = number
        if len(keys) > MOST_SEALING_KEYS:
            raise ConfigError(f"line {number}: more than {MOST_SEALING_KEYS} keys", file=file)
    if not keys:
        raise ConfigError("line 1: there is no key: see mcp-nursery key new", file=file)
    return list(keys)
