"""One file to one JSON object. Whatever its bytes are, the only error is ConfigError."""

import json
from collections import Counter
from typing import Any, NoReturn, cast

from mcp_nursery.actors.errors import ConfigError


class _RefusedError(Exception):
    """Valid for Python's parser, not for us."""


def read_document(file: str) -> dict[str, Any]:
    """The JSON object in a file, in UTF-8 with or without a byte order mark.

    Raises:
        ConfigError: The file cannot be read, is not UTF-8, not JSON or not an object, or a key of one of its objects
            stands there twice.
    """
    document = _parse(_decode(_read(file), file), file)
    top = as_object(document)
    if top is None:
        raise ConfigError(f"an object wanted at the top, not {json_type(document)}", file=file)
    return top


def as_object(value: object) -> dict[str, Any] | None:
    """The JSON value if it is an object, else None."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def json_type(value: object) -> str:
    """What a JSON value is, for messages that must not show it."""
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
    """Whether the text can be written as UTF-8: JSON can escape halves of a character."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


# In the functions below ConfigError is raised after the `except` block: as its context, the parser's error would keep
# the whole text, secrets included.


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as stream:
            return stream.read()
    except OSError as error:
        problem = error.strerror or type(error).__name__
    except ValueError:
        problem = "not a file name"
    raise ConfigError(f"cannot be read: {problem}", file=file)


def _decode(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
    raise ConfigError(f"not UTF-8 (line {line})", file=file)


def _parse(text: str, file: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        problem = f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
    except _RefusedError as error:
        problem = str(error)
    except RecursionError:
        problem = "nested too deeply"
    except ValueError:
        problem = "a number with too many digits"
    raise ConfigError(problem, file=file)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _RefusedError(f"the key {twice[:80]!r} stands twice in one object")
    for key in value:
        if not is_unicode(key):
            raise _RefusedError(f"the key {key[:80]!r} is not Unicode text")
    return value


def _constant(name: str) -> NoReturn:
    raise _RefusedError(f"not JSON: {name} is not a number JSON knows")
