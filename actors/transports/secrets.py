"""Who is told of the secrets that a connection is made with, so that they can be taken out of what is told of it."""

from collections.abc import Callable, Iterable
from contextvars import ContextVar


def _nobody(_values: Iterable[str]) -> None:
    """Forget them."""


TELL_SECRETS: ContextVar[Callable[[Iterable[str]], None]] = ContextVar("mcp_nursery_secrets", default=_nobody)
"""Called before each connect with the values it found out or was given. Never waits."""
