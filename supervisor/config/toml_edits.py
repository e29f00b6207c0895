"""Edits of TOML by its lines. Pure.

tomlkit is no use here: it assigns a comment above a table to the table before, removes it with that one, and writes new
keys below it.
"""

import json
import re
import tomllib
from collections.abc import Collection, Iterator
from typing import Any, Literal, cast

from mcp_nursery.actors.records import frozen

from .document import as_object

KeyPath = tuple[str | int, ...]

_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_MAY_END = re.compile(r"\"{3}|'{3}|[\]}]")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BOOLEAN = re.compile(r"(=[ \t]*)(?:true|false)\b")


@frozen
class _Statement:
    """A header, or a key with its value. Only a value may have several lines."""

    path: KeyPath
    first: int
    end: int
    header: bool


def apply(text: str, verb: Literal["set", "append"], path: KeyPath, value: object) -> str:
    """The text with the value at the path set; the same text if its lines do not allow that. A table is set at the
    end."""
    if not isinstance(value, bool):
        return _append(text, path, value)
    lines = _LINES.findall(text)
    statements = list(_statements(lines))
    ending = _ending(text)
    said = "true" if value else "false"
    for each in statements:
        if each.path == path and not each.header:
            lines[each.first] = _BOOLEAN.sub(rf"\g<1>{said}", lines[each.first], count=1)
            return "".join(lines)
    table = next((each for each in statements if each.header and each.path == path[:-1]), None)
    if verb == "set" and table is not None:
        last = _last_of(table, statements)
        line = lines[last.first]
        indent = line[: len(line) - len(line.lstrip())]
        if not lines[last.end - 1].endswith("\n"):
            lines[last.end - 1] += ending
        lines.insert(last.end, f"{indent}{path[-1]} = {said}{ending}")
    return "".join(lines)


def remove(text: str, way: KeyPath, keys: Collection[str | int]) -> str:
    """The text without these values of one table, in one pass, as there may be thousands."""
    lines, depth = _LINES.findall(text), len(way)
    inside = [each for each in _statements(lines) if each.path[:depth] == way]
    gone = [each for each in inside if len(each.path) > depth and each.path[depth] in keys]
    left = _without(lines, gone)
    if gone and len(gone) == len(inside):
        left[gone[0].first] = f"[{'.'.join(map(str, way))}]{_ending(text)}"  # an empty table needs its header
    return "".join(left)


def _append(text: str, path: KeyPath, value: object) -> str:
    ending = _ending(text)
    before = "" if not text.strip() else ending if text.endswith("\n") else ending * 2
    return f"{text}{before}{ending.join(_table(path, value))}{ending}"


def _ending(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _table(path: KeyPath, value: object) -> list[str]:
    known = as_object(value) or {}
    head = ".".join(_key(str(key)) for key in path)
    return [f"[{head}]", *(f"{_key(key)} = {_toml(part)}" for key, part in known.items())]


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            parts = cast("dict[str, object]", value).items()
            return f"{{ {', '.join(f'{_key(key)} = {_toml(part)}' for key, part in parts)} }}" if parts else "{}"
        case list():
            return f"[{', '.join(map(_toml, cast('list[object]', value)))}]"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return repr(value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _toml(key)


def _last_of(table: _Statement, statements: list[_Statement]) -> _Statement:
    """The last statement before the next header."""
    last = table
    for each in statements[statements.index(table) + 1 :]:
        if each.header:
            break
        last = each
    return last


def _without(lines: list[str], gone: list[_Statement]) -> list[str]:
    """The lines without these statements, without those between two of them in one table, and without the blank lines
    that follow."""
    left = list(lines)
    for each, following in zip(gone, [*gone, None][1:], strict=True):
        end = following.first if following is not None and not following.header else each.end
        left[each.first : end] = [""] * (end - each.first)
        if following is None or following.header:
            while end < len(left) and not left[end].strip():
                left[end], end = "", end + 1
    return left


def _statements(lines: list[str]) -> Iterator[_Statement]:
    """The statements of these lines: each has as many lines as make it TOML on its own."""
    table: KeyPath = ()
    first = 0
    for end, line in enumerate(lines, 1):
        if end - first > 1 and not _MAY_END.search(line):
            continue  # each attempt parses all of the statement again
        try:
            said = tomllib.loads("".join(lines[first:end]))
        except tomllib.TOMLDecodeError:
            continue
        if said:
            header = lines[first].lstrip().startswith("[")
            path = _only(said, deep=header)
            table = path if header else table
            yield _Statement(path if header else table + path, first, end, header)
        first = end


def _only(said: dict[str, Any], *, deep: bool) -> KeyPath:
    """The path of the one key that is set; the keys of an inline table belong to its value, unless `deep`."""
    path: KeyPath = ()
    inner: dict[str, Any] | None = said
    while inner and (deep or not path):
        key, value = next(iter(inner.items()))
        path, inner = (*path, key), as_object(value)
    return path
