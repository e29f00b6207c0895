"""What commands that ask servers for something share: arguments, the person's approval, and results as JSON."""

import json
import os
import sys
import termios
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import trio

from mcp_nursery.actors.errors import InvalidArguments, NotApproved, ServerDown
from mcp_nursery.supervisor import Supervisor, Tool, ToolResult
from mcp_nursery.supervisor.events import DefinitionChange
from mcp_nursery.supervisor.security.untrusted_marks import visible
from mcp_nursery.supervisor.status import ServerStatus

from .failures import OK
from .output import safe_line
from .statuses import error_of, worked


def parse_arguments(text: str) -> dict[str, Any]:
    """The value of `--args`.

    Raises:
        InvalidArguments: It is not a JSON object.
    """
    try:
        arguments: Any = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise InvalidArguments(f"--args is not JSON: {error.msg} at {where}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"--args is not usable JSON: {safe_line(error)}") from error
    if not isinstance(arguments, dict):
        raise InvalidArguments(f"--args must be a JSON object like '{{\"a\": 1}}', not {_kind(arguments)}")
    return cast("dict[str, Any]", arguments)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case list():
            return "an array"
        case str():
            return "a string"
        case _:
            return "a number"


async def approve(tools: Sequence[Tool], arguments: Mapping[str, Any], *, yes: bool) -> None:
    """Ask the person at the terminal once, about tools of one name.

    Raises:
        NotApproved: Denied, or there is no terminal to ask on.
    """
    asked_for = [tool for tool in tools if tool.requires_approval]
    if yes or not asked_for:
        return
    servers, name = ", ".join(tool.server for tool in asked_for), asked_for[0].tool
    if not can_ask():
        raise NotApproved(servers, name, "there is no terminal to ask on; --yes answers")
    if not await says_yes(_question(asked_for, arguments)):
        raise NotApproved(servers, name, "denied at the terminal")


def _question(tools: Sequence[Tool], arguments: Mapping[str, Any]) -> str:
    lines = (
        *(f"server:    {visible(tool.server)}" for tool in tools),
        f"tool:      {visible(tools[0].tool)}",
        *(f"changed:   {_differs(tool.change)}" for tool in tools if tool.change is not None),
        f"arguments: {visible(json.dumps(arguments, ensure_ascii=False))}",
        "Call it? [y/N] " if len(tools) == 1 else f"Call it on these {len(tools)} servers? [y/N] ",
    )
    return "\n".join(lines)


def _differs(change: DefinitionChange) -> str:
    return f"{visible(change.server)}: {', '.join(change.fields)} since it was first used; see mcp-nursery pins"


def can_ask() -> bool:
    """Whether a person sits at a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def says_yes(question: str) -> bool:
    """Ask the person at the terminal."""
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # nobody agrees to what was not shown yet
    sys.stderr.write(question)
    sys.stderr.flush()
    return (await _answer()).strip().lower() in (b"y", b"yes")


async def _answer() -> bytes:
    # Not input() in a thread: an abandoned one would still hold standard input when the interpreter ends.
    await trio.lowlevel.wait_readable(sys.stdin.fileno())
    return os.read(sys.stdin.fileno(), 1024)


def down(status: ServerStatus, name: str) -> ServerDown:
    """What is said of a request for this that the server cannot be asked."""
    return ServerDown(
        server=status.name,
        tool=name,
        state=status.state,
        retry_in=status.retry_in,
        error=status.error,
        stderr_tail=status.stderr_tail or "",
    )


async def start_all(supervisor: Supervisor, name: str) -> None:
    """Have every server started that may have what is asked for.

    Raises:
        ServerDown: None of them is connected: it is unknown which has it.
    """
    await supervisor.list_tools()
    statuses = supervisor.status()
    if worked(statuses) != OK:
        raise down(next(status for status in statuses if error_of(status)), name)


def result_document(result: ToolResult) -> dict[str, Any]:
    """What the tool answered, as JSON."""
    return {
        "is_error": result.is_error,
        "text": result.text,
        "content": [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in result.content],
        "structured": result.structured,
        "duration": result.duration,
        "incarnation": result.incarnation,
        "truncated": result.truncated,
        "signals": list(result.signals),
    }
