"""Files of variables, `NAME=VALUE` a line. Nothing in them is expanded, and no message shows a value."""

import hashlib
import os
import re
import stat

from attrs import field, frozen

from mcp_nursery.actors.secrets import names_only

LIMIT = 1 << 20
"""Bytes: what is larger holds no variables."""

_LINE = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*(.*)")
_COMMENT = re.compile(r"(?:^|[ \t]+)#.*")
_QUOTED = re.compile(r"(['\"])(.*)\1[ \t]*(?:#.*)?")


class EnvFileError(Exception):
    """The file cannot be used. Says no value."""


@frozen
class EnvFile:
    """What such a file holds."""

    variables: dict[str, str] = field(repr=names_only)
    digest: str = field(repr=False)
    """SHA-256 of its bytes."""


def read_env_file(path: str) -> EnvFile:
    """The variables of a file. Blocks.

    Empty lines say nothing, nor does what follows a `#` at the begin of a line or after a space; quotes around a
    value are not part of it; of two lines with the same name the later counts.

    Raises:
        EnvFileError: It is no regular file of at most 1 MiB of UTF-8, or a line is none of the above.
    """
    data = _read(path)
    try:
        return EnvFile(_variables(data.decode("utf-8-sig")), hashlib.sha256(data).hexdigest())
    except UnicodeDecodeError:
        problem = "not UTF-8"
    raise EnvFileError(problem)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            regular = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
            data = stream.read(LIMIT + 1) if regular else b""
        if regular and len(data) <= LIMIT:
            return data
        problem = "not a regular file of at most 1 MiB"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or type(error).__name__}"
    except ValueError:
        problem = "not a file name"
    raise EnvFileError(problem)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its other end


def _variables(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        quoted = _QUOTED.fullmatch(match[2]) if match else None
        if match is None or "\0" in stripped or (match[2][:1] in ("'", '"') and quoted is None):
            raise EnvFileError(f"line {number} is not NAME=VALUE")
        found[match[1]] = quoted[2] if quoted else _COMMENT.sub("", match[2])
    return found
