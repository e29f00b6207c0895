"""The removal of secrets from what is logged, shown or put into an error. Pure.

Arguments of calls, stderr, and what servers say in errors go through here before anybody sees them. Results of tools
do not: they are the answer.
"""

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from typing import Any, Final, cast
from urllib.parse import quote

from mcp_nursery.actors.pieces import SMALL, Steps, at_once
from mcp_nursery.actors.records import Factory, define, field, frozen
from mcp_nursery.actors.secrets import MAX_LINE

from .secret_patterns import KNOWN_KEYS, SECRET_PLACES
from .secret_values import behind_scheme, is_secret_name, secrets_of

__all__ = ["Redactor"]

MIN_VALUE: Final = 6
"""Characters of a configured value below which it is not looked for: `1` or `true` would be found everywhere."""
MIN_LINE: Final = 16
"""Characters of one line of a configured value below which it is not looked for by itself."""
MAX_EARLIER: Final = 100
"""Values of earlier connects that are still looked for."""
MAX_DEPTH: Final = 64
"""Levels of nesting kept; what lies deeper is left out."""

MAX_SAID: Final = 100_000
"""Characters of a server's text that are kept: the search for secrets takes two million a second."""
_LONG_VALUE: Final = 256
"""Characters from which on a value is looked for by itself: making a pattern takes a microsecond for each, and each
token that is renewed needs another pattern."""
CUT_MARGIN: Final = 10_000
"""Characters before a cut that are not shown: they may be the beginning of a secret that was cut apart."""

_SHORTEST_KEY: Final = 15
"""Characters of the shortest key. A shorter text without `:` and `=` holds no secret of any kind: a name, a version, a
title, of which each server has some when it is connected."""

_SHORT_TEXT: Final = 4096
"""Characters that are looked at in one go: two milliseconds."""

_CONFIGURED = "[REDACTED:config]"
_HEX = re.compile("%..")
_REDACTION_MARKS = " ".join((_CONFIGURED, *(f"[REDACTED:{name}]" for name, *_ in (*KNOWN_KEYS, *SECRET_PLACES))))


@cache
def compile_patterns() -> Sequence[tuple[re.Pattern[str], str]]:
    """Each kind of secret, and the mark in its place. Compiled ahead, or when a text is first searched: 30 ms."""
    keys = [(re.compile(key), f"[REDACTED:{name}]") for name, key in KNOWN_KEYS]
    places = [
        (re.compile(f"(?P<kept>{before})(?:{it})"), rf"\g<kept>[REDACTED:{name}]") for name, before, it in SECRET_PLACES
    ]
    return keys + places


