"""The texts of entries, which a report for strangers leaves out of all messages. Pure.

A redactor leaves plain words in place, so that errors can be read. In a report, however, any text of an entry may be
the secret: a password that is a word, or a number of four digits. So each text is replaced by the name of its field, as
a whole and in its parts: `[env.API_KEY]`. Errors still show which field they are about.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, cast
from urllib.parse import unquote, unquote_plus

from mcp_nursery.actors.process.command import INHERITED
from mcp_nursery.actors.records import define, field
from mcp_nursery.supervisor.config.entry import ENTRY_KEYS
from mcp_nursery.supervisor.config.variables import PLACE_VARIABLES, UnresolvedVariable, expand, variables_in
from mcp_nursery.supervisor.security.redaction import Redactor
from mcp_nursery.supervisor.security.secret_values import is_secret, secrets_of_value
from mcp_nursery.supervisor.stderr import LONGEST_LINE

from .output import safe_text

SHORTEST: Final = 3
"""Characters of a text that is searched for, at least: shorter ones occur everywhere, and keep no secret."""
_ALONE: Final = 6
"""Characters of a text that is searched for within words, too, at least."""

_FIELDS: Final = (
    "command",
    "image",
    "args",
    "cwd",
    "url",
    "env",
    "envFile",
    "headers",
    "headersHelper",
    "auth",
    "caFile",
)
"""The fields of an entry with texts that only its server is meant to see. Unknown fields count as such, too."""

_ORDINARY: Final = re.compile(
    r"all|any|auto|cli|cmd|critical|debug|default|dev|development|docker|error|exec|false|file|html|https?|info|json|"
    r"latest|local|localhost|log|main|mcp|mcp-server|node|none|npm|npx|null|oauth|off|python3?|run|serve|server|silent|"
    r"sse|start|stdio|test|text|trace|true|uvx|verbose|warn|warning|yes|"
    r"--[a-z]+(?:-[a-z]+)*|\d{1,3}",
    re.IGNORECASE,
)
"""Words that messages need and that identify nobody, names of options, and small numbers. Under the name of a secret
they are left out, too."""

_BETWEEN: Final = re.compile(r"[\s=;,&?@#|!<>(){}\[\]\"'`]+|:(?!//)|://")
"""The characters between the parts of a text, which a program may print by themselves."""
_CUT: Final = re.compile(r"\S+…$")
"""The end of a message that was cut: half of a text would not be found."""


@define
class EntryTexts:
    """The texts of some entries, which are left out of messages."""

    _hidden: "_Index" = field(repr=False)
    _shown: "_Index" = field(repr=False)
    _redactor: Redactor

    @classmethod
    def of(
        cls, entries: Iterable[Mapping[str, Any]], *, environ: Mapping[str, str], shown: Iterable[str] = ()
    ) -> "EntryTexts":
        """The texts of these entries, which are in our words, and unresolved: `environ` has their variables. Fields of
        unknown names are left out, too. Texts in `shown`, such as names of servers and files, are not left out where
        they occur whole."""
        public = dict.fromkeys(shown, "")
        names: dict[str, str] = {}
        secrets: set[str] = set()
        for place, name, text in chain.from_iterable(_texts(entry, environ) for entry in entries):
            secrets |= secrets_of_value(name, text)
            is_told = is_secret(name, text)
            for part in _parts(text):
                if len(part) >= SHORTEST and part not in public and (is_told or _ORDINARY.fullmatch(part) is None):
                    names.setdefault(part, place)
        return cls(_Index.of(names), _Index.of(public), Redactor.of(secrets - public.keys()))

    def leave_out(self, text: str) -> str:
        """The message with the names of fields in place of their texts."""
        text = safe_text(text)
        if len(text) >= LONGEST_LINE:
            text = f"{text[:LONGEST_LINE]}…"
        text = _CUT.sub("…", text)
        shown = [(start, end) for start, end, _ in self._shown.found_in(text)]
        pieces: list[str] = []
        done = 0
        for start, end, place in self._hidden.found_in(text):
            if any(first <= start and end <= last for first, last in shown):
                continue
            if start >= done:
                pieces += (text[done:start], f"[{place}]")
            done = max(done, end)
        return self._redactor.text("".join((*pieces, text[done:])))


@define
class _Index:
    """Texts by their first characters, the longest first, each with what it stands for."""

    _by_beginning: Mapping[str, Sequence[tuple[str, str]]]

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> "_Index":
        found: dict[str, list[tuple[str, str]]] = {}
        for text in sorted(texts, key=len, reverse=True):
            found.setdefault(text[:SHORTEST], []).append((text, texts[text]))
        return cls(found)

    def found_in(self, text: str) -> Iterator[tuple[int, int, str]]:
        """The longest text at each place: its beginning, its end, and the field that it is of. They may overlap."""
        for start in range(len(text) - SHORTEST + 1):
            for each, place in self._by_beginning.get(text[start : start + SHORTEST], ()):
                end = start + len(each)
                if text.startswith(each, start) and (len(each) >= _ALONE or _is_alone(text, start, end)):
                    yield start, end, place
                    break


def _is_alone(text: str, start: int, end: int) -> bool:
    return not (text[start - 1 : start].isalnum() or text[end : end + 1].isalnum())


def _texts(entry: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Each text of an entry, and each value of a variable in one: its place, the name that it has, and the text."""
    env = entry.get("env")
    own: Mapping[str, object] = cast("Mapping[str, object]", env) if isinstance(env, Mapping) else {}

    def find(variable: str) -> str | None:
        value = own.get(variable, environ.get(variable.removeprefix("env:")))
        return value if isinstance(value, str) else None

    for key, value in entry.items():
        for place, name, text in _leaves(key, key, value) if key in _FIELDS or key not in ENTRY_KEYS else ():
            yield place, name, _around_variables(text)
            for inner in variables_in(text):
                variable, _, default = inner.partition(":-")
                variable = variable.removeprefix("env:")
                yield place, variable, default
                if variable not in (*INHERITED, *PLACE_VARIABLES):
                    yield place, variable, environ.get(variable, "")
            try:
                yield place, name, expand(text, find)
            except UnresolvedVariable:
                continue


def _around_variables(text: str) -> str:
    """The text without its variables, with a line for each part between them: messages name variables."""
    try:
        return expand(text, lambda _: "\n")
    except UnresolvedVariable:
        return text


def _leaves(place: str, name: str, value: object) -> Iterator[tuple[str, str, str]]:
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[str, object]", value).items():
            yield from _leaves(f"{place}.{key}", key, part)
    elif isinstance(value, (list, tuple)):
        before = ""
        for number, part in enumerate(cast("Sequence[object]", value)):
            option, given, of_option = part.partition("=") if isinstance(part, str) else ("", "", "")
            if given and option.startswith("-"):
                yield f"{place}.{number}", option.lstrip("-"), of_option
            yield from _leaves(f"{place}.{number}", before.lstrip("-") if before.startswith("-") else name, part)
            before = option
    elif isinstance(value, str) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        yield place, name, str(value)


def _parts(text: str) -> Iterator[str]:
    """The text, its lines, its words, and the parts of those that are paths of a URL or options with their values."""
    yield from (text, text.strip(), " ".join(text.split()))
    yield from (line.strip() for line in text.splitlines())
    yield from text.split()
    for word in _BETWEEN.split(text):
        yield from (word, word.strip(".\\"), unquote(word), unquote_plus(word))
        if "://" in text:
            yield from (unquote(segment) for segment in word.split("/"))
        if word.startswith("-") and not word.startswith("--"):
            yield word[2:]  # -pPASSWORD
