"""Strict values from a JSON document: nothing is converted, and no message shows a value."""

import math
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from operator import eq
from typing import Any, Literal, NewType, TypeVar, cast, get_args

from cattrs import ClassValidationError, Converter
from cattrs.gen import make_dict_structure_fn

from mcp_nursery.actors.enums import Protocol
from mcp_nursery.actors.extensions import Settings, checked_extensions
from mcp_nursery.actors.http.header_rules import problem_with_header
from mcp_nursery.actors.records import AttrsInstance, fields_dict
from mcp_nursery.actors.roots import CWD
from mcp_nursery.supervisor.decisions.restart_policy import (
    Instances,
    Lazy,
    OnDisconnect,
    RestartMode,
    Revive,
    is_revive,
)

from .document import as_object, is_unicode, json_type
from .variables import command_of

T = TypeVar("T", bound=AttrsInstance)


Milliseconds = NewType("Milliseconds", float)
"""A number of milliseconds in a file; seconds once it is read."""


Bytes = NewType("Bytes", int)
"""A number of bytes in a file, perhaps as text with a unit."""

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([KMG])(i?)B", re.IGNORECASE)


WrittenExtensions = Mapping[str, Settings] | None
"""The settings of extensions, by identifier."""

WrittenRoots = tuple[str, ...] | Literal["cwd"] | None
"""Folders, as paths or URIs, or the working directory."""


class FieldError(Exception):
    """The fault of an object, and the key that has it."""

    def __init__(self, problem: str, key: str | None = None) -> None:
        super().__init__(problem)
        self.key = key


def structurer(cls: type[T]) -> Callable[[dict[str, Any]], T]:
    """The function that makes an instance of an attrs class from a JSON object, whose keys are the fields' aliases.

    The function is built at its first call: most files need few of them.

    Text is Unicode without NUL, a `float` a finite number >= 0 (seconds), an `int` a whole number >= 1 (a count). Keys
    that the class does not have are left out. The function raises `FieldError` for the first field that is invalid.
    """

    @cache
    def builder() -> Callable[[Mapping[str, Any], type[T]], T]:
        converter = Converter(detailed_validation=True)
        for plain, check in _PLAIN_TYPES:
            converter.register_structure_hook(plain, check)
        for kind, check in _COMPOSED:
            converter.register_structure_hook_func(partial(eq, kind), check)
        return make_dict_structure_fn(cls, converter, _cattrs_use_alias=True)

    def structure(value: dict[str, Any]) -> T:
        try:
            return builder()(value, cls)
        except ClassValidationError as error:
            problem, note = error.group_exceptions()[0][0]
        raise FieldError(str(problem), fields_dict(cls)[note.name].alias)

    return structure


def _text(value: object, _type: object = None, where: str = "") -> str:
    if not isinstance(value, str):
        raise TypeError(f"{where}must be text, not {json_type(value)}")
    if "\0" in value or not (value.isascii() or is_unicode(value)):
        raise ValueError(f"{where}must be Unicode text without NUL")
    return value


def _boolean(value: object, _type: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"must be true or false, not {json_type(value)}")
    return value


def _seconds(value: object, _type: object = None, unit: str = "seconds") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"must be {unit}, not {json_type(value)}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not 0 <= seconds < math.inf:
        raise ValueError(f"must be finite {unit} >= 0")
    return seconds


def _milliseconds(value: object, _type: object) -> float:
    return _seconds(value, unit="milliseconds") / 1000


def _count(value: object, _type: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"must be a whole number, not {json_type(value)}")
    if value < 1:
        raise ValueError("must be a whole number >= 1")
    return value


def _bytes(value: object, _type: object) -> int:
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        size = int(float(found[1]) * (1024 if found[3] else 1000) ** (1 + "KMG".index(found[2].upper())))
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        raise ValueError('must be bytes, as a whole number or as a text like "512MiB" or "1.5GiB"')
    if size < 1:
        raise ValueError("must be bytes >= 1")
    return size


def _texts(value: object, _type: object) -> tuple[str, ...]:
    return tuple(_text(item, where=f"item {index} ") for index, item in enumerate(_list(value), 1))


def _ladder(value: object, _type: object) -> tuple[float, ...]:
    return tuple(_seconds(item) for item in _list(value))


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"must be a list, not {json_type(value)}")
    return cast("list[object]", value)


def _variables(value: object, _type: object) -> dict[str, str]:
    variables = _object(value, None)
    for name in variables:
        if not name or "=" in name or "\0" in name:
            raise ValueError("a variable's name must not be empty or contain '=' or NUL")
    return {name: _text(text, where=f"the value of {name[:80]!r} ") for name, text in variables.items()}


def _object(value: object, _type: object) -> dict[str, Any]:
    found = as_object(value)
    if found is None:
        raise TypeError(f"must be an object, not {json_type(value)}")
    return found


def _headers(value: object, _type: object) -> dict[str, str]:
    headers = _object(value, None)
    for name, text in headers.items():
        _text(text, where=f"the value of {name[:80]!r} ")
        problem = problem_with_header(name, text if command_of(text) is None else text.strip())
        if problem is not None:
            raise ValueError(problem)
    return headers


def _switches(value: object, _type: object) -> dict[str, bool]:
    return {name: _boolean(switch, bool) for name, switch in _object(value, None).items()}


def _word(value: object, words: Any) -> str:
    if not (isinstance(value, str) and value in get_args(words)):
        raise ValueError(f"must be one of {', '.join(get_args(words))}")
    return value


def _lazy(value: object, _type: object) -> Lazy:
    if value == "cached":
        return "cached"
    if not isinstance(value, bool):
        raise TypeError("must be true, false or cached")
    return value


def _roots(value: object, _type: object) -> tuple[str, ...] | Literal["cwd"]:
    if value == CWD:
        return CWD
    if isinstance(value, str):
        raise TypeError(f'must be a list of folders, or "{CWD}"')
    return _texts(value, None)


def _extensions(value: object, _type: object) -> dict[str, Settings]:
    return checked_extensions(_object(value, None))


def _revive(value: object, _type: object) -> Revive:
    said = tuple(cast("list[object]", value)) if isinstance(value, list) else value
    if not is_revive(said):
        raise ValueError('must be on_call, never, finite seconds > 0, or ["on_call", seconds]')
    return cast("Revive", said)


_Check = Callable[[Any, Any], Any]

_PLAIN_TYPES: tuple[tuple[type, _Check], ...] = (
    (str, _text),
    (bool, _boolean),
    (float, _seconds),
    (int, _count),
)
_COMPOSED: tuple[tuple[Any, _Check], ...] = (
    (Milliseconds, _milliseconds),
    (Bytes | None, _bytes),
    (tuple[str, ...], _texts),
    (tuple[float, ...], _ladder),
    (dict[str, str], _variables),
    (Mapping[str, str], _headers),
    (dict[str, bool], _switches),
    (RestartMode, _word),
    (Protocol, _word),
    (Instances, _word),
    (OnDisconnect, _word),
    (WrittenRoots, _roots),
    (WrittenExtensions, _extensions),
    (Lazy | None, _lazy),
    (Revive | None, _revive),
)