@frozen
class Redactor:
    """The replacement of known kinds of secrets, and of the values it was made for, by `[REDACTED:<name>]`.

    Doing it twice changes nothing more. It takes time linear in the text.
    """

    _values: tuple[str, ...] = field(default=(), repr=False, eq=False)
    """The configured values, the newest first."""
    _spelled: tuple[str, ...] = field(
        default=Factory(lambda self: _spelled(self._values), takes_self=True), init=False, repr=False, eq=False
    )
    """The forms in which the values may be quoted, the longest first."""
    _long: tuple[str, ...] = field(
        default=Factory(
            lambda self: tuple(form for form in self._spelled if len(form) >= _LONG_VALUE), takes_self=True
        ),
        init=False,
        repr=False,
        eq=False,
    )
    _short: re.Pattern[str] | None = field(
        default=Factory(lambda self: _compile(self._spelled[len(self._long) :]), takes_self=True),
        init=False,
        repr=False,
        eq=False,
    )

    @classmethod
    def of(cls, values: Iterable[str]) -> "Redactor":
        """The redactor that also replaces these values wherever they stand, plain, in JSON, in a URL or in base64. Case
        counts, but values in lower case throughout are found, too.

        Values of fewer than 6 characters, and those that a mark holds itself, are left alone.
        """
        return cls(_worth_looking_for(values))

    def also_of(self, transport: object) -> "Redactor":
        """The redactor that also replaces the secrets of this transport: variables, headers and parts of its URL that
        have a secret's name or are not plain, passwords, and the arguments that follow a secret's name.

        For a transport that is not resolved yet, those written out in it: its `literals`.
        """
        literals: Iterable[str] | None = getattr(transport, "literals", None)
        return self.also(secrets_of(transport) if literals is None else literals)

    def also(self, values: Iterable[str]) -> "Redactor":
        """The redactor that also replaces these values, and credentials that follow a scheme in such a value.

        Of earlier values the last 100 stay: tokens that change at each connect do not pile up.
        """
        found = _worth_looking_for(form for value in values for form in (value, behind_scheme(value)))
        if set(found) <= set(self._values):
            return self
        return type(self)(tuple(dict.fromkeys((*found, *self._values[:MAX_EARLIER]))))

    def _without_configured(self, text: str) -> str:
        if len(text) >= _LONG_VALUE:
            for form in self._long:
                text = text.replace(form, _CONFIGURED)
        return text if self._short is None else self._short.sub(_CONFIGURED, text)

    def text(self, text: str) -> str:
        """The text without secrets."""
        text = self._without_configured(text)
        if len(text) < _SHORTEST_KEY and ":" not in text and "=" not in text:
            return text
        for pattern, mark in compile_patterns():
            text = pattern.sub(mark, text)
        return text

    def said(self, text: str) -> str:
        """The words of a server without secrets; only the beginning of more than 100,000 characters. To shorten a text,
        cut this result: half of a secret would not be found in a text that was cut before."""
        if len(text) <= MAX_SAID:
            return self.text(text)
        return f"{self.text(text[:MAX_SAID])[:-CUT_MARGIN]}… ({len(text)} characters)"

    def beginning(self, text: str, longest: int) -> str:
        """The first `longest` characters of a server's words, without secrets. The time depends on these, not on the
        whole text."""
        end = longest + CUT_MARGIN
        if len(text) <= end:
            return self.text(text)[:longest]
        return self.text(text[:end])[:-CUT_MARGIN][:longest]

    def line(self, text: str) -> str:
        """The words of a server without secrets, as far as a line has room for them: see `Secrets.hide_line`."""
        shown = self.beginning(text, MAX_LINE)
        return shown if len(text) <= MAX_LINE else f"{shown}…"

    def text_in_pieces(self, text: str) -> Steps[str]:
        """The result of `text`, one kind of secret after the other."""
        if len(text) <= _SHORT_TEXT:
            return self.text(text)
        text = self._without_configured(text)
        for pattern, mark in compile_patterns():
            yield
            text = pattern.sub(mark, text)
        return text

    def finds_configured(self, text: str) -> Steps[bool]:
        """True if one of the configured values stands in the text, in any form. In pieces."""
        if not self._spelled:
            return False
        overlap = len(self._spelled[0])
        for start in range(0, len(text), SMALL):
            first, end = max(0, start - overlap), start + SMALL
            if any(text.find(form, first, end) >= 0 for form in self._long):
                return True
            if self._short is not None and self._short.search(text, first, end) is not None:
                return True
            yield
        return False

    def said_in_pieces(self, text: str) -> Steps[str]:
        """The result of `said`, in pieces."""
        if len(text) <= MAX_SAID:
            return (yield from self.text_in_pieces(text))
        shown = yield from self.text_in_pieces(text[:MAX_SAID])
        return f"{shown[:-CUT_MARGIN]}… ({len(text)} characters)"

    def value(self, value: object, *, depth: int = MAX_DEPTH) -> Any:
        """The same JSON value with every text in it redacted; texts under a name like `password` are redacted entirely.

        Args:
            value: The JSON value.
            depth: Levels of objects and lists that are kept.
        """
        return at_once(self._value_in_pieces(value, depth, secret=False))

    def value_in_pieces(self, value: object) -> Steps[Any]:
        """The result of `value`, in pieces."""
        return self._value_in_pieces(value, MAX_DEPTH, secret=False)

    def _value_in_pieces(self, value: object, depth: int, *, secret: bool) -> Steps[Any]:
        yield
        if isinstance(value, str):
            return "[REDACTED:secret]" if secret and value else (yield from self.text_in_pieces(value))
        if not isinstance(value, (Mapping, list, tuple)):
            return value
        if not depth:
            return "…"
        if isinstance(value, Mapping):
            redacted: dict[str, Any] = {}
            for key, item in cast("Mapping[object, object]", value).items():
                name = yield from self.text_in_pieces(str(key))
                hidden = secret or is_secret_name(str(key))
                redacted[name] = yield from self._value_in_pieces(item, depth - 1, secret=hidden)
            return redacted
        items = list(cast("Sequence[object]", value))
        for at, item in enumerate(items):
            items[at] = yield from self._value_in_pieces(item, depth - 1, secret=secret)
        return items


def _spelled(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        sorted({form for value in values for form in _forms(value) if form not in _REDACTION_MARKS}, key=len)[::-1]
    )


def _compile(forms: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, forms))) if forms else None


_UNQUOTED: Final = ("", "/", "!'()*", ";,/?:@&=+$!'()*#")
"""The characters that `quote`, `quote` of a path, JavaScript's `encodeURIComponent` and `encodeURI` leave as they
are."""


def _forms(value: str) -> Iterator[str]:
    """A value as it may stand in a text: as it is, on one line, in JSON, in HTML, in a URL, in base64; and its lines,
    which a log separates. In a host name and in the type of a body it is written in lower case."""
    lines = [line.strip() for line in value.splitlines()]
    yield from (value, " ".join(value.split()), *(line for line in lines if len(line) >= MIN_LINE))
    yield from (json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    yield from (escape(value, quote=quotes) for quotes in (True, False))
    yield value.lower()
    for encoded in (b64encode, urlsafe_b64encode):
        yield encoded(value.encode(errors="surrogatepass")).decode().rstrip("=")
    for safe in _UNQUOTED:
        quoted = quote(value, safe=safe, errors="surrogatepass")
        for form in (quoted, quoted.replace("%20", "+")):
            yield form
            yield _HEX.sub(lambda found: found[0].lower(), form)


def _worth_looking_for(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if len(value) >= MIN_VALUE and value not in _REDACTION_MARKS))


PLAIN: Final = Redactor()
"""The redactor of texts that belong to no server."""


@define(eq=False)
class ServerSecrets:
    """The secrets of one server, as far as they are known: connects find more, which no other server's texts hide."""

    redactor: Redactor = PLAIN
    """The redactor of what is said of the server."""

    def learn(self, values: Iterable[str]) -> None:
        """Add secret values to the redactor."""
        self.redactor = self.redactor.also(values)

    def hide(self, text: str) -> str:
        """The words of the server without secrets: see `Redactor.said`."""
        return self.redactor.said(text)

    def hide_line(self, text: str) -> str:
        """The words of the server without secrets, as far as a line has room for them: see `Secrets.hide_line`."""
        return self.redactor.line(text)
