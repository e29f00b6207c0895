"""All servers as one: under names that tell them apart, and lists of what all have."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from mcp_nursery.actors.enums import ListKind
from mcp_nursery.actors.errors import UnknownResource, UnknownTool
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.messages import LISTED
from mcp_nursery.actors.protocol import INVALID_PARAMS, METHOD_NOT_FOUND, JsonRpcError

from ..resources.prompt import Prompt
from ..resources.resource import Resource, ResourceTemplate
from ..supervisor import Supervisor
from ..tools.preamble import MOST_INSTRUCTIONS
from ..tools.tool import Tool
from .access import EVERYTHING, Access
from .catalogues import Place, View
from .downstream import Incoming
from .eras import Json, bridged
from .pages import Entry, Pages, declared_steps

if TYPE_CHECKING:
    from pydantic import BaseModel

INSTRUCTIONS: Final = 16_000
"""Characters of all servers' instructions that a client is told."""
SETTLE: Final = 5.0
"""Seconds that a search waits at most for servers that were never connected."""

R = TypeVar("R", Resource, ResourceTemplate)
T = TypeVar("T")
P = TypeVar("P", Prompt, Resource, ResourceTemplate)

_INFO: Final = {"name": "mcp-nursery", "version": version("mcp-nursery")}
_KINDS: Final = {
    "tools": ListKind.TOOLS,
    "prompts": ListKind.PROMPTS,
    "resources": ListKind.RESOURCES,
    "resourceTemplates": ListKind.TEMPLATES,
}
_OF_SERVERS_IN_ORDER: Final = ("resources", "resourceTemplates")
"""Lists of what the first configured server has, of several that have the same."""


