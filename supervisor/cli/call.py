"""`mcp-nursery call`: one tool call, approved by the person at the terminal or by `--yes`."""

from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import Any

from attrs import evolve, frozen

from mcp_nursery.actors.errors import NurseryError, ServerDown, UnknownServer, UnknownTool
from mcp_nursery.actors.messages import ServerState
from mcp_nursery.supervisor import Config, Supervisor, Tool, ToolResult, open_supervisor
from mcp_nursery.supervisor.tools.naming import clean

from .calling import approve, can_ask, parse_arguments, result_document
from .failures import OK, TOOL_ERROR
from .output import safe_text, stdout_is_terminal, write_json, write_line
from .runtime import Options, load, run_async
from .statuses import error_of
from .trust import ask_for_trust


@frozen
class CallOptions:
    """What `call` can be told besides."""

    name: str
    """A public name, or with `server` the server's own name of the tool."""
    args: str = "{}"
    server: str | None = None
    timeout: float | None = None
    max_result_chars: int | None = None
    """Characters of the result that are shown; None: what the server's entry says."""
    yes: bool = False


def call(options: Options, wanted: CallOptions) -> int:
    """Start the servers it takes, ask, call, print the result, stop the servers."""
    arguments = parse_arguments(wanted.args)
    config = load(options)
    _check_server(config, wanted.server)
    # Lazy: a server that has nothing to do with this call is not even started.
    limit: dict[str, Any] = {} if wanted.max_result_chars is None else {"max_result_chars": wanted.max_result_chars}
    specs = [evolve(spec, lazy=True, **limit) for spec in config.servers]

    async def ask_and_call() -> tuple[Tool, ToolResult]:
        async with open_supervisor(specs, trust=ask_for_trust if can_ask() else None) as supervisor:
            tool = await _find(supervisor, wanted)
            await approve([tool], arguments, yes=wanted.yes)
            return tool, await supervisor.call_tool(tool.tool, arguments, server=tool.server, timeout=wanted.timeout)

    tool, result = run_async(ask_and_call)
    if options.as_json:
        write_json(_document(tool, result))
    else:
        write_line(safe_text(result.text) if stdout_is_terminal() else result.text)
    return TOOL_ERROR if result.is_error else OK


def _check_server(config: Config, server: str | None) -> None:
    names = [spec.name for spec in config.servers]
    if server is not None and server not in names:
        raise UnknownServer(server, get_close_matches(server, names))


async def _find(supervisor: Supervisor, wanted: CallOptions) -> Tool:
    """The tool, after starting no more servers than it takes to find it."""
    names = [wanted.server] if wanted.server else [status.name for status in supervisor.status()]
    for server in sorted(filter(partial(_may_own, wanted), names), key=len, reverse=True):
        with suppress(ServerDown):  # said below, with the tool's name
            await supervisor.list_tools(server)
        if tool := _known(supervisor, wanted):
            return tool
    refused = any(
        status.state is ServerState.BLOCKED and _may_own(wanted, status.name) for status in supervisor.status()
    )
    if wanted.server is None and not refused:  # who refused the likely owner is not asked about all the others
        await supervisor.list_tools()
    tool = _known(supervisor, wanted)
    if tool is None:
        raise _why_missing(supervisor, wanted)
    return tool


def _known(supervisor: Supervisor, wanted: CallOptions) -> Tool | None:
    for tool in supervisor.tools:
        known_as = tool.name if wanted.server is None else tool.tool
        if known_as == wanted.name and wanted.server in (None, tool.server):
            return tool
    return None


def _why_missing(supervisor: Supervisor, wanted: CallOptions) -> NurseryError:
    for status in supervisor.status():
        if status.state is not ServerState.CONNECTED and _may_own(wanted, status.name):
            return ServerDown(
                server=status.name, tool=wanted.name, state=status.state, retry_in=status.retry_in, error=status.error
            )
    if wanted.server is not None:
        names = [tool.tool for tool in supervisor.tools if tool.server == wanted.server]
        return UnknownTool(wanted.name, server=wanted.server, near=get_close_matches(wanted.name, names))
    near = get_close_matches(wanted.name, [tool.name for tool in supervisor.tools])
    return UnknownTool(wanted.name, near=near, down=[each.name for each in supervisor.status() if error_of(each)])


def _may_own(wanted: CallOptions, server: str) -> bool:
    # A guess, for what to start first and what to say when it is down; whose tool it is, the catalogue says.
    if wanted.server is not None:
        return server == wanted.server
    return wanted.name.startswith(f"mcp_{clean(server, 'server')}_")


def _document(tool: Tool, result: ToolResult) -> dict[str, Any]:
    return {
        "name": tool.name,
        "server": result.server,
        "tool": result.tool,
        **result_document(result),
    }
