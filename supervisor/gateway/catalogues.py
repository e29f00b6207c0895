"""What a client sees: one server as it is, or all servers under names that tell them apart."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import trio
from attrs import frozen
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, methods

from mcp_nursery.actors.errors import UnknownResource, UnknownTool
from mcp_nursery.actors.jsonrpc.dispatcher import LISTED

from ..resources.prompt import Prompt
from ..resources.resource import Resource, ResourceTemplate
from ..status import ServerStatus
from ..supervisor import Supervisor
from ..tools.preamble import MOST_INSTRUCTIONS
from ..tools.tool import Tool
from .access import EVERYTHING, Access
from .downstream import Incoming, as_object
from .eras import Json, bridged
from .pages import Entry, Pages, declared

if TYPE_CHECKING:
    from pydantic import BaseModel

INSTRUCTIONS: Final = 16_000
"""Characters of all servers' instructions that a client is told."""

SETTLE: Final = 5.0
"""Seconds that a search waits at most for servers that were never connected."""

PATIENCE: Final = 5.0
"""Seconds that a client of one server waits at most for further attempts, once one has failed: hosts give up after ten
and more. An attempt under way is waited for, however long."""

R = TypeVar("R", Resource, ResourceTemplate)
P = TypeVar("P", Prompt, Resource, ResourceTemplate)

_INFO: Final = {"name": "mcp-nursery", "version": version("mcp-nursery")}


_OF_SERVERS_IN_ORDER: Final = ("resources", "resourceTemplates")
"""Lists of what the first configured server has, of several that have the same."""


@frozen
class Place:
    """The server that a request goes to, and the parameters that it has there."""

    server: str
    params: Json


class View(ABC):
    """What a client sees of the supervisor."""

    def __init__(self, supervisor: Supervisor, access: Access = EVERYTHING) -> None:
        self.supervisor = supervisor
        self.access: Final = access
        """What the client may use of it."""

    @property
    def server(self) -> str | None:
        """The one server; None for all of them."""
        return None

    @property
    def statuses(self) -> list[ServerStatus]:
        """Where the servers stand of which the client may use something."""
        statuses = self.supervisor.status()
        return [one for one in statuses if self.server in (None, one.name) and self.access.has_server(one.name)]

    @abstractmethod
    async def hello(self) -> Json:
        """What the client is told of who serves it: an answer to `initialize` or `server/discover`.

        Raises:
            ServerDown: Nobody does, and that will not change by itself, or not soon.
        """

    @abstractmethod
    async def place(self, incoming: Incoming) -> Place | None:
        """Where a request goes; None if it is answered here.

        Raises:
            MCPError: Nobody has what it wants.
        """

    @abstractmethod
    async def own_answer(self, incoming: Incoming) -> Json:
        """The answer to what goes to no server.

        Raises:
            MCPError: There is none.
        """

    @abstractmethod
    async def tool(self, name: str) -> Tool:
        """The tool that the client calls so.

        Raises:
            NurseryError: There is none, or it cannot be used now.
        """

    @abstractmethod
    async def settle(self) -> None:
        """Wait until what there is to be listed is known, within bounds.

        Raises:
            NurseryError: There is nothing, and why.
        """

    @abstractmethod
    def input_schema(self, name: object) -> Mapping[str, Any] | None:
        """What the tool of this name takes, if that is known."""

    @abstractmethod
    async def owner_of(self, uri: str) -> str:
        """The server whose resource a client means.

        Raises:
            UnknownResource: None that it may use.
        """

    def shown(self, incoming: Incoming, result: Json, server: str) -> Json:
        """The result of a server as the client sees it."""
        del incoming, server
        return result


