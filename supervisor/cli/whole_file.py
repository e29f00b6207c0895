"""Files with servers are written as a whole or not at all: who is killed, or has no room left, breaks none."""

import os
import stat
import tempfile
from contextlib import suppress
from typing import IO

from mcp_nursery.actors.errors import ConfigError

# ConfigError is raised after each `except` block: as its context, the other error would show what was read.


def read_bytes(file: str) -> bytes:
    """What a regular file holds, which is UTF-8.

    Raises:
        ConfigError: It is none, or cannot be read.
    """
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):
            raise OSError(0, "not a regular file")
        with open(file, "rb") as stream:
            data = stream.read()
        data.decode()
    except OSError as error:
        problem = error.strerror or type(error).__name__
    except UnicodeDecodeError:
        problem = "not UTF-8"
    else:
        return data
    raise ConfigError(f"cannot be edited: {problem}", file=file)


def replace_file(file: str, after: bytes, *, before: bytes | None = None) -> None:
    """Write it where a link leads, in a folder that is made if it is not there.

    Args:
        file: Its path.
        after: What it is to hold.
        before: What it held when it was read: if it holds something else by now, it is left alone, and its mode and
            owner stay. Without it, whatever was there goes, and what comes is this user's alone: it may hold secrets.

    Raises:
        ConfigError: It cannot be written. Then it is as it was.
    """
    target, beside = os.path.realpath(file), ""
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        handle, beside = tempfile.mkstemp(prefix=f".{os.path.basename(target)}.", dir=os.path.dirname(target))
        with open(handle, "wb") as stream:
            stream.write(after)
            if before is not None:
                _take_after(target, stream)
            stream.flush()
            os.fsync(stream.fileno())
        if before is not None and read_bytes(target) != before:
            raise OSError(0, "it was changed meanwhile")
        os.replace(beside, target)
    except (OSError, ConfigError) as error:
        with suppress(OSError):
            os.unlink(beside)
        problem = getattr(error, "strerror", None) or str(error)
    else:
        return
    raise ConfigError(f"cannot be written: {problem}", file=file)


def _take_after(target: str, stream: IO[bytes]) -> None:
    """Give it the mode and the owner of the file in whose place it comes."""
    if not os.access(target, os.W_OK):
        raise OSError(0, "it is read-only")
    found = os.stat(target)
    if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(stream.fileno(), found.st_uid, found.st_gid)
    os.fchmod(stream.fileno(), stat.S_IMODE(found.st_mode))
