"""`mcp-nursery tools`: what can be called."""

from typing import Any

from mcp_nursery.supervisor import Tool

from .natural_order import natural
from .output import write_json
from .runtime import Options, load, look, run_async
from .statuses import errors_of, worked
from .tables import write_rows


def show_tools(options: Options) -> int:
    """Start the servers, list tools and the errors of those that have none, stop them. Fails if no server works."""
    config = load(options)
    tools, statuses = run_async(lambda: look(config, lambda supervisor: supervisor.tools))
    errors = errors_of(statuses)
    if options.as_json:
        write_json({"tools": [_document(tool) for tool in tools], "errors": errors})
        return worked(statuses)
    rows = [
        (tool.name, tool.server, tool.full_description) for tool in sorted(tools, key=lambda tool: natural(tool.name))
    ]
    write_rows(("NAME", "SERVER", "DESCRIPTION"), rows, errors)
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
