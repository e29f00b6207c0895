"""`mcp-nursery tools`, `call` and `fan-out`: the list of tools, and calls of them with a person's approval."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Final, cast

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import InvalidArguments, NotApproved, NurseryError, ServerDown, UnknownTool
from mcp_nursery.actors.json_parsing import finite_number, parse_json, refuse_constant
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.actors.preload import RESULT_TYPES
from mcp_nursery.actors.records import evolve
from mcp_nursery.supervisor import Call, Supervisor, Tool, ToolResult, open_supervisor
from mcp_nursery.supervisor.calls.fan_out import CallOutcome, Until
from mcp_nursery.supervisor.events import DefinitionChange
from mcp_nursery.supervisor.preload import AHEAD
from mcp_nursery.supervisor.security.untrusted_marks import visible
from mcp_nursery.supervisor.status import ServerStatus
from mcp_nursery.supervisor.tools.naming import DEFAULT_TEMPLATE, clean, possible_owners
from mcp_nursery.supervisor.tools.pins import known_hints

from .consent import ask_for_trust, can_ask, says_yes
from .failures import OK, TOOL_ERROR, UNAVAILABLE, document_of, exit_code, message_of
from .output import natural, pick, safe_line, warn, write_answer, write_json
from .runtime import Options, check_server, load, look, run_async, servers_of
from .statuses import error_of, errors_of, worked

_ALIKE: Final = 0.4
"""The similarity that a name must have to be suggested: that of `echo` to `mcp_lab_echo`."""

# -- tools ------------------------------------------------------------------------------------------------------------


def tools(options: Options) -> int:
    """Print the tools of every server, and the errors of servers that are down. Fails if no server works."""
    from .tables import write_rows  # with rich, which calls do not need

    config = load(options)
    tools, statuses = run_async(lambda: look(options, config, lambda supervisor: supervisor.tools))
    errors = errors_of(statuses)
    if options.as_json:
        write_json({"tools": [_tool_document(tool) for tool in tools], "errors": errors})
        return worked(statuses)
    by_name = sorted(tools, key=lambda tool: natural(tool.name))
    rows = [(tool.name, tool.server, _described(tool)) for tool in by_name]
    write_rows(("NAME", "SERVER", "DESCRIPTION"), rows, errors)
    for tool in by_name:
        if problem := tool.output_schema_problem:
            warn(f"{tool.name}: its results are not held against its output schema: {problem}")
    return worked(statuses)


def _described(tool: Tool) -> str:
    return tool.full_description if tool.ui is None else f"({tool.ui.summary}) {tool.full_description}"


def _tool_document(tool: Tool) -> dict[str, Any]:
    return {
        **pick(tool, "name", "server", "tool", "description", "input_schema"),
        "annotations": known_hints(tool.declared),
        "requires_approval": tool.requires_approval,
        "output_schema_problem": tool.output_schema_problem,
        "ui": None if tool.ui is None else tool.ui.as_json(),
    }


# -- call -------------------------------------------------------------------------------------------------------------


def call(
    options: Options,
    name: str,
    *,
    args: str,
    server: str | None,
    timeout: float | None,
    max_result_chars: int | None,
    yes: bool,
) -> int:
    """Start the server that has the tool, ask, call, print the result."""
    arguments = parse_arguments(args)
    config = load(options)
    check_server(config, server)
    # Lazy: a server that has nothing to do with this call is not started at all.
    limit: dict[str, Any] = {} if max_result_chars is None else {"max_result_chars": max_result_chars}
    specs = [evolve(spec, lazy=True, **limit) for spec in config.servers]

    async def ask_and_call() -> tuple[Tool, ToolResult]:
        AHEAD.set(False)  # only the types of a result are needed, and only when it has come
        opening = open_supervisor(specs, state=options.state, gate=0, trust=ask_for_trust if can_ask() else None)
        async with run_alongside(RESULT_TYPES.ensure_loaded), opening as supervisor:
            tool = await _find(supervisor, name, server)
            await _approve([tool], arguments, yes=yes)
            await RESULT_TYPES.ensure_loaded()  # not in the time of the call
            return tool, await supervisor.call_tool(tool.tool, arguments, server=tool.server, timeout=timeout)

    tool, result = run_async(ask_and_call)
    if options.as_json:
        write_json({"name": tool.name, "server": result.server, "tool": result.tool, **result_document(result)})
    else:
        write_answer(result.text)
    return TOOL_ERROR if result.is_error else OK


async def _find(supervisor: Supervisor, name: str, server: str | None) -> Tool:
    """Find the tool, and start no server that cannot have it."""
    names = [status.name for status in supervisor.status()]
    owners = possible_owners(name, names) if server is None else [server]
    for owner in owners:
        with suppress(ServerDown):  # raised below, with the tool's name
            await supervisor.list_tools(owner)
        for tool in supervisor.tools:
            if name == (tool.name if server is None else tool.tool) and server in (None, tool.server):
                return tool
    raise _why_missing(supervisor, name, server, owners)


def _why_missing(supervisor: Supervisor, name: str, server: str | None, owners: Sequence[str]) -> NurseryError:
    statuses = supervisor.status()
    for status in statuses:
        if status.state is not ServerState.CONNECTED and status.name in owners:
            return _server_down(status, name)
    if server is not None:
        names = [tool.tool for tool in supervisor.tools if tool.server == server]
        return UnknownTool(name, server=server, near=get_close_matches(name, names))
    names = [tool.name for tool in supervisor.tools] or _names_like(name, statuses)
    return UnknownTool(name, near=get_close_matches(name, names, cutoff=_ALIKE))


def _names_like(name: str, statuses: Iterable[ServerStatus]) -> list[str]:
    """The names that the tool would have on each server: no server was started to list its tools."""
    tool = clean(re.sub(r"\Amcp_[^_]*_", "", name), "tool")
    servers = [clean(each.name, "server") for each in statuses if each.state is not ServerState.DISABLED]
    meant = [server for server in servers if tool.startswith(f"{server}_")]  # as behind a gateway
    named = [(server, tool.removeprefix(f"{server}_")) for server in meant or servers]
    return [DEFAULT_TEMPLATE.format(server=server, tool=rest) for server, rest in named]


# -- fan-out ----------------------------------------------------------------------------------------------------------


def fan_out(options: Options, tool: str, *, args: str, until: Until, timeout: float | None, yes: bool) -> int:
    """Start the servers, ask once, call the tool on each that has it, print outcomes as they arrive."""
    arguments = parse_arguments(args)
    config = load(options)
    outcomes: list[CallOutcome] = []

    async def ask_and_call() -> bool:
        async with run_alongside(RESULT_TYPES.ensure_loaded), servers_of(options, config) as supervisor:
            owned = _tools_named(supervisor, tool)
            await _approve(owned, arguments, yes=yes)
            await RESULT_TYPES.ensure_loaded()  # not in the time of the calls
            calls = [Call(each.tool, arguments, server=each.server, timeout=timeout) for each in owned]
            async with supervisor.fan_out(calls, until=until) as arriving:
                async for outcome in arriving:
                    outcomes.append(outcome)
                    if not options.as_json:
                        _print(outcome)
            return arriving.until_met

    until_met = run_async(ask_and_call)
    if options.as_json:
        write_json({"tool": tool, "outcomes": [_outcome_document(outcome) for outcome in outcomes]})
    return OK if until_met and until != "all" else max(map(_code, outcomes), default=OK)


def _tools_named(supervisor: Supervisor, name: str) -> Sequence[Tool]:
    """The tools of this name, each of another server.

    Raises:
        UnknownTool: No server has such a tool.
        ServerDown: No server works.
    """
    tools = [tool for tool in supervisor.tools if tool.tool == name]
    if not tools:
        statuses = supervisor.status()
        down = [status for status in statuses if error_of(status)]
        if worked(statuses) != OK:
            first, *others = down
            errors = filter(None, (first.error, *(f"{other.name}: {other.error}" for other in others)))
            raise _server_down(evolve(first, error="; ".join(errors)), name)
        near = get_close_matches(name, sorted({tool.tool for tool in supervisor.tools}))
        raise UnknownTool(name, near=near, down=[status.name for status in down])
    return tools


def _print(outcome: CallOutcome) -> None:
    result = outcome.result
    if outcome.error is not None:
        warn(message_of(outcome.error))
    if result is not None:
        head = f"{result.server}: error" if result.is_error else result.server
        write_answer("\n".join(f"{head}: {line}" for line in result.text.split("\n")))


def _code(outcome: CallOutcome) -> int:
    if outcome.error is not None:
        return TOOL_ERROR if exit_code(outcome.error) == TOOL_ERROR else UNAVAILABLE
    return OK if outcome.ok else TOOL_ERROR


def _outcome_document(outcome: CallOutcome) -> dict[str, Any]:
    return {
        "index": outcome.index,
        "server": outcome.call.server,
        "tool": outcome.call.name,
        "result": None if outcome.result is None else result_document(outcome.result),
        "error": None if outcome.error is None else document_of(outcome.error)["error"],
        "duration": outcome.duration,
    }


# -- for each of these commands, and for prompts and resources --------------------------------------------------------


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse the value of `--args`.

    Raises:
        InvalidArguments: The value is not a JSON object.
    """
    try:
        arguments: Any = parse_json(text, parse_constant=refuse_constant, parse_float=finite_number)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise InvalidArguments(f"--args is not JSON: {error.msg} at {where}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"--args is not usable JSON: {safe_line(error)}") from error
    if not isinstance(arguments, dict):
        raise InvalidArguments(f"--args must be a JSON object like '{{\"a\": 1}}', not {_kind(arguments)}")
    return cast("dict[str, Any]", arguments)


def _kind(value: object) -> str:
    kinds: dict[type[Any], str] = {type(None): "null", bool: "a boolean", list: "an array", str: "a string"}
    return kinds.get(type(value), "a number")


async def _approve(tools: Sequence[Tool], arguments: Mapping[str, Any], *, yes: bool) -> None:
    """Ask the person at the terminal once, about tools of one name.

    Raises:
        NotApproved: The person refused, or there is no terminal to ask on.
    """
    asked_for = [tool for tool in tools if tool.requires_approval]
    if yes or not asked_for:
        return
    servers, name = ", ".join(tool.server for tool in asked_for), asked_for[0].tool
    if not can_ask():
        raise NotApproved(servers, name, "there is no terminal to ask on; --yes answers")
    if not await says_yes(_question(asked_for, arguments)):
        raise NotApproved(servers, name, "refused at the terminal")


def _question(tools: Sequence[Tool], arguments: Mapping[str, Any]) -> str:
    lines = (
        *(f"server:    {visible(tool.server)}" for tool in tools),
        f"tool:      {visible(tools[0].tool)}",
        *(f"page:      {visible(tool.ui.summary)}" for tool in tools if tool.ui is not None),
        *(f"changed:   {_changed_fields(tool.change)}" for tool in tools if tool.change is not None),
        f"arguments: {visible(json.dumps(arguments, ensure_ascii=False))}",
        "Call it? [y/N] " if len(tools) == 1 else f"Call it on these {len(tools)} servers? [y/N] ",
    )
    return "\n".join(lines)


def _changed_fields(change: DefinitionChange) -> str:
    return f"{visible(change.server)}: {', '.join(change.fields)} since its first use; see mcp-nursery pins"


async def start_all(supervisor: Supervisor, name: str) -> None:
    """Start every server that may have the object of this name.

    Raises:
        ServerDown: None of the servers is connected: it is unknown which has the object.
    """
    await supervisor.list_tools()
    statuses = supervisor.status()
    if worked(statuses) != OK:
        raise _server_down(next(status for status in statuses if error_of(status)), name)


def _server_down(status: ServerStatus, name: str) -> ServerDown:
    """The error of a request for the object of this name to a server that is down."""
    return ServerDown(
        server=status.name,
        tool=name,
        state=status.state,
        retry_in=status.retry_in,
        error=status.error,
        stderr_tail=status.stderr_tail or "",
    )


def result_document(result: ToolResult) -> dict[str, Any]:
    """Make the JSON document of a result."""
    return {
        **pick(result, "is_error", "text"),
        "content": [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in result.content],
        **pick(result, "structured", "duration", "incarnation", "truncated", "signals"),
    }
