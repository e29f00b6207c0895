"""`mcp-nursery enable`, `disable` and `remove`: one server of a file, and nothing else of it. Starts nothing."""

import os
import stat
import tempfile
from contextlib import suppress

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.config import discover_config, load_config
from mcp_nursery.supervisor.config.discovery import own_file
from mcp_nursery.supervisor.config.edits import Change, edited

from .failures import OK
from .output import safe_line, write_json, write_line
from .runtime import Options, check_server

_DONE = {"enable": "enabled", "disable": "disabled", "remove": "removed"}
_MARK = b"\xef\xbb\xbf"


def edit(options: Options, server: str, change: Change) -> int:
    """Change the file that the server stands in, and say so."""
    file = _file_of(options, server)
    before = _read(file)
    mark = _MARK if before.startswith(_MARK) else b""
    after = mark + edited(before.decode("utf-8-sig"), file, server, change).encode()
    if after != before:
        _replace(file, before, after)
    done = _DONE[change] if after != before else None
    if options.as_json:
        write_json({"server": server, "file": file, "change": done})
    else:
        write_line(safe_line(f"{server}: {done or f'{_DONE[change]} already'} in {file}"))
    return OK


def _file_of(options: Options, server: str) -> str:
    """Of several files that name it, the one whose entry counts."""
    config = load_config(*options.config) if options.config else discover_config(project=False)
    for error in config.errors:
        raise ConfigError(error)
    found = next((spec.source for spec in config.servers if spec.name == server), None)
    if found is not None:
        return found
    theirs = () if options.config else discover_config(user=False).servers
    for spec in theirs:
        if spec.name == server:
            raise ConfigError("it came with a project; --config FILE edits it", file=spec.source, server=server)
    if not config.files:
        raise ConfigError("there is none; name a file with --config FILE", file=str(own_file()))
    check_server(config, server)
    raise ConfigError("a server without a name; edit the file by hand", server=server)


# Below, ConfigError is raised after the `except` block: as its context, the other error would show what was read.


def _read(file: str) -> bytes:
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


def _replace(file: str, before: bytes, after: bytes) -> None:
    """As a whole or not at all; where a link leads, with its mode and its owner."""
    target = os.path.realpath(file)
    beside = ""
    try:
        handle, beside = tempfile.mkstemp(prefix=f".{os.path.basename(target)}.", dir=os.path.dirname(target))
        with open(handle, "wb") as stream:
            stream.write(after)
            found = os.stat(target)
            if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(stream.fileno(), found.st_uid, found.st_gid)
            os.fchmod(stream.fileno(), stat.S_IMODE(found.st_mode))
            stream.flush()
            os.fsync(stream.fileno())
        if _read(target) != before:
            raise OSError(0, "it was changed meanwhile")
        os.replace(beside, target)
    except (OSError, ConfigError) as error:
        with suppress(OSError):
            os.unlink(beside)
        problem = getattr(error, "strerror", None) or str(error)
    else:
        return
    raise ConfigError(f"cannot be written: {problem}", file=file)
