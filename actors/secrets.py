"""Who is told of the secrets that a connection is made with, so that they can be taken out of what is told of it."""

from collections.abc import Callable, Iterable
from contextvars import ContextVar


def _as_it_is(text: str) -> str:
    return text


def _nobody(_values: Iterable[str]) -> None:
    """Forget them."""


TELL_SECRETS: ContextVar[Callable[[Iterable[str]], None]] = ContextVar("mcp_nursery_secrets", default=_nobody)
"""Called before each connect with the values it found out or was given. Never waits."""

HIDE_SECRETS: ContextVar[Callable[[str], str]] = ContextVar("mcp_nursery_hide_secrets", default=_as_it_is)
"""Takes them out of what a server says: whatever of it is logged down here goes through this."""
