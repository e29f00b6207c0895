"""Every page of `tools/list`."""

import logging
from collections.abc import Mapping

from attrs import define, field
from mcp.client import ClientSession
from mcp_types import PaginatedRequestParams, Tool

from ..nesting import TOO_DEEP, nested_too_deep
from ..transports.secrets import HIDE_SECRETS

logger = logging.getLogger(__name__)

_PAGE_LIMIT = 1000
"""Pages after which a listing ends: a server that invents a new cursor for ever must not hold its own start."""

_TOOL_LIMIT = 10_000
"""Tools after which a listing ends: whatever is done for each of them is done in one step."""

_NAME_LIMIT = 1024
"""Characters of a name; the protocol recommends at most 128."""


async def list_tools(session: ClientSession) -> tuple[Tool, ...]:
    """All tools, in the server's order. A name that comes twice counts once; a cursor that comes twice ends the list.
    A tool that nobody could call or show is left out.

    Raises:
        MCPError: A page was refused, or the connection ended.
        pydantic.ValidationError: A page that is none.
    """
    tools: dict[str, Tool] = {}
    cursors: set[str] = set()
    cursor: str | None = None
    dropped = _Dropped()
    for _ in range(_PAGE_LIMIT):
        page = await session.list_tools(params=None if cursor is None else PaginatedRequestParams(cursor=cursor))
        for tool in page.tools:
            problem = _problem(tool, tools)
            if problem is None:
                tools[tool.name] = tool
            else:
                dropped.note(tool.name, problem)
        cursor = page.next_cursor
        if cursor is None or cursor in cursors or len(tools) >= _TOOL_LIMIT:
            break
        cursors.add(cursor)
    dropped.tell()
    return tuple(tools.values())


def _problem(tool: Tool, known: Mapping[str, Tool]) -> str | None:
    """Why a tool is left out; None if it is not."""
    if tool.name in known:
        return "the server has another of that name"
    if len(known) >= _TOOL_LIMIT:
        return f"the server has more than {_TOOL_LIMIT}"
    if len(tool.name) > _NAME_LIMIT:
        return f"its name is longer than {_NAME_LIMIT} characters"
    try:
        tool.name.encode()
    except UnicodeEncodeError:
        return "its name has no JSON form"
    return TOO_DEEP if nested_too_deep([[tool.input_schema, tool.output_schema, tool.meta]]) else None


@define
class _Dropped:
    """What was left out of one listing: told once for each reason, with one of the names."""

    _reasons: dict[str, tuple[str, int]] = field(factory=dict[str, tuple[str, int]])

    def note(self, name: str, reason: str) -> None:
        first, count = self._reasons.get(reason, (name, 0))
        self._reasons[reason] = (first, count + 1)

    def tell(self) -> None:
        for reason, (name, count) in self._reasons.items():
            more = f" and {count - 1} more" if count > 1 else ""
            logger.warning("dropped a tool named %.100r%s: %s", HIDE_SECRETS.get()(name), more, reason)
