"""The scripts of a scripted server: its lives with their failures, and the values of its tools."""

import math
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

import trio

from mcp_nursery.actors.records import frozen

ToolFunction = Callable[[dict[str, Any]], Awaitable[object]]
"""A tool: takes the arguments, returns text, an `Ask`, or anything JSON can hold as structured content. Raising a
`Refusal` is a JSON-RPC error, raising anything else is `isError`."""


@frozen
class Ask:
    """A tool's request for input before it continues. Only for lives that are `modern`."""

    requests: Mapping[str, Mapping[str, Any]]
    """The requests by key, each with the protocol's `method` and `params`."""
    then: ToolFunction
    """The function that continues when the call comes again: takes the answers by key, and returns the value of a
    tool."""


class Refusal(Exception):
    """An exception that a tool raises to be answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.error: dict[str, Any] = {"code": code, "message": message, "data": data}
        """The error's `code`, `message` and `data`."""
        super().__init__(message)


tell_progress: ContextVar[Callable[[dict[str, Any]], None]] = ContextVar("tell_progress")
"""The function that sends the progress of this task's call."""


async def report_progress(progress: float, total: float | None = None, message: str | None = None) -> None:
    """Report the progress of a tool to its caller. Scripted tools call it; a caller that asked for no progress gets
    none.

    Raises:
        LookupError: No scripted tool is being called in this task.
    """
    report = {"progress": progress, "total": total, "message": message}
    tell_progress.get()({key: value for key, value in report.items() if value is not None})
    await trio.lowlevel.checkpoint()


@frozen(kw_only=True)
class Life:
    """The script of one incarnation of a scripted server. Times are seconds; the defaults make a healthy server."""

    refuses: str | None = None
    """The error with which opening fails; None: it opens."""
    usable: bool = True
    """False if the refusal is not worth a retry, like that of a command that does not exist."""
    needs_auth: bool = False
    """True if it ends because authorisation is missing, whether it refuses or dies."""
    connects_after: float = 0.0
    """The time before its first answer."""
    mute: bool = False
    """True if it never answers anything."""
    deaf_after: float = math.inf
    """The number of frames that it reads before it reads no more."""
    dies_after: float = math.inf
    """The time after the handshake at which it exits. 0: it greets and dies."""
    silent_after: float = math.inf
    """The time after the handshake from which on it sends nothing, although its connection stays open."""
    exit_code: int = 1
    """The exit code of its process when it dies."""
    stderr: str = ""
    """The text that it has written to standard error when it dies."""
    modern: bool = True
    """True if it speaks 2026-07-28; False: 2025-11-25, and it refuses `server/discover`."""
    dies_of_probe: bool = False
    """True if it exits when asked `server/discover`."""
    closes_after: float = 0.0
    """The time its transport takes to close."""
