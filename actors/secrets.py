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
        """The first `MAX_HIDDEN` characters of a server's text, without secrets: all such text that this package logs
        goes through it, before anything else is done with it."""
        ...


MAX_HIDDEN: Final = 1_000
"""Characters of a server's text that are looked at for a line of a log, which shows fewer. A search of 100,000 for
secrets takes 50 ms."""


class _NoSecrets:
    def learn(self, values: Iterable[str]) -> None:
        """Ignore the values."""

    def hide(self, text: str) -> str:
        return text[:MAX_HIDDEN]


NO_SECRETS: Final = _NoSecrets()
"""The secrets of a connection outside a supervisor: texts stay as they are."""

SECRETS: ContextVar[Secrets] = ContextVar("mcp_nursery_secrets", default=NO_SECRETS)
"""The secrets of the server that a task works for."""


def words_of(said: object) -> str:
    """The beginning of a server's words in one line, without its secrets."""
    return folded(SECRETS.get().hide(str(said)))