class All(View):
    """All servers as one.

    Args:
        supervisor: Has them.
        access: What the client may use of it.
        pages: Where lists are kept, by what is listed; None: they are not, and are made of objects.
    """

    def __init__(
        self, supervisor: Supervisor, access: Access = EVERYTHING, pages: dict[str, Pages] | None = None
    ) -> None:
        super().__init__(supervisor, access)
        self._pages = pages

    async def hello(self) -> Json:
        """At once, whoever is connected: what comes later is told of as a change."""
        changes = {"listChanged": True}
        capabilities: Json = {
            "tools": changes,
            "prompts": changes,
            "resources": changes | {"subscribe": True},
            "completions": {},
            "logging": {},
        }
        instructions = _instructions(self.instructions())
        said = {"instructions": instructions} if instructions else {}
        return {"serverInfo": _INFO, "capabilities": capabilities} | said

    async def place(self, incoming: Incoming) -> Place | None:
        """The server that has the tool, the prompt or the resource."""
        params = incoming.params
        match incoming.method:
            case "tools/call":
                tool = await self._called(params["name"])
                return Place(tool.server, params | {"name": tool.tool})
            case "prompts/get":
                prompt = await self._prompt(params["name"])
                return Place(prompt.server, params | {"name": prompt.prompt})
            case "resources/read":
                return Place(await self.server_of(params["uri"]), params)
            case "completion/complete":
                return await self._completed(params)
            case _:
                return None

    async def own_answer(self, incoming: Incoming) -> Json:
        """Lists of what all servers have, each sorted."""
        of = LISTED.get(incoming.method)
        if of is None:
            raise JsonRpcError(METHOD_NOT_FOUND, "Method not found", incoming.method)
        await self.supervisor.refresh_old(_KINDS[of])
        offered, shown = self._lists[of]
        if self._pages is None:
            listed: Json = {of: await by_turns(declared_steps(shown(offered())))}
        else:
            key = self.access.allow, tuple(self._places()) if of in _OF_SERVERS_IN_ORDER else ()
            listed = {of: await self._pages.setdefault(of, Pages()).page(key, offered, shown)}
        return bridged(incoming.method, listed, to_modern=incoming.modern, from_modern=False, server_info=dict(_INFO))

    @property
    def _lists(self) -> Mapping[str, tuple[Callable[[], Sequence[Any]], Callable[[Sequence[Any]], Iterable[Entry]]]]:
        """What there is of each kind, and what of it the client sees."""
        supervisor = self.supervisor
        return {
            "tools": (lambda: supervisor.tools, self._shown_tools),
            "prompts": (lambda: supervisor.prompts, self._shown_prompts),
            "resources": (lambda: supervisor.resources, self._shown_resources),
            "resourceTemplates": (lambda: supervisor.resource_templates, self._shown_templates),
        }

    def _shown_tools(self, tools: Iterable[Tool]) -> Iterable[Entry]:
        return ((tool.declared, tool.name) for tool in tools if self.access.has_tool(tool.server, tool.tool))

    def _shown_prompts(self, prompts: Iterable[Prompt]) -> Iterable[Entry]:
        return ((prompt.declared, prompt.name) for prompt in self._usable(prompts))

    def _shown_resources(self, resources: Iterable[Resource]) -> Iterable[Entry]:
        return self._firsts(resources, attrgetter("uri"))

    def _shown_templates(self, templates: Iterable[ResourceTemplate]) -> Iterable[Entry]:
        return self._firsts(templates, attrgetter("uri_template"))

    def _firsts(self, offered: Iterable[R], uri_of: Callable[[R], str]) -> Iterable[Entry]:
        """Of several that are the same the one that is read."""
        first: dict[str, BaseModel] = {}
        for each in self._in_order(offered):
            first.setdefault(uri_of(each), each.declared)
        return ((first[uri], None) for uri in sorted(first))

    def input_schema(self, name: object) -> Mapping[str, Any] | None:
        """By the public name."""
        try:
            tool = self.supervisor.tool(str(name))
        except UnknownTool:
            return None
        return tool.input_schema if self.access.has_tool(tool.server, tool.tool) else None

    async def tool(self, name: str) -> Tool:
        """By its public name."""
        if self.access.allow is not None and not self._may_call(name):
            await self.supervisor.list_tools()
            if not self._may_call(name):
                raise UnknownTool(name)  # without the names of others
        return await self.supervisor.find_tool(name)

    def _may_call(self, name: str) -> bool:
        return any(tool.name == name and self.access.has_tool(tool.server, tool.tool) for tool in self.supervisor.tools)

    async def settle(self) -> None:
        """Wait for first attempts, `SETTLE` seconds at most."""
        with trio.move_on_after(SETTLE):
            await self.supervisor.list_tools()

    async def _called(self, name: str) -> Tool:
        try:
            return await self.tool(name)
        except UnknownTool as error:
            raise JsonRpcError(INVALID_PARAMS, str(error)) from None

    def _usable(self, offered: Iterable[P]) -> list[P]:
        return [each for each in offered if self.access.has_server(each.server)]

    async def _prompt(self, name: str) -> Prompt:
        prompt = await _found(partial(self._known_prompt, name), self.supervisor.list_prompts)
        if prompt is None:
            raise JsonRpcError(INVALID_PARAMS, f"no server offers a prompt named {name!r}")
        return prompt

    def _known_prompt(self, name: str) -> Prompt | None:
        return next((prompt for prompt in self._usable(self.supervisor.prompts) if prompt.name == name), None)

    async def server_of(self, uri: str) -> str:
        """The first configured server that lists the resource, or else has a template that it may come of."""
        server = await _found(partial(self.known_server_of, uri), self.supervisor.list_resources)
        if server is None:
            raise UnknownResource(uri, server=None)
        return server

    def known_server_of(self, uri: str) -> str | None:
        """The first configured server that lists the resource, or else has a template that it may come of."""
        for listed in self._in_order(each for each in self.supervisor.resources if each.uri == uri):
            return listed.server
        for matching in self._in_order(each for each in self.supervisor.resource_templates if each.matches(uri)):
            return matching.server
        return None

    async def _completed(self, params: Json) -> Place:
        ref: Json = params["ref"]
        if ref["type"] == "ref/prompt":
            prompt = await self._prompt(ref["name"])
            return Place(prompt.server, params | {"ref": ref | {"name": prompt.prompt}})
        templates = self.supervisor.resource_templates
        for template in self._in_order(each for each in templates if each.uri_template == ref["uri"]):
            return Place(template.server, params)
        return Place(await self.server_of(ref["uri"]), params)

    def _in_order(self, offered: Iterable[R]) -> list[R]:
        """Those that the client may use, in the order in which their servers are configured."""
        places = self._places()
        return sorted(self._usable(offered), key=lambda each: places.get(each.server, len(places)))

    def _places(self) -> dict[str, int]:
        """The servers, in the order in which they are configured."""
        return {status.name: place for place, status in enumerate(self.supervisor.status())}


async def _found(look: Callable[[], T | None], wait: Callable[[], Awaitable[object]]) -> T | None:
    """What is known, or else is known after a wait for all servers: who is known waits for no other server."""
    found = look()
    if found is None:
        await wait()
        found = look()
    return found


def _instructions(instructions: Mapping[str, str]) -> str:
    """What servers want a model to know, each under its name, within bounds."""
    parts = [f"# {server}\n{said[:MOST_INSTRUCTIONS]}" for server, said in instructions.items()]
    return "\n\n".join(parts)[:INSTRUCTIONS]
