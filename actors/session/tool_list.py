"""Every page of `tools/list`."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from attrs import define, field, frozen
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp_types import INTERNAL_ERROR, ListToolsResult, PaginatedRequestParams, Tool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ..fairness import by_turns
from ..json_depth import TOO_DEEP, nested_too_deep
from ..jsonrpc.dispatcher import NO_PAGE, Endpoint
from ..limits import size_text
from ..pieces import Steps
from ..secrets import HIDE_SECRETS

logger: Final = logging.getLogger(__name__)

_PAGE_LIMIT = 1000
"""Pages after which a listing ends: a server that invents a new cursor for ever must not hold its own start."""

_TOOL_LIMIT = 10_000
"""Tools after which a listing ends."""

_NAME_LIMIT = 1024
"""Characters of a name; the protocol recommends at most 128."""


_AT_ONCE = 50
"""Tools that are looked at in a row."""


class TooLarge(MCPError):
    """The server lists more than it may make its host keep."""


@frozen(eq=False)
class RawPage:
    """One page, its tools as they came."""

    tools: Sequence[object]
    next_cursor: str | None
    size: int = 0
    """Bytes of the message that brought it; 0 if it is no message."""
    modern: bool = False
    """Its era has arguments repeated in headers: a tool that has them so wrongly must not be called."""


async def raw_page(session: ClientSession, endpoint: Endpoint, params: PaginatedRequestParams | None) -> RawPage:
    """One page that the session asks for over this endpoint."""
    endpoint.page = page = NO_PAGE
    try:
        answer = await session.list_tools(params=params)
        page = endpoint.page
    finally:
        endpoint.page = None
    return RawPage(
        page.tools, answer.next_cursor, page.size, modern=session.protocol_version in MODERN_PROTOCOL_VERSIONS
    )


async def list_tools(
    ask: Callable[[PaginatedRequestParams | None], Awaitable[RawPage]], *, most: int
) -> tuple[Tool, ...]:
    """All tools, in the server's order. A name that comes twice counts once; a cursor that comes twice ends the list.
    A tool that nobody could call or show is left out.

    Args:
        ask: Fetches one page.
        most: Bytes of all pages.

    Raises:
        MCPError: A page was refused, the pages are too large, or the connection ended.
        pydantic.ValidationError: A page that is none.
    """
    tools: dict[str, Tool] = {}
    cursors: set[str] = set()
    cursor: str | None = None
    dropped = _Dropped()
    size = 0
    for _ in range(_PAGE_LIMIT):
        page = await ask(None if cursor is None else PaginatedRequestParams(cursor=cursor))
        size += page.size
        if size > most:
            told = f"its tool definitions exceed {size_text(most)}, the limit for one server (max_kept_bytes)"
            raise TooLarge(INTERNAL_ERROR, told)
        await by_turns(_sift(page, tools, dropped))
        cursor = page.next_cursor
        if cursor is None or cursor in cursors or len(tools) >= _TOOL_LIMIT:
            break
        cursors.add(cursor)
    dropped.log()
    return tuple(tools.values())


def _sift(page: RawPage, tools: dict[str, Tool], dropped: "_Dropped") -> Steps[None]:
    """Add the tools of one page.

    Raises:
        pydantic.ValidationError: One is none.
    """
    for at in range(0, len(page.tools), _AT_ONCE):
        for tool in ListToolsResult.model_validate({"tools": page.tools[at : at + _AT_ONCE]}, by_name=False).tools:
            problem = _problem(tool, tools) or (_header_problem(tool) if page.modern else None)
            if problem is None:
                tools[tool.name] = tool
            else:
                dropped.note(tool.name, problem)
            yield


def _problem(tool: Tool, known: Mapping[str, Tool]) -> str | None:
    """Why a tool is left out; None if it is not."""
    if tool.name in known:
        return "the server has another tool of that name"
    if len(known) >= _TOOL_LIMIT:
        return f"the server has more than {_TOOL_LIMIT} tools"
    if len(tool.name) > _NAME_LIMIT:
        return f"its name is longer than {_NAME_LIMIT} characters"
    try:
        tool.name.encode()
    except UnicodeEncodeError:
        return "its name is not Unicode text"
    return TOO_DEEP if nested_too_deep([[tool.input_schema, tool.output_schema, tool.meta]]) else None


def _header_problem(tool: Tool) -> str | None:
    wrong = find_invalid_x_mcp_header(tool.input_schema) is not None
    return "the x-mcp-header annotations of its arguments are not valid" if wrong else None


@define
class _Dropped:
    """What was left out of one listing: told once for each reason, with one of the names."""

    _reasons: dict[str, tuple[str, int]] = field(factory=dict[str, tuple[str, int]])

    def note(self, name: str, reason: str) -> None:
        first, count = self._reasons.get(reason, (name, 0))
        self._reasons[reason] = (first, count + 1)

    def log(self) -> None:
        for reason, (name, count) in self._reasons.items():
            more = f" and {count - 1} more" if count > 1 else ""
            logger.warning("dropped a tool named %.100r%s: %s", HIDE_SECRETS.get()(name), more, reason)
