"""Reading one file, JSON or TOML, as one object. Whatever its bytes are, the only error is ConfigError."""

import datetime
import json
import os
import re
import stat
import tomllib
from collections import Counter
from typing import Any, cast

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.json_parsing import NoJsonNumber, parse_json, refuse_constant

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"?'
_COMMENTS = re.compile(rf"{_STRING}|//[^\n]*+|/\*[^*]*(?:\*(?!/)[^*]*)*(?:\*/)?", re.DOTALL)
_TRAILING_COMMAS = re.compile(rf"{_STRING}|(?:[\[{{:,][ \t\r\n]*+)?,(?=[ \t\r\n]*+[\]}}])")
_NOT_A_LINE_END = re.compile(r"[^\r\n]")


FILE_LIMIT = 64 << 20
"""Bytes of a file: a larger one was not written by hand, and is not read."""
PROJECT_LIMIT = 1 << 20
"""Bytes of a project's file. Somebody else wrote it, and every command in its folder pays for reading it: a mebibyte of
brackets takes 30 MiB and under a second."""
DEPTH = 100
"""Levels of objects and lists in a file. No host's entry needs ten; since no deeper one is accepted here, a reader of
entries may use recursion."""


_TOO_DEEP = f"nested too deeply: {DEPTH} levels are read"


class _RefusedError(Exception):
    """The error of text that is valid for Python's parser, but not for us."""


# ConfigError is raised after each `except` block: as its context, the parser's error would keep the whole text, with
# its secrets.


def read_document(file: str, *, found: bool = False, limit: int | None = None) -> dict[str, Any]:
    """The object in a file: TOML if its name ends in `.toml`, else JSON. In UTF-8, with or without a byte order mark.

    In JSON, comments and commas after a last item, as editors write them, are ignored.

    A file that was `found`, and not named, has to be a regular file, because reading a pipe could block. The file may
    have `limit` bytes, 64 MiB by default.

    Raises:
        ConfigError: The file cannot be read, has more bytes than the limit, is not UTF-8, not JSON or not an object, is
            nested more than 100 levels deep, or has a key twice in one of its objects.
    """
    return parse_document(_read(file, found=found, limit=limit or FILE_LIMIT), file)


def parse_document(text: str, file: str) -> dict[str, Any]:
    """The object that the text of a file stands for.

    Raises:
        ConfigError: As for `read_document`.
    """
    try:
        if file.endswith(".toml"):
            document = _to_json_types(_check_depth(tomllib.loads(text)))
        else:
            document = parse_json(blank_comments(text), object_pairs_hook=_object, parse_constant=refuse_constant)
            document = _check_depth(document)
        if isinstance(document, dict):
            return cast("dict[str, Any]", document)
        problem = f"the top level must be an object, not {json_type(document)}"
    except json.JSONDecodeError as error:
        problem = f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
    except tomllib.TOMLDecodeError as error:
        problem = f"not TOML: {str(error)[:200]}"
    except _RefusedError as error:
        problem = str(error)
    except RecursionError:
        problem = _TOO_DEEP
    except NoJsonNumber as error:
        problem = f"not JSON: {error}"
    except ValueError:
        problem = "a number with too many digits"
    raise ConfigError(problem, file=file)


def blank_comments(text: str, *, commas: bool = True) -> str:
    """The JSON with spaces in place of comments, and of commas after a last item, so that the rest stays in place."""
    bare = _COMMENTS.sub(_blank, text)
    return _TRAILING_COMMAS.sub(_blank, bare) if commas else bare


def as_object(value: object) -> dict[str, Any] | None:
    """The JSON value if it is an object, else None."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def json_type(value: object) -> str:
    """The JSON type of a value, for messages that must not show it."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "an object"


def is_unicode(text: str) -> bool:
    """True if the text can be written as UTF-8: JSON can escape halves of a character."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _read(file: str, *, found: bool, limit: int) -> str:
    try:
        with open(file, "rb", opener=_open_at_once if found else None) as stream:
            if found and not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise OSError(0, "not a regular file")
            data = stream.read(limit + 1)
    except OSError as error:
        problem = error.strerror or type(error).__name__
    except ValueError:
        problem = "not a file name"
    else:
        if len(data) <= limit:
            return _decode(data, file) if not data.isascii() else data.decode()
        problem = f"more than {limit >> 20} MiB"
    raise ConfigError(f"cannot be read: {problem}", file=file)


def _open_at_once(file: str, flags: int) -> int:
    return os.open(file, flags | os.O_NONBLOCK)


def _decode(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
    raise ConfigError(f"not UTF-8 (line {line}); save it as UTF-8", file=file)


def _check_depth(value: object) -> object:
    """The value, if it is not too deep. Checks level by level: the depth of a recursion would depend on the caller's
    stack."""
    level: list[object] = [[value]]
    for _ in range(DEPTH + 1):
        inner: list[object] = []
        for outer in level:
            inner += (
                cast("dict[str, object]", outer).values() if isinstance(outer, dict) else cast("list[object]", outer)
            )
        level = [part for part in inner if isinstance(part, dict | list)]
    if level:
        raise _RefusedError(_TOO_DEEP)
    return value


def _blank(match: re.Match[str]) -> str:
    """Spaces in place of a comment or comma, so that lines and columns stay.

    A string, a comment without an end, and a comma with nothing before it are left alone: the last two are errors.
    """
    found = match[0]
    comment = found[0] == "/" and (found[1] == "/" or found[2:].endswith("*/"))
    return _NOT_A_LINE_END.sub(" ", found) if comment or found == "," else found


def _to_json_types(value: object) -> object:
    """The value without the types that JSON does not have: times become text."""
    match value:
        case dict():
            return {key: _to_json_types(part) for key, part in cast("dict[str, Any]", value).items()}
        case list():
            return [_to_json_types(part) for part in cast("list[object]", value)]
        case datetime.date() | datetime.time():
            return value.isoformat()
        case _:
            return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _RefusedError(f"the key {twice[:80]!r} appears twice in one object")
    for key in value:
        if not key.isascii() and not is_unicode(key):
            raise _RefusedError(f"the key {key[:80]!r} is not Unicode text")
    return value
