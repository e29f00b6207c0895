"""`mcp-nursery call`: one tool call, approved by the person at the terminal or by `--yes`."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from attrs import evolve, frozen

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import NurseryError, ServerDown, UnknownTool
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.actors.preload import types_loaded
from mcp_nursery.supervisor import Supervisor, Tool, ToolResult, open_supervisor
from mcp_nursery.supervisor.preload import AHEAD
from mcp_nursery.supervisor.status import ServerStatus
from mcp_nursery.supervisor.tools.naming import DEFAULT_TEMPLATE, clean, possible_owners

from .calling import approve, can_ask, down, parse_arguments, result_document
from .failures import OK, TOOL_ERROR
from .output import write_answer, write_json
from .runtime import Options, check_server, load, run_async
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
    """Start the server that has it, ask, call, print the result, stop the servers."""
    arguments = parse_arguments(wanted.args)
    config = load(options)
    check_server(config, wanted.server)
    # Lazy: a server that has nothing to do with this call is not even started.
    limit: dict[str, Any] = {} if wanted.max_result_chars is None else {"max_result_chars": wanted.max_result_chars}
    specs = [evolve(spec, lazy=True, **limit) for spec in config.servers]

    async def ask_and_call() -> tuple[Tool, ToolResult]:
        AHEAD.set(False)  # only the types of a result are needed, once there is one
        opening = open_supervisor(specs, gate=0, trust=ask_for_trust if can_ask() else None)
        async with opening as supervisor, run_alongside(types_loaded):
            tool = await _find(supervisor, wanted)
            await approve([tool], arguments, yes=wanted.yes)
            return tool, await supervisor.call_tool(tool.tool, arguments, server=tool.server, timeout=wanted.timeout)

    tool, result = run_async(ask_and_call)
    if options.as_json:
        write_json(_document(tool, result))
    else:
        write_answer(result.text)
    return TOOL_ERROR if result.is_error else OK


async def _find(supervisor: Supervisor, wanted: CallOptions) -> Tool:
    """The tool, after starting no server that cannot have it."""
    owners = _owners(supervisor, wanted)
    for server in owners:
        with suppress(ServerDown):  # said below, with the tool's name
            await supervisor.list_tools(server)
        if tool := _known(supervisor, wanted):
            return tool
    raise _why_missing(supervisor, wanted, owners)


def _owners(supervisor: Supervisor, wanted: CallOptions) -> Sequence[str]:
    """Who can have it, from what its name says."""
    if wanted.server is not None:
        return [wanted.server]
    return possible_owners(wanted.name, [status.name for status in supervisor.status()])


def _known(supervisor: Supervisor, wanted: CallOptions) -> Tool | None:
    for tool in supervisor.tools:
        known_as = tool.name if wanted.server is None else tool.tool
        if known_as == wanted.name and wanted.server in (None, tool.server):
            return tool
    return None


def _why_missing(supervisor: Supervisor, wanted: CallOptions, owners: Sequence[str]) -> NurseryError:
    statuses = supervisor.status()
    for status in statuses:
        if status.state is not ServerState.CONNECTED and status.name in owners:
            return down(status, wanted.name)
    if wanted.server is not None:
        names = [tool.tool for tool in supervisor.tools if tool.server == wanted.server]
        return UnknownTool(wanted.name, server=wanted.server, near=get_close_matches(wanted.name, names))
    names = [tool.name for tool in supervisor.tools] or _names_like(wanted.name, statuses)
    return UnknownTool(wanted.name, near=get_close_matches(wanted.name, names, cutoff=_ALIKE))


_ALIKE = 0.4
"""How near a name has to be to be offered: `echo` is to `mcp_lab_echo`."""


def _names_like(name: str, statuses: Iterable[ServerStatus]) -> list[str]:
    """What the tool would be called on each server: nobody was started to be asked."""
    tool = clean(re.sub(r"\Amcp_[^_]*_", "", name), "tool")
    servers = [clean(each.name, "server") for each in statuses if each.state is not ServerState.DISABLED]
    return [DEFAULT_TEMPLATE.format(server=server, tool=tool) for server in servers]


def _document(tool: Tool, result: ToolResult) -> dict[str, Any]:
    return {
        "name": tool.name,
        "server": result.server,
        "tool": result.tool,
        **result_document(result),
    }
