"""What a scripted server can be told to do: how it lives and fails, and what its tools may return."""

import math
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

import trio
from attrs import frozen

ToolFunction = Callable[[dict[str, Any]], Awaitable[object]]
"""A tool: takes the arguments, returns text, an `Ask`, or anything JSON can hold as structured content. Raising a
`Refusal` is a JSON-RPC error, raising anything else is `isError`."""


@frozen
class Ask:
    """What a tool returns that wants input first. Only for lives that are `modern`."""

    requests: Mapping[str, Mapping[str, Any]]
    """By key, each with the protocol's `method` and `params`."""
    then: ToolFunction
    """Goes on when the call comes again: takes the answers by key, and returns what a tool returns."""


class Refusal(Exception):
    """What a tool raises to be answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.error: dict[str, Any] = {"code": code, "message": message, "data": data}
        """The error's `code`, `message` and `data`."""
        super().__init__(message)


tell_progress: ContextVar[Callable[[dict[str, Any]], None]] = ContextVar("tell_progress")
"""Sends the progress of the call that a tool's task serves."""


async def report_progress(progress: float, total: float | None = None, message: str | None = None) -> None:
    """Tell the caller how far a tool is. Scripted tools call it; a caller that asked for none is sent nothing.

    Raises:
        LookupError: No scripted tool is being called in this task.
    """
    report = {"progress": progress, "total": total, "message": message}
    tell_progress.get()({key: value for key, value in report.items() if value is not None})
    await trio.lowlevel.checkpoint()


@frozen(kw_only=True)
class Life:
    """What one incarnation of a scripted server does. Times are seconds; the defaults make a healthy server."""

    refuses: str | None = None
    """It cannot be opened at all, with this error."""
    usable: bool = True
    """False: what it refuses is not worth retrying, like a command that does not exist."""
    needs_auth: bool = False
    """It ends because authorisation is missing, whether it refuses or dies."""
    connects_after: float = 0.0
    """The time before its first answer."""
    mute: bool = False
    """It never answers anything."""
    deaf_after: float = math.inf
    """It reads this many frames, then no more."""
    dies_after: float = math.inf
    """The time after the handshake at which it exits. 0: it greets and dies."""
    silent_after: float = math.inf
    """The time after the handshake from which on nothing of it arrives, although its connection has no end."""
    exit_code: int = 1
    """What its process ends with when it dies."""
    stderr: str = ""
    """What it has written to standard error by then."""
    modern: bool = True
    """It speaks 2026-07-28; False: 2025-11-25, and refuses `server/discover`."""
    dies_of_probe: bool = False
    """It exits when asked `server/discover`."""
    closes_after: float = 0.0
    """The time its transport takes to close."""
