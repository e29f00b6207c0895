"""The view of a client that is to have few tools in its context: the first finds tools, and the second calls a tool.

Prompts, resources and all else are those of the view behind. A call is made as if the client had called the named tool
itself: the same rules apply to it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import InvalidArguments
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.records import evolve
from mcp_nursery.actors.session.schemas import InputSchema, SchemaViolation

from ...calls.host_tools import CALL_TOOL_NAME, FIND_TOOLS
from ...calls.search_tools import CALL_SCHEMA, CALLS, FIND_SCHEMA, NOTHING, chosen, described, finds, wanted
from ...supervisor import Supervisor
from ...tools.tool import Tool
from ..bridge import Json, bridge_result, server_info_of
from ..client_request import ClientRequest
from .view import Place, RequestRoute, View

COMPILED: Final = 256
"""Compiled schemas that are kept, of the tools called last."""

_SCHEMAS: Final = {FIND_TOOLS: FIND_SCHEMA, CALL_TOOL_NAME: CALL_SCHEMA}


class Schemas:
    """The compiled schemas of tools that are called."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[str, InputSchema] = OrderedDict()

    async def check(self, tool: Tool, arguments: object) -> None:
        """Refuse arguments that a tool does not take. A tool whose schema cannot be used checks them itself.

        Raises:
            InvalidArguments: They do not fit its schema.
        """
        try:
            await by_turns(self._schema_of(tool).check({} if arguments is None else arguments))
        except SchemaViolation as violation:
            problem = f"{violation}; {FIND_TOOLS} shows what {tool.tool} takes"
            raise InvalidArguments(problem, server=tool.server, tool=tool.tool) from None

    def _schema_of(self, tool: Tool) -> InputSchema:
        key = tool.definition_hash
        if key not in self._compiled:
            self._compiled[key] = InputSchema(tool.input_schema, tool=tool.tool)
            if len(self._compiled) > COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        return self._compiled[key]


class Search(View):
    """Another view, with two tools in place of all of its own."""

    def __init__(self, supervisor: Supervisor, behind: View, schemas: Schemas, direct: View | None = None) -> None:
        super().__init__(supervisor, behind.access, behind.server)
        self._behind = behind
        self._direct = direct or behind
        """The view behind for calls that do not come by way of `call_tool`, as a model's do."""
        self._schemas = schemas

    @override
    def with_apps(self) -> View:
        return Search(self.supervisor, self._behind, self._schemas, self._behind.with_apps())

    async def hello(self) -> Json:
        """The introduction of the view behind; it always has tools."""
        hello = await self._behind.hello()
        return hello | {"capabilities": {**(hello.get("capabilities") or {}), "tools": {"listChanged": True}}}

    def lists(self, method: str, server: str) -> bool:
        """See `View`; the two tools are always there."""
        return method != "tools/list" and self._behind.lists(method, server)

    async def route(self, request: ClientRequest) -> RequestRoute | None:
        """The destination of a request; for `call_tool`, that of the tool that it names, with its arguments."""
        params = request.params
        name = params["name"] if request.method == "tools/call" else None
        if request.method == "tools/list" or name == FIND_TOOLS:
            return None
        if name != CALL_TOOL_NAME:
            return await self._direct.route(request)
        request.apps = False  # a model calls, whoever its client is
        called, given = chosen(params.get("arguments"))
        tool = await self._behind.tool(called)
        given = None if given is None else tool.declared_arguments(given)
        await self._schemas.check(tool, given)
        params = {key: value for key, value in params.items() if key != "arguments"}
        return RequestRoute(tool.server, params | {"name": tool.tool} | ({} if given is None else {"arguments": given}))

    @override
    def told(self, capabilities: Mapping[str, Any], server: str) -> Mapping[str, Any]:
        return self._behind.told(capabilities, server)

    @override
    async def _find(self, name: str) -> Tool:
        return await self._behind.tool(name)

    @override
    async def wait_settled(self) -> None:
        await self._behind.wait_settled()

    async def refresh(self, request: ClientRequest, since: float) -> None:
        """See `View`; the two tools are always up to date."""
        if request.method != "tools/list":
            await self._behind.refresh(request, since)

    async def answer(self, request: ClientRequest) -> Json:
        """The two tools, the result of a search, or the answer of the view behind."""
        if request.method == "tools/list":
            result: Json = {"tools": self._tools()}
        elif request.method == "tools/call":
            result = {"content": [{"type": "text", "text": await self._search(request.params.get("arguments"))}]}
        else:
            return await self._behind.answer(request)
        info = server_info_of(await self._behind.hello())
        return bridge_result(request.method, result, to_modern=request.modern, from_modern=False, server_info=info)

    def _tools(self) -> list[Json]:
        hints = {"readOnlyHint": True}
        return [
            {"name": CALL_TOOL_NAME, "description": CALLS, "inputSchema": CALL_SCHEMA},
            {
                "name": FIND_TOOLS,
                "description": finds(status.name for status in self.statuses),
                "inputSchema": FIND_SCHEMA,
                "annotations": hints,
            },
        ]

    async def _search(self, arguments: object) -> str:
        query, limit = wanted(arguments)
        await self._behind.wait_settled()
        known = await self.supervisor.find_tools(query, server=self.server)
        found = [tool for tool in known if self.access.has_tool(tool.server, tool.tool)]
        shown = found[:limit] if self.server is None else [evolve(tool, name=tool.tool) for tool in found[:limit]]
        lines = [await by_turns(described(shown)) or NOTHING]
        down = [
            f"{status.name} ({status.state.value})"
            for status in self.statuses
            if status.state not in (ServerState.CONNECTED, ServerState.DISABLED)
        ]
        return "\n".join([*lines, *([f"not connected: {', '.join(down)}"] if down else [])])

    @override
    async def resource_of(self, uri: str) -> Place:
        return await self._behind.resource_of(uri)

    async def known_resource_of(self, uri: str) -> Place | None:
        """The resource that the view behind knows."""
        return await self._behind.known_resource_of(uri)

    def known_tool(self, name: object) -> Tool | None:
        """The tool of the view behind."""
        return self._direct.known_tool(name)

    def input_schema(self, name: object) -> Mapping[str, Any] | None:
        """The input schema of one of the two tools, or of any tool of the view behind."""
        return _SCHEMAS.get(str(name)) or self._direct.input_schema(name)

    @override
    async def filter_result(self, request: ClientRequest, result: Json, server: str) -> Json:
        return await self._behind.filter_result(request, result, server)
