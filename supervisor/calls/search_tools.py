"""Two tools of our own for a model, in place of all others: the first finds tools, and the second calls a tool that was
found.

What is found and called is the catalogue's, as it is at that moment: filters, pins and approval hold as they do for a
model that is given every tool.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from mcp_nursery.actors.errors import InvalidArguments
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.records import define, field
from mcp_nursery.actors.reply import ProgressCallback

from ..catalogue.catalogue import Catalogue
from ..decisions.restart_policy import WhenDown
from ..security.untrusted_marks import MAX_RESULT_CHARS, clean_name
from ..tools.tool import Tool, prepare_for_models
from ..tools.tool_result import ToolResult
from .host_tools import CALL_TOOL_NAME, FIND_TOOLS, HostTools, host_result, host_tool
from .resource_tools import ResourceTools

if TYPE_CHECKING:
    from ..tools.search import ToolIndex

FOUND: Final = 5
"""Tools that are found, unless more are asked for."""
MOST_FOUND: Final = 20
"""Tools that are found at most."""

NOTHING: Final = "no tool fits; try other words for what it does, or the name of a server"
_RESULT_TOO_LONG = "too long to be shown"

CALLS: Final = "Calls a tool that find_tools has found, by its name, with arguments as its input_schema says."
FIND_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "Words for what the tool does, or its name."},
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST_FOUND,
            "description": f"How many tools at most. Default {FOUND}.",
        },
    },
    "required": ["query"],
}
CALL_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The tool's name, as it was found."},
        "arguments": {"type": "object", "description": "What its input_schema asks for."},
    },
    "required": ["name"],
}


@define(eq=False)
class SearchTools(HostTools):
    """The two tools, and their work for a model."""

    _all: ResourceTools
    """The tools that are searched, and called."""
    _index: "ToolIndex | None" = field(default=None, init=False)
    _indexed: Catalogue | None = field(default=None, init=False)
    """The catalogue that the index was made from."""
    _indexing: trio.Lock = field(factory=trio.Lock, init=False)
    _call: Tool | None = field(default=None, init=False)
    _find: tuple[Collection[str], Tool] | None = field(default=None, init=False)
    """The tool, with the servers that it was made for."""

    def open(self) -> None:
        """Make the index, if there is none yet.

        Raises:
            ConfigError: The SQLite of this Python has no FTS5.
            SupervisorClosed: The block was left.
        """
        self._servers.check_open()
        from ..tools.search import ToolIndex  # few hosts search

        self._index = self._index or ToolIndex()

    def close(self) -> None:
        """Close the index."""
        if self._index is not None:
            self._index.close()

    @override
    def servers_tools(self, catalogue: Catalogue) -> Collection[Tool]:
        return [tool for tool in catalogue.tools if tool.always_load]

    @override
    def own(self, catalogue: Catalogue) -> tuple[Tool, Tool]:
        servers = catalogue.parts.keys()
        if self._find is None or self._find[0] != servers:
            self._find = servers, self._made(FIND_TOOLS, finds(servers), FIND_SCHEMA)
        self._call = self._call or self._made(CALL_TOOL_NAME, CALLS, CALL_SCHEMA)
        return self._find[1], self._call

    def _made(self, name: str, described: str, schema: dict[str, Any]) -> Tool:
        finds = name == FIND_TOOLS
        return host_tool(
            name,
            described,
            schema,
            self._do_find if finds else self._do_call,
            reserved=self._reserved,
            requires_approval=not finds,
            read_only=finds,
        )

    @override
    async def find(self, name: str) -> Tool:
        return self.find_own(name) or await self._all.find(name)

    async def search(self, query: str) -> list[Tool]:
        """The known tools that match the query, best first; no server is asked.

        Raises:
            SupervisorClosed: The block was left.
        """
        async with self._indexing:
            await self._follow()
            self._servers.check_open()
            assert self._index is not None  # or nobody searches
            known = {each.name: each for each in self._all.beside(self._servers.catalogue.value)}
            names = self._index.find(query, len(known))
        return [known[name] for name in names if name in known]

    async def _do_find(
        self,
        tool: Tool,
        arguments: Mapping[str, Any] | None,
        *,
        timeout: float | None,
        on_progress: ProgressCallback | None,
        meta: Mapping[str, Any] | None,
        when_down: WhenDown | None,
    ) -> ToolResult:
        """Search the known tools."""
        del timeout, on_progress, meta, when_down
        query, limit = wanted(arguments)
        await trio.lowlevel.checkpoint()
        return await host_result(tool, await by_turns(described((await self.search(query))[:limit])) or NOTHING)

    async def _follow(self) -> None:
        """Bring the index up to date with the catalogue, in turns; while that changes, with a recent one."""
        self._servers.check_open()
        catalogue = self._servers.catalogue.value
        assert self._index is not None  # or nobody has this tool
        if self._indexed is not catalogue:
            await by_turns(self._index.follow(self._all.beside(catalogue)))
            self._indexed = catalogue

    async def _do_call(
        self,
        tool: Tool,
        arguments: Mapping[str, Any] | None,
        *,
        timeout: float | None,
        on_progress: ProgressCallback | None,
        meta: Mapping[str, Any] | None,
        when_down: WhenDown | None,
    ) -> ToolResult:
        """Call another tool, as if the model had called it itself."""
        del tool
        name, given = chosen(arguments)
        self._servers.check_open()
        called = await self._all.find(name)
        return await called(given, timeout=timeout, on_progress=on_progress, meta=meta, when_down=when_down)


def finds(servers: Iterable[str]) -> str:
    """The description of the tool that finds tools of these servers."""
    names = ", ".join(sorted(map(clean_name, servers)))
    return (
        "Finds tools of MCP servers by words for what they do. Gives the best first, one JSON object a line: name, "
        f"description and input_schema; call_tool calls them. The servers: {names}"
    )


def wanted(arguments: object) -> tuple[str, int]:
    """The words to search for and the most tools to find, from the arguments of `find_tools`.

    Raises:
        InvalidArguments: They are missing or not valid.
    """
    given = _given(FIND_TOOLS, FIND_SCHEMA, arguments)
    query, limit = given.get("query"), given.get("limit", FOUND)
    if not isinstance(query, str) or not query.strip():
        raise InvalidArguments("query must be a text", tool=FIND_TOOLS)
    if type(limit) is not int or not 1 <= limit <= MOST_FOUND:
        raise InvalidArguments(f"limit must be an integer from 1 to {MOST_FOUND}", tool=FIND_TOOLS)
    return query, limit


def chosen(arguments: object) -> tuple[str, Any]:
    """The name and the arguments of the tool to be called, from the arguments of `call_tool`.

    Raises:
        InvalidArguments: They are missing or not valid.
    """
    given = _given(CALL_TOOL_NAME, CALL_SCHEMA, arguments)
    name = given.get("name")
    if not isinstance(name, str):
        raise InvalidArguments("name must be a text", tool=CALL_TOOL_NAME)
    return name, given.get("arguments")


def _given(tool: str, schema: Mapping[str, Any], arguments: object) -> dict[str, Any]:
    """The arguments without nulls; None counts as an empty object.

    Raises:
        InvalidArguments: They are no object, or have an unknown name.
    """
    if not isinstance(arguments, Mapping | None):
        raise InvalidArguments("the arguments must be a JSON object", tool=tool)
    given = {name: value for name, value in cast("Mapping[str, Any]", arguments or {}).items() if value is not None}
    if unknown := [name for name in given if name not in schema["properties"]]:
        raise InvalidArguments(
            f"there is no {str(unknown[0])!r:.80}: give {', '.join(schema['properties'])}", tool=tool
        )
    return given


def described(tools: Collection[Tool]) -> Steps[str]:
    """The tools, one a line, in no more characters than a model is shown. A tool that does not fit has no schema."""
    lines: list[str] = []
    room = MAX_RESULT_CHARS
    yield from prepare_for_models(tools)
    for tool in tools:
        yield
        said = tool.as_anthropic()
        line = json.dumps(said, ensure_ascii=False)
        if len(line) >= room:
            line = json.dumps({**said, "input_schema": _RESULT_TOO_LONG}, ensure_ascii=False)
        room -= len(line) + 1
        lines.append(line)
    return "\n".join(lines)