class One(View):
    """One server, with its own names."""

    def __init__(self, supervisor: Supervisor, server: str, access: Access = EVERYTHING) -> None:
        super().__init__(supervisor, access)
        self._name = server

    @property
    def server(self) -> str:
        """See `View`."""
        return self._name

    async def hello(self) -> Json:
        """What the server says of itself."""
        return await hello_of(self.supervisor, self.server)

    async def place(self, incoming: Incoming) -> Place | None:
        """That server, for any request. Who may not use all of it cannot use what nobody knows the meaning of."""
        if not self.access.has_all_of(self.server):
            if incoming.method not in methods.SPEC_CLIENT_METHODS:
                raise MCPError(METHOD_NOT_FOUND, "Method not found", incoming.method)
            if incoming.method == "tools/call" and not self.access.has_tool(self.server, incoming.params["name"]):
                raise MCPError(INVALID_PARAMS, f"Unknown tool: {incoming.params['name']}")
        return Place(self.server, incoming.params)

    async def tool(self, name: str) -> Tool:
        """By the server's own name."""
        if self.access.has_all_of(self.server):
            return await self.supervisor.find_tool(name, server=self.server)
        if self.access.has_tool(self.server, name):
            with suppress(UnknownTool):
                return await self.supervisor.find_tool(name, server=self.server)
        raise UnknownTool(name, server=self.server)  # without the names of others

    async def settle(self) -> None:
        """Have the server started, if nothing is known of it."""
        if not any(tool.server == self.server for tool in self.supervisor.tools):
            await self.supervisor.request(self.server, "tools/list")

    async def owner_of(self, uri: str) -> str:
        """That server, for any URI."""
        del uri
        return self.server

    def input_schema(self, name: object) -> Mapping[str, Any] | None:
        """By the server's own name."""
        if not self.access.has_tool(self.server, str(name)):
            return None
        tools = (tool for tool in self.supervisor.tools if tool.server == self.server and tool.tool == name)
        return next((tool.input_schema for tool in tools), None)

    async def own_answer(self, incoming: Incoming) -> Json:
        """Never asked for."""
        raise MCPError(METHOD_NOT_FOUND, "Method not found", incoming.method)

    def shown(self, incoming: Incoming, result: Json, server: str) -> Json:
        """Without the tools that filters and pins hold back, or that the client may not use."""
        tools: object = result.get("tools")
        if incoming.method != "tools/list" or not isinstance(tools, list):
            return result
        listed = cast("list[object]", tools)
        names = ((tool, _name_of(tool)) for tool in listed)
        shown = [
            tool
            for tool, name in names
            if self.supervisor.offers(server, name, as_object(tool)) and self.access.has_tool(server, name)
        ]
        return result if len(shown) == len(listed) else result | {"tools": shown}


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
        instructions = _instructions(self.statuses)
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
                return Place(await self.owner_of(params["uri"]), params)
            case "completion/complete":
                return await self._completed(params)
            case _:
                return None

    async def own_answer(self, incoming: Incoming) -> Json:
        """Lists of what all servers have, each sorted."""
        of = LISTED.get(incoming.method)
        if of is None:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", incoming.method)
        offered, shown = self._lists[of]
        if self._pages is None:
            listed: Json = {of: [declared(*entry) for entry in shown(offered())]}
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
        return ((tool.definition, tool.name) for tool in tools if self.access.has_tool(tool.server, tool.tool))

    def _shown_prompts(self, prompts: Iterable[Prompt]) -> Iterable[Entry]:
        return ((prompt.definition, prompt.name) for prompt in self._usable(prompts))

    def _shown_resources(self, resources: Iterable[Resource]) -> Iterable[Entry]:
        """Of several of one URI the one that is read."""
        first: dict[str, BaseModel] = {}
        for resource in self._in_order(resources):
            first.setdefault(resource.uri, resource.definition)
        return ((first[uri], None) for uri in sorted(first))

    def _shown_templates(self, templates: Iterable[ResourceTemplate]) -> Iterable[Entry]:
        """Of several that are the same the one that is read."""
        first: dict[str, BaseModel] = {}
        for template in self._in_order(templates):
            first.setdefault(template.uri_template, template.definition)
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
            raise MCPError(INVALID_PARAMS, str(error)) from None

    def _usable(self, offered: Iterable[P]) -> list[P]:
        return [each for each in offered if self.access.has_server(each.server)]

    async def _prompt(self, name: str) -> Prompt:
        prompt = self._known_prompt(name)
        if prompt is None:  # who is known waits for no other server
            await self.supervisor.list_prompts()
            prompt = self._known_prompt(name)
        if prompt is None:
            raise MCPError(INVALID_PARAMS, f"no server offers a prompt named {name!r}")
        return prompt

    def _known_prompt(self, name: str) -> Prompt | None:
        return next((prompt for prompt in self._usable(self.supervisor.prompts) if prompt.name == name), None)

    async def owner_of(self, uri: str) -> str:
        """The first configured server that lists the resource, or else has a template that it may come of."""
        owner = self._known_owner_of(uri)
        if owner is None:  # who is known waits for no other server
            await self.supervisor.list_resources()
            owner = self._known_owner_of(uri)
        if owner is None:
            raise UnknownResource(uri, server=None)
        return owner

    def _known_owner_of(self, uri: str) -> str | None:
        listed = self._in_order(each for each in self.supervisor.resources if each.uri == uri)
        matching = self._in_order(each for each in self.supervisor.resource_templates if each.matches(uri))
        owners = [*(each.server for each in listed), *(each.server for each in matching)]
        return owners[0] if owners else None

    async def _completed(self, params: Json) -> Place:
        ref: Json = params["ref"]
        if ref["type"] == "ref/prompt":
            prompt = await self._prompt(ref["name"])
            return Place(prompt.server, params | {"ref": ref | {"name": prompt.prompt}})
        templates = self.supervisor.resource_templates
        for template in self._in_order(each for each in templates if each.uri_template == ref["uri"]):
            return Place(template.server, params)
        return Place(await self.owner_of(ref["uri"]), params)

    def _in_order(self, offered: Iterable[R]) -> list[R]:
        """Those that the client may use, in the order in which their servers are configured."""
        places = self._places()
        return sorted(self._usable(offered), key=lambda each: places.get(each.server, len(places)))

    def _places(self) -> dict[str, int]:
        """The servers, in the order in which they are configured."""
        return {status.name: place for place, status in enumerate(self.supervisor.status())}


