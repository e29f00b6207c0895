"""Secrets: the parts of a value that may be shown, and where connections tell theirs."""

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol
from urllib.parse import urlsplit, urlunsplit

from .errors import folded


def names_only(values: Mapping[str, Any]) -> str:
    """A mapping without its values."""
    return "{" + ", ".join(f"{name}=…" for name in values) + "}"


def shown_url(url: str) -> str:
    """A URL without user, password, query and fragment, which may hold secrets; `<malformed>` if it is none."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        _ = "${" in host or parts.port  # an invalid port raises too; one that is to be expanded is not known
    except ValueError:
        return "<malformed>"
    return urlunsplit((parts.scheme, host, parts.path, "", "")) if host else "<malformed>"


class Secrets(Protocol):
    """The secrets of one server, which nothing that is shown of it may hold."""

    def learn(self, values: Iterable[str]) -> None:
        """Add secret values that a connect uses; called before it. Never waits."""
        ...

    def hide(self, text: str) -> str:
        """The text of a server without secrets."""
        ...

    def hide_line(self, text: str) -> str:
        """The text of a server without secrets, as far as a line has room for it: its first `MAX_LINE` characters, and
        `…` if there are more. All such text that this package logs or puts into an error goes through this, before
        anything else is done with it: the time does not depend on the rest."""
        ...


MAX_LINE: Final = 2_000
"""Characters of a server's text that a line of a log or an error may have: the search of 100,000 for secrets takes
50 ms."""


class _NoSecrets:
    def learn(self, values: Iterable[str]) -> None:
        """Ignore the values."""

    def hide(self, text: str) -> str:
        return text

    def hide_line(self, text: str) -> str:
        return text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}…"


NO_SECRETS: Final = _NoSecrets()
"""The secrets of a connection outside a supervisor: texts stay as they are."""

SECRETS: ContextVar[Secrets] = ContextVar("mcp_nursery_secrets", default=NO_SECRETS)
"""The secrets of the server that a task works for."""


def words_of(said: object) -> str:
    """The beginning of a server's words in one line, without its secrets."""
    return folded(SECRETS.get().hide_line(str(said)))
