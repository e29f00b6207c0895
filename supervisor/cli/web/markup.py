"""Markup, made by functions that escape: the words of servers and clients are always text on the page."""

import re
from collections.abc import Iterable
from functools import cache
from html import escape
from typing import Final, TypeAlias

VOID: Final = frozenset({"img", "input", "link", "meta"})
"""Elements without content."""
_SPECIAL: Final = re.compile("[&<>\"']")


class Html(str):
    """Markup. Only `h` and `join` make it; any other string is text, and is escaped when it is put into markup."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[str | int | None] | None"
"""Text or markup, several of them, or nothing."""


def h(tag: str, /, *children: Child, **attributes: str | int | bool | None) -> Html:
    """Make an element. `class_` and `for_` are written without the last character, and `_` in other attributes as `-`.
    True is written without a value; False and None are left out."""
    written = "".join(
        _name(name) + ("" if value is True else f'="{_escape(str(value))}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{join(*children)}</{tag}>")


@cache  # of few names: they stand in the code
def _name(name: str) -> str:
    return f" {name.rstrip('_').replace('_', '-')}"


def _escape(text: str) -> str:
    """The text with its special characters escaped: most have none, and a page has ten thousands of texts."""
    return escape(text) if _SPECIAL.search(text) else text


def join(*children: Child) -> Html:
    """Make markup of several pieces."""
    return Html("".join(map(_text, children)))


def _text(child: Child) -> str:
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return _escape(child)
    if child is None or isinstance(child, int):
        return "" if child is None else str(child)
    return "".join(map(_text, child))
