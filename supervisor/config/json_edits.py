"""Edits of JSON as people write it, with comments and commas after a last item, by the places of its values. Pure."""

import json
import re
from collections.abc import Collection
from typing import Literal

from mcp_nursery.actors.records import frozen

from .document import blank_comments

KeyPath = tuple[str | int, ...]

_decode = json.JSONDecoder().raw_decode
_WHITE_SPACE = re.compile(r"[ \t]*+")
_SPACE = re.compile(r"[ \t\r\n]*+")
_REST_OF_LINE = re.compile(
    r"[ \t]*+,?[ \t]*+(?:/\*[^*\r\n]*(?:\*(?!/)[^*\r\n]*)*\*/[ \t]*+)*(?://[^\r\n]*+)?(?=[\r\n])"
)


@frozen
class _Item:
    """A member of an object, or an item of a list."""

    key: str | int
    start: int
    """The offset at which the key begins; in a list, the value."""
    value: int
    end: int


def apply(text: str, verb: Literal["set", "append"], path: KeyPath, value: object) -> str:
    """The text with the value at the path set, or with a value appended to the list there."""
    plain = blank_comments(text)
    at, missing = _find(plain, path)
    if missing:
        return _insert(text, at, _items(plain, at), _member(missing, [value] if verb == "append" else value))
    if verb == "append":
        return _insert(text, at, _items(plain, at), _json(value))
    _, end = _decode(plain, at)
    return f"{text[:at]}{_json(value)}{text[end:]}"


def remove(text: str, way: KeyPath, keys: Collection[str | int]) -> str:
    """The text without these values of one object or list, in one pass, as there may be thousands."""
    plain = blank_comments(text)
    at, _ = _find(plain, way)
    items = _items(plain, at)
    bare = blank_comments(text, commas=False)
    for place in reversed(range(len(items))):  # so the offsets of earlier items stay valid
        if items[place].key in keys:
            for first, last in _cuts(bare, text, items, place):
                text, bare = text[:first] + text[last:], bare[:first] + bare[last:]
    return text


def _find(plain: str, path: KeyPath) -> tuple[int, KeyPath]:
    """The offset of the value at the path, or of the last one on the way, and the rest of the path from there."""
    at = _skip(plain, 0)
    for depth, key in enumerate(path):
        found = next((item for item in _items(plain, at) if item.key == key), None)
        if found is None:
            return at, path[depth:]
        at = found.value
    return at, ()


def _member(path: KeyPath, value: object) -> str:
    """The value as a member of an object, in objects of its own if the path has several keys."""
    first, *more = path
    written = _json(value) if not more else f"{{{_member(tuple(more), value)}}}"
    return f"{_json(first)}: {written}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _items(plain: str, at: int) -> list[_Item]:
    """The items of the object or list that begins here."""
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
    """The text with one more item at the end. A comment behind the last item stays with that item."""
    if not items:
        return f"{text[: at + 1]}{new}{text[at + 1 :]}"
    last = items[-1]
    line = _line_before(text, last.start)
    rest = _REST_OF_LINE.match(text, last.end)
    if line is None or rest is None:
        return f"{text[: last.end]}, {new}{text[last.end :]}"
    comma = _comma(blank_comments(text, commas=False), last.end)
    break_ = text[line : last.start]
    if comma is None:
        return f"{text[: last.end]},{rest[0]}{break_}{new}{text[rest.end() :]}"
    at = max(comma + 1, rest.end())
    return f"{text[:at]}{break_}{new},{text[at:]}"


def _cuts(bare: str, text: str, items: list[_Item], place: int) -> list[tuple[int, int]]:
    """The cuts that remove one item from the text, the last first: the item, its comma, and the line if nothing else
    is on it. Comments around the item stay. `bare` is the text without comments."""
    start, end = items[place].start, items[place].end
    comma = _comma(bare, end)
    cuts: list[tuple[int, int]] = []
    if comma is None and place:
        before = _comma(bare, items[place - 1].end) or 0
        cuts.append((before, before + 1 if text[before + 1 : start].strip(" \t") else start))
    elif comma is not None and text[end:comma].strip():
        cuts.append((comma, comma + 1))
    elif comma is not None:
        end = comma + 1
    line = _line_before(text, start)
    after = _WHITE_SPACE.match(text, end)
    if line is not None and after is not None and text[after.end()] in "\r\n":
        start, end = line, after.end()
    elif after is not None and (comma is not None or line is not None):
        end = after.end()
    return sorted([*cuts, (start, end)], reverse=True)


def _line_before(text: str, start: int) -> int | None:
    """The offset of the line break before this place, if there is nothing between them; else None."""
    at = text.rfind("\n", 0, start)
    if at < 0 or text[at + 1 : start].strip(" \t"):
        return None
    return at - (text[at - 1 : at] == "\r")


def _comma(bare: str, end: int) -> int | None:
    """The offset of the comma after an item."""
    at = _skip(bare, end)
    return at if bare[at] == "," else None
