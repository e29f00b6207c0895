"""The log of what clients of a gateway, or of a page, can cause. A client that does so again and again fills no disk."""

import logging
from typing import Final

import trio

from .logs import LineLimit

_LIMITS: Final[trio.lowlevel.RunVar[dict[str, LineLimit]]] = trio.lowlevel.RunVar("mcp_nursery_client_log")
"""The limits of this run of Trio, by message."""


def log_of_client(
    logger: logging.Logger, level: int, message: str, *args: object, exc_info: BaseException | None = None
) -> None:
    """Log what a client has caused: of each message one line a minute, with the number of those left out before it.

    Args:
        logger, level, args, exc_info: See `logging.Logger.log`.
        message: The message before `args` are put in. It is no text of a client.
    """
    try:
        limits = _LIMITS.get()
    except LookupError:
        limits = {}
        _LIMITS.set(limits)
    limit = limits.setdefault(message, LineLimit(1))
    if limit.passes(trio.current_time()):
        left_out = limit.take_left_out()
        more = f" ({left_out} such lines before it are left out)" if left_out else ""
        logger.log(level, f"{message}%s", *args, more, exc_info=exc_info)
