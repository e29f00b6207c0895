"""Writing files with servers as a whole or not at all: a killed program, or a full disk, breaks no file."""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.records import frozen

MARK = "\ufeff"
"""The byte order mark that some editors put at the beginning."""


@frozen
class Replacement:
    """The content of a file before and after; None: there is no file."""

    file: Path
    before: bytes | None
    after: bytes | None

    def make(self) -> None:
        """Write the new content, or remove the file.

        Raises:
            ConfigError: Somebody else has changed the file meanwhile, or it cannot be written. Then it is as it was.
        """
        file = str(self.file)
        if self.before == self.after:
            return
        if self.before is None and os.path.lexists(os.path.realpath(file)):
            raise ConfigError("cannot be written: it is there by now", file=file)
        if self.after is not None:
            replace_file(file, self.after, before=self.before)
        else:
            _remove(file, self.before)


# ConfigError is raised after each `except` block: as its context, the other error would show what was read.


def open_regular(file: str | os.PathLike[str]) -> IO[bytes]:
    """Open a regular file to read it: reading a pipe could block.

    Raises:
        OSError: The file is not a regular one, or cannot be opened.
    """
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return open(handle, "rb")
    os.close(handle)
    raise OSError(0, "not a regular file")


def read_bytes(file: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file, which are UTF-8.

    Raises:
        ConfigError: The file is not such a one, or cannot be read.
    """
    try:
        with open_regular(file) as stream:
            data = stream.read()
        data.decode()
    except OSError as error:
        problem = error.strerror or type(error).__name__
    except UnicodeDecodeError:
        problem = "not UTF-8"
    else:
        return data
    raise ConfigError(f"cannot be edited: {problem}", file=os.fspath(file))


def split_mark(data: bytes | None) -> tuple[str, str]:
    """The byte order mark, if there is one, and the text."""
    text = (data or b"").decode()
    return (MARK, text[1:]) if text.startswith(MARK) else ("", text)


def check_writable(file: str | os.PathLike[str]) -> None:
    """Refuse a read-only file, also to root: its folder would allow replacing it.

    Raises:
        ConfigError: The file exists, and is read-only.
    """
    if os.path.exists(file) and not (os.stat(file).st_mode & 0o222 and os.access(file, os.W_OK)):
        raise ConfigError("cannot be written: it is read-only", file=os.fspath(file))


def replace_file(file: str, after: bytes, *, before: bytes | None = None) -> None:
    """Write a file, at the end of a link if it is one, in a folder that is made if it does not exist. `before` is the
    content when it was read: if the file has another by now, it is left alone; its mode and owner stay. None: whatever
    was there is replaced, and the new file is this user's alone, since it may hold secrets.

    Raises:
        ConfigError: The file cannot be written. Then it is as it was.
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


def _remove(file: str, before: bytes | None) -> None:
    if read_bytes(file) != before:
        raise ConfigError("cannot be written: it was changed meanwhile", file=file)
    try:
        os.unlink(os.path.realpath(file))
    except OSError as error:
        problem = error.strerror or type(error).__name__
    else:
        return
    raise ConfigError(f"cannot be removed: {problem}", file=file)


def _take_after(target: str, stream: IO[bytes]) -> None:
    """Give a new file the mode and the owner of the one that it replaces."""
    if not os.access(target, os.W_OK):
        raise OSError(0, "it is read-only")
    found = os.stat(target)
    if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(stream.fileno(), found.st_uid, found.st_gid)
    os.fchmod(stream.fileno(), stat.S_IMODE(found.st_mode))
