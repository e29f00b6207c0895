"""`mcp-nursery fan-out`: one tool on every server that has it, outcomes as they finish."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

from attrs import frozen

from mcp_nursery.actors.errors import NurseryError, ServerDown, UnknownTool
from mcp_nursery.supervisor import Call, Supervisor, Tool
from mcp_nursery.supervisor.calls.fan_out import CallOutcome, Until
from mcp_nursery.supervisor.status import ServerStatus

from .calling import approve, parse_arguments, result_document
from .failures import OK, TOOL_ERROR, UNAVAILABLE, document_of, exit_code, message_of
from .output import warn, write_answer, write_json
from .runtime import Options, load, run_async, servers_of
from .statuses import error_of, worked


@frozen
class FanOutOptions:
    """What `fan-out` can be told besides."""

    tool: str
    """The servers' own name of the tool."""
    args: str = "{}"
    until: Until = "all"
    timeout: float | None = None
    """Seconds for each call."""
    yes: bool = False


def fan_out(options: Options, wanted: FanOutOptions) -> int:
    """Start the servers, ask once, call, print outcomes as they finish, stop the servers."""
    arguments = parse_arguments(wanted.args)
    config = load(options)
    outcomes: list[CallOutcome] = []
    enough = False

    def note(outcome: CallOutcome) -> None:
        outcomes.append(outcome)
        if not options.as_json:
            _print(outcome)

    async def ask_and_call() -> None:
        nonlocal enough
        async with servers_of(config) as supervisor:
            tools = _owners(supervisor, wanted.tool)
            await approve(tools, arguments, yes=wanted.yes)
            calls = [Call(tool.tool, arguments, server=tool.server, timeout=wanted.timeout) for tool in tools]
            enough = await _collect(supervisor, calls, wanted.until, note)

    run_async(ask_and_call)
    if options.as_json:
        write_json({"tool": wanted.tool, "outcomes": [_document(outcome) for outcome in outcomes]})
    return OK if enough and wanted.until != "all" else max(map(_code, outcomes), default=OK)


async def _collect(
    supervisor: Supervisor, calls: Sequence[Call], until: Until, note: Callable[[CallOutcome], None]
) -> bool:
    """Whether there were as many successes as were asked for."""
    async with supervisor.fan_out(calls, until=until) as outcomes:
        async for outcome in outcomes:
            note(outcome)
    return outcomes.until_met


def _owners(supervisor: Supervisor, name: str) -> Sequence[Tool]:
    """The tools of this name, each of another server.

    Raises:
        UnknownTool: No server has one.
        ServerDown: Nor does any of them work.
    """
    tools = [tool for tool in supervisor.tools if tool.tool == name]
    if not tools:
        _check_that_any_works(supervisor.status(), name)
        near = get_close_matches(name, sorted({tool.tool for tool in supervisor.tools}))
        raise UnknownTool(name, near=near, down=[each.name for each in supervisor.status() if error_of(each)])
    return tools


def _check_that_any_works(statuses: Sequence[ServerStatus], tool: str) -> None:
    if worked(statuses) == OK:
        return
    down = [status for status in statuses if error_of(status)]
    first, *others = down
    error = "; ".join(filter(None, (first.error, *(f"{other.name}: {other.error}" for other in others))))
    tail = first.stderr_tail or ""
    raise ServerDown(
        server=first.name, tool=tool, state=first.state, retry_in=first.retry_in, error=error, stderr_tail=tail
    )


def _print(outcome: CallOutcome) -> None:
    result = outcome.result
    if outcome.error is not None:
        warn(message_of(outcome.error))
    if result is None:
        return
    head = f"{result.server}: error" if result.is_error else result.server
    write_answer("\n".join(f"{head}: {line}" for line in result.text.split("\n")))


def _code(outcome: CallOutcome) -> int:
    if outcome.error is not None:
        return TOOL_ERROR if exit_code(outcome.error) == TOOL_ERROR else UNAVAILABLE
    return OK if outcome.ok else TOOL_ERROR


def _document(outcome: CallOutcome) -> dict[str, Any]:
    return {
        "index": outcome.index,
        "server": outcome.call.server,
        "tool": outcome.call.name,
        "result": None if outcome.result is None else result_document(outcome.result),
        "error": None if outcome.error is None else _error(outcome.error),
        "duration": outcome.duration,
    }


def _error(error: NurseryError) -> dict[str, str | None]:
    return document_of(error)["error"]
