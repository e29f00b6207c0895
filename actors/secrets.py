"""Secrets: the parts of a value that may be shown, and hooks for the secrets of a connection."""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit, urlunsplit


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


def _unchanged(text: str) -> str:
    return text


def _ignore(_values: Iterable[str]) -> None:
    """Ignore the values."""


TELL_SECRETS: ContextVar[Callable[[Iterable[str]], None]] = ContextVar("mcp_nursery_secrets", default=_ignore)
"""Called before each connect with the secret values that it uses. Never waits."""

HIDE_SECRETS: ContextVar[Callable[[str], str]] = ContextVar("mcp_nursery_hide_secrets", default=_unchanged)
"""Removes secrets from a server's text: all such text that this package logs goes through it."""
