"""The errors of the command line, each with an exit code, a line and a form as JSON."""

from typing import Any

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import (
    CallError,
    ConfigError,
    ContestedResource,
    InvalidArguments,
    InvalidResult,
    NotApproved,
    NurseryError,
    ServerDown,
    ServerError,
    UnknownPrompt,
    UnknownResource,
    UnknownServer,
    UnknownTask,
    UnknownTool,
)

OK = 0
TOOL_ERROR = 1
USAGE = 2
UNAVAILABLE = 3
NOT_APPROVED = 4
SIGNAL_BASE = 128
"""Shells report the end of a process by a signal as 128 plus the signal's number."""

_CODES: tuple[tuple[type[NurseryError], int], ...] = (
    (ServerError, TOOL_ERROR),
    (InvalidResult, TOOL_ERROR),
    (CallError, UNAVAILABLE),
    (ConfigError, USAGE),
    (UnknownServer, USAGE),
    (UnknownTool, USAGE),
    (UnknownResource, USAGE),
    (ContestedResource, USAGE),
    (UnknownPrompt, USAGE),
    (UnknownTask, USAGE),
    (InvalidArguments, USAGE),
    (NotApproved, NOT_APPROVED),
)


def message_of(error: NurseryError) -> str:
    """Describe the error for a command line, without the time of a restart: each command starts its servers anew."""
    if not isinstance(error, ServerDown):
        return error.fact
    where = ": ".join(filter(None, (error.server, error.tool)))
    return f"{where}: the server is {error.state}{f' ({error.error})' if error.error else ''}"


def exit_code(error: NurseryError) -> int:
    """Return the exit code: 1 the tool answered with an error, 2 usage, 3 not available, 4 not approved or not
    trusted."""
    if isinstance(error, ServerDown) and error.state is ServerState.BLOCKED:
        return NOT_APPROVED
    return next((code for kind, code in _CODES if isinstance(error, kind)), UNAVAILABLE)


def error_document(
    kind: str, message: str, *, server: str | None = None, tool: str | None = None
) -> dict[str, dict[str, str | None]]:
    """Make the JSON document that every failure has."""
    return {"error": {"type": kind, "message": message, "server": server, "tool": tool}}


def document_of(error: NurseryError) -> dict[str, dict[str, str | None]]:
    """Make the JSON document of an error."""
    return error_document(type(error).__name__, message_of(error), server=_server_of(error), tool=_tool_of(error))


def _server_of(error: Any) -> str | None:
    return error.name if isinstance(error, UnknownServer) else getattr(error, "server", None)


def _tool_of(error: Any) -> str | None:
    if isinstance(error, (UnknownResource, ContestedResource)):
        return error.uri
    return error.name if isinstance(error, (UnknownTool, UnknownPrompt)) else getattr(error, "tool", None)
