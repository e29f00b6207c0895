"""`mcp-nursery tools`: what can be called."""

from collections.abc import Sequence
from typing import Any

from mcp_nursery.supervisor import Tool
from mcp_nursery.supervisor.status import ServerStatus

from .output import warn, write_json, write_rows
from .runtime import Options, load, run_async, servers_of
from .statuses import error_of, worked


def show_tools(options: Options) -> int:
    """Start the servers, list tools and the errors of those that have none, stop them. Fails if no server works."""
    config = load(options)

    async def look() -> tuple[Sequence[Tool], Sequence[ServerStatus]]:
        async with servers_of(config) as supervisor:
            return supervisor.tools, supervisor.status()

    tools, statuses = run_async(look)
    errors = {status.name: error for status in statuses if (error := error_of(status))}
    if options.as_json:
        write_json({"tools": [_document(tool) for tool in tools], "errors": errors})
        return worked(statuses)
    write_rows(("NAME", "SERVER", "DESCRIPTION"), [(tool.name, tool.server, tool.full_description) for tool in tools])
    for server, error in errors.items():
        warn(f"{server}: {error}")
    return worked(statuses)


def _document(tool: Tool) -> dict[str, Any]:
    hints = tool.annotations
    return {
        "name": tool.name,
        "server": tool.server,
        "tool": tool.tool,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "annotations": None if hints is None else hints.model_dump(by_alias=True, mode="json", exclude_none=True),
        "requires_approval": tool.requires_approval,
    }
