"""Every page of `tools/list`."""

import logging

from mcp.client import ClientSession
from mcp_types import PaginatedRequestParams, Tool

from ..nesting import MAX_NESTING, nested_too_deep

logger = logging.getLogger(__name__)

_PAGE_LIMIT = 1000
"""Pages after which a listing ends: a server that invents a new cursor for ever must not hold its own start."""


async def list_tools(session: ClientSession) -> tuple[Tool, ...]:
    """All tools, in the server's order. A name that comes twice counts once; a cursor that comes twice ends the list.
    A tool whose definition is nested too deep is left out.

    Raises:
        MCPError: A page was refused, or the connection ended.
        pydantic.ValidationError: A page that is none.
    """
    tools: dict[str, Tool] = {}
    cursors: set[str] = set()
    cursor: str | None = None
    for _ in range(_PAGE_LIMIT):
        page = await session.list_tools(params=None if cursor is None else PaginatedRequestParams(cursor=cursor))
        for tool in page.tools:
            if nested_too_deep({"": [tool.input_schema, tool.output_schema, tool.meta]}):
                logger.warning("dropped a tool named %r: it is nested deeper than %d levels", tool.name, MAX_NESTING)
            elif tools.setdefault(tool.name, tool) is not tool:
                logger.warning("dropped a second tool named %r of the same server", tool.name)
        cursor = page.next_cursor
        if cursor is None or cursor in cursors:
            break
        cursors.add(cursor)
    return tuple(tools.values())
