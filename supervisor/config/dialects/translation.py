"""An entry of another host's file, translated into our own words. Pure. No message shows a value."""

import re
from collections.abc import Callable, Mapping, Sequence
from glob import escape
from typing import Any, cast

from mcp_nursery.actors.records import define, field
from mcp_nursery.supervisor.config.document import as_object
from mcp_nursery.supervisor.config.values import FieldError

_SSE_PATH = re.compile(r"[^?#]*/sse(?:[/?&#]|$)")


@define
class Translation:
    """The content of an entry, and the correspondence of its words and ours."""

    own: dict[str, Any]
    """The entry with our keys. Unknown keys stay."""
    words: dict[str, str] = field(factory=dict[str, str])
    """The file's key by ours, where they differ: errors name the key of the file."""

    def move(self, theirs: str, ours: str, value: Any) -> None:
        """Move the value of the host's key to ours; do nothing if it is None.

        Raises:
            FieldError: The entry uses both words.
        """
        if value is None:
            return
        self.own.pop(theirs, None)  # parts of one word may be several of ours
        if ours in self.own:
            raise FieldError(f"says the same as {self.words.get(ours, ours)}; remove one of them", theirs)
        self.own[ours] = value
        self.words[ours] = theirs

    def offer(self, ours: str, theirs: str, names: Sequence[str] | None) -> None:
        """Add the tools that are offered (`allow`) or are not (`deny`), by exact names, to `tools`.

        Raises:
            FieldError: The entry has `tools`, too.
        """
        if names is None:
            return
        del self.own[theirs]
        begun = any(word.startswith("tools.") for word in self.words)
        if "tools" in self.own and not begun:
            raise FieldError("says the same as tools; remove one of them", theirs)
        self.own["tools"] = {**(self.own["tools"] if begun else {}), ours: [escape(name) for name in names]}
        self.words[f"tools.{ours}"] = theirs


_OF_OAUTH = {
    "clientId": "clientId",
    "clientSecret": "clientSecret",
    "scope": "scopes",
    "scopes": "scopes",
    "callbackPort": "redirectPort",
    "redirectUri": "redirectUri",
}
"""The keys that hosts have under `oauth`, with the keys of our `auth`."""


def oauth(translation: Translation) -> None:
    """Move an object under `oauth` to `auth`, unless it is switched off. Its unknown keys stay, for a warning; scopes
    may be one text.

    Raises:
        FieldError: The entry has `auth`, too.
    """
    said = as_object(translation.own.get("oauth"))
    if said is None or said.get("enabled") is False:
        return
    known = {key: value for key, value in said.items() if key in _OF_OAUTH and value is not None}
    left = {key: value for key, value in said.items() if key not in {*_OF_OAUTH, "enabled"}}
    words = {_OF_OAUTH[key]: value for key, value in known.items()}
    if isinstance(words.get("scopes"), str):
        words["scopes"] = words["scopes"].split()
    translation.move("oauth", "auth", {"type": "oauth", **words})
    for key in words:
        translation.words[f"auth.{key}"] = f"oauth.{next(theirs for theirs in known if _OF_OAUTH[theirs] == key)}"
    if left:
        translation.own["oauth"] = left


Translate = Callable[[dict[str, Any]], Translation]
"""A function that translates an entry without its nulls to our words; `Translation` itself if they are ours already.
Raises `FieldError` for a word of the dialect that cannot be translated."""


def each_text(value: object, change: Callable[[str], str]) -> Any:
    """The JSON value with each text in it changed; keys stay."""
    match value:
        case str():
            return change(value)
        case list():
            return [each_text(item, change) for item in cast("list[object]", value)]
        case _:
            parts = as_object(value)
            return value if parts is None else {key: each_text(part, change) for key, part in parts.items()}


def sse_by_path(translation: Translation) -> None:
    """Set the transport `sse` for a URL whose path is one of SSE, unless the entry has a transport."""
    own = translation.own
    if "type" not in own and isinstance(own.get("url"), str) and _SSE_PATH.match(own["url"]):
        own["type"] = "sse"


def with_header(headers: Any, name: str, text: str, *, key: str) -> Any:
    """The headers and one more.

    Raises:
        FieldError: The headers have it already.
    """
    known: Mapping[str, Any] = as_object(headers) or {}
    if headers is not None and as_object(headers) is None:
        return headers  # not an object, which the reader of the entry will report
    if name.lower() in map(str.lower, known):
        raise FieldError(f"the header {name} is in headers too; remove one of them", key)
    return {**known, name: text}
