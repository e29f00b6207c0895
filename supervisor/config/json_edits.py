"""Edits of JSON as people write it, with comments and commas after a last item, by the places of its values. Pure."""

import json
import re
from typing import Any, Literal

from attrs import frozen

from .document import Written, blanked

_decode = json.JSONDecoder().raw_decode
_BLANK = re.compile(r"[ \t]*+")
_SPACE = re.compile(r"[ \t\r\n]*+")
_REST_OF_LINE = re.compile(r"[ \t]*+,?[ \t]*+(?:/\*[^\r\n]*?\*/[ \t]*+)*+(?://[^\r\n]*+)?(?=[\r\n])")
_LINE_BEFORE = re.compile(r"\r?\n[ \t]*\Z")


@frozen
class _Item:
    """A member of an object, or an item of a list."""

    key: str | int
    start: int
    """Where its key begins; of an item, the value."""
    value: int
    end: int


def apply(text: str, verb: Literal["set", "append", "remove"], path: tuple[str | int, ...], value: object) -> str:
    """The text with the value at the path set or removed, or one appended to the list there."""
    plain = blanked(text)
    at = _skip(plain, 0)
    for depth, key in enumerate(path):
        items = _items(plain, at)
        found = next((item for item in items if item.key == key), None)
        if found is None:
            new: Any = [value] if verb == "append" else value
            for missing in reversed(path[depth + 1 :]):
                new = {missing: new}
            return _insert(text, at, items, f"{_json(key)}: {_json(new)}")
        if depth == len(path) - 1 and verb == "remove":
            return _remove(text, items, items.index(found))
        if depth == len(path) - 1 and verb == "set":
            return text[: found.value] + _json(value) + text[found.end :]
        at = found.value
    return _insert(text, at, _items(plain, at), _json(value))


def raw(text: str, path: tuple[str | int, ...]) -> str:
    """The value at the path as it stands there."""
    plain = blanked(text)
    at, end = _skip(plain, 0), len(text)
    for key in path:
        found = next(item for item in _items(plain, at) if item.key == key)
        at, end = found.value, found.end
    return text[at:end]


def _json(value: object) -> str:
    if isinstance(value, Written):
        return value.text
    return json.dumps(value, ensure_ascii=False)


def _items(plain: str, at: int) -> list[_Item]:
    """What stands in the object or list that begins here."""
    items: list[_Item] = []
    named = plain[at] == "{"
    here = _skip(plain, at + 1)
    while plain[here] not in "]}":
        start, key = here, len(items)
        if named:
            key, here = _decode(plain, here)
            here = _skip(plain, _skip(plain, here) + 1)
        _, end = _decode(plain, here)
        items.append(_Item(key, start, here, end))
        here = _skip(plain, end)
        here = _skip(plain, here + 1) if plain[here] == "," else here
    return items


def _skip(plain: str, at: int) -> int:
    match = _SPACE.match(plain, at)
    return match.end() if match else at


def _insert(text: str, at: int, items: list[_Item], new: str) -> str:
    """The text with one more item at the end. A comment behind the last one stays with it."""
    if not items:
        return f"{text[: at + 1]}{new}{text[at + 1 :]}"
    last = items[-1]
    line = _LINE_BEFORE.search(text, 0, last.start)
    rest = _REST_OF_LINE.match(text, last.end)
    if line is None or rest is None:
        return f"{text[: last.end]}, {new}{text[last.end :]}"
    comma = _comma(text, last.end)
    if comma is None:
        return f"{text[: last.end]},{rest[0]}{line[0]}{new}{text[rest.end() :]}"
    at = max(comma + 1, rest.end())
    return f"{text[:at]}{line[0]}{new},{text[at:]}"


def _remove(text: str, items: list[_Item], place: int) -> str:
    """The text without one item, its comma, and the line if it was its own. Comments around it stay."""
    start, end = items[place].start, items[place].end
    comma = _comma(text, end)
    cuts: list[tuple[int, int]] = []
    if comma is None and place:
        before = _comma(text, items[place - 1].end) or 0
        cuts.append((before, before + 1 if text[before + 1 : start].strip(" \t") else start))
    elif comma is not None and text[end:comma].strip():
        cuts.append((comma, comma + 1))
    elif comma is not None:
        end = comma + 1
    line = _LINE_BEFORE.search(text, 0, start)
    after = _BLANK.match(text, end)
    if line is not None and after is not None and text[after.end()] in "\r\n":
        start, end = line.start(), after.end()
    elif after is not None and (comma is not None or line is not None):
        end = after.end()
    for first, last in sorted([*cuts, (start, end)], reverse=True):
        text = text[:first] + text[last:]
    return text


def _comma(text: str, end: int) -> int | None:
    """Where the comma behind an item is."""
    bare = blanked(text, commas=False)
    at = _skip(bare, end)
    return at if bare[at] == "," else None