async def hello_of(supervisor: Supervisor, server: str) -> Json:
    """What a server says of itself, once it was connected.

    Raises:
        UnknownServer: No server of that name.
        ServerDown: It never was, and that will not change by itself, or not soon.
    """
    await protocol_of(supervisor, server)
    hello = supervisor.hello(server)
    assert hello is not None  # it was connected
    return hello


async def protocol_of(supervisor: Supervisor, server: str) -> str:
    """The version of the protocol that a server speaks, once it was connected.

    Raises:
        UnknownServer: No server of that name.
        ServerDown: It never was, and that will not change by itself, or not soon.
    """
    version = supervisor.protocol_version(server)
    if version is None:
        await supervisor.wait_connected(server, patience=PATIENCE)
        version = supervisor.protocol_version(server)
    assert version is not None  # it was connected
    return version


def status_of(supervisor: Supervisor, server: str) -> ServerStatus | None:
    """How a server is; None if there is none of that name."""
    return next((status for status in supervisor.status() if status.name == server), None)


def _name_of(tool: object) -> str:
    name: object = cast("Json", tool).get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else ""


def _instructions(statuses: Iterable[ServerStatus]) -> str:
    """What servers want a model to know, each under its name, within bounds."""
    parts = [
        f"# {status.name}\n{status.instructions[:MOST_INSTRUCTIONS]}" for status in statuses if status.instructions
    ]
    return "\n\n".join(parts)[:INSTRUCTIONS]
