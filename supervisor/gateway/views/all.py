"""The view of all servers as one: with names that tell them apart, and lists of what all have."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import trio

from mcp_nursery.actors.enums import ListKind, ServerState
from mcp_nursery.actors.errors import ContestedResource, NurseryError, UnknownResource, UnknownServer, UnknownTool
from mcp_nursery.actors.extensions import EXTENSION_OF, declared_by, takes, united
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.messages import LISTED
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.protocol import CLIENT_METHODS, INVALID_PARAMS, METHOD_NOT_FOUND, JsonRpcError
from mcp_nursery.actors.records import define, field
from mcp_nursery.actors.version import VERSION

from ...resources import Prompt, Resource, ResourceTemplate
from ...security.untrusted_marks import MOST_INSTRUCTIONS, clean_name
from ...supervisor import Supervisor
from ...tools.tool import Tool
from ..auth.principal import EVERYTHING, Access
from ..bridge import Json, as_object, bridge_result
from ..client_request import ClientRequest
from .shown_uris import is_web_address, qualify, qualify_result, qualify_skill, split_qualified
from .view import NamedDefinition, Place, RequestRoute, View, dump_definition, dump_definitions, status_of

logger: Final = logging.getLogger(__name__)

PAGES: Final = 16
"""Lists of each kind that are kept, for clients that may use different parts of the servers."""
MOST_CACHED_BYTES: Final = 16 << 20
"""Bytes of those lists; the latest is kept however large it is."""


@define(eq=False)
class Pages:
    """The lists of one kind for clients of an era. They are kept until their entries change; each definition is encoded
    once."""

    _modern: bool
    _source: Sequence[object] | None = field(default=None, init=False)
    """The entries that the lists are made of."""
    _pages: OrderedDict[Hashable, codec.Encoded] = field(factory=OrderedDict[Hashable, codec.Encoded], init=False)
    _written: dict[int, tuple[NamedDefinition, bytes]] = field(
        factory=dict[int, tuple[NamedDefinition, bytes]], init=False
    )
    """The encoded definitions, by the identity of the definition."""
    _turn: trio.Lock = field(factory=trio.Lock, init=False)

    async def page(
        self,
        key: Hashable,
        offered: Callable[[], Sequence[Any]],
        shown: Callable[[Sequence[Any]], Iterable[NamedDefinition]],
    ) -> codec.Encoded:
        """A list, encoded. Clients that see the same list have the key in common. `offered` returns all entries, the
        same object until they change, and `shown` selects those that the client sees, in order."""
        async with self._turn:
            source = offered()
            if source is not self._source:
                self._pages.clear()
            if key not in self._pages:
                entries = list(shown(source))
                self._pages[key] = await by_turns(self._write(entries, anew=source is not self._source))
                self._source = source
                while len(self._pages) > PAGES or (len(self._pages) > 1 and self._size > MOST_CACHED_BYTES):
                    self._pages.popitem(last=False)
            self._pages.move_to_end(key)
            return self._pages[key]

    @property
    def _size(self) -> int:
        return sum(len(page.json) for page in self._pages.values())

    def _write(self, entries: Iterable[NamedDefinition], *, anew: bool) -> Steps[codec.Encoded]:
        known, written = self._written, {} if anew else self._written
        parts: list[bytes] = []
        for entry in entries:
            identity = id(entry[0])
            before = known.get(identity)
            if before is None or before[0][1:] != entry[1:]:
                before = entry, codec.encode(dump_definition(entry, modern=self._modern))
                yield
            written[identity] = before
            parts.append(before[1])
        self._written = written
        yield
        return codec.Encoded(b"[" + b",".join(parts) + b"]")


INSTRUCTIONS: Final = 16_000
"""Characters of all servers' instructions that a client is sent."""
SETTLE: Final = 5.0
"""Seconds that a search waits at most for servers that were never connected."""

P = TypeVar("P", bound=Prompt | Resource | ResourceTemplate)

_INFO: Final = {"name": "mcp-nursery", "version": VERSION}
_LIST_KINDS: Final = {
    "tools": ListKind.TOOLS,
    "prompts": ListKind.PROMPTS,
    "resources": ListKind.RESOURCES,
    "resourceTemplates": ListKind.TEMPLATES,
}


class All(View):
    """All servers as one, with the grant of the client. The lists that are kept are in `pages`, by what is listed and
    whether it is for clients without a handshake; None: none are kept, and lists are made of objects."""

    def __init__(
        self, supervisor: Supervisor, access: Access = EVERYTHING, pages: dict[tuple[str, bool], Pages] | None = None
    ) -> None:
        super().__init__(supervisor, access)
        self._pages = pages

    async def hello(self) -> Json:
        """The introduction, at once, with what is known of the servers: later tools are announced as a change."""
        changes = {"listChanged": True}
        capabilities: Json = {
            "tools": changes,
            "prompts": changes,
            "resources": changes | {"subscribe": True},
            "completions": {},
            "logging": {},
        }
        if extensions := united([*self._capabilities().values()]):
            capabilities["extensions"] = extensions
        instructions = "\n\n".join(filter(None, [self.missing(), _join_instructions(self.instructions())]))
        said = {"instructions": instructions} if instructions else {}
        return {"serverInfo": _INFO, "capabilities": capabilities} | said

    async def route(self, request: ClientRequest) -> RequestRoute | None:
        """The server that has the tool, the prompt or the resource."""
        params = request.params
        match request.method:
            case "tools/call":
                server, own = await self._place_of_tool(params["name"])
                return RequestRoute(server, params | {"name": own})
            case "prompts/get":
                prompt = await self._find_prompt(params["name"])
                return RequestRoute(prompt.server, params | {"name": prompt.prompt})
            case "resources/read":
                server, uri = await self.resource_of(params["uri"])
                return RequestRoute(server, params | {"uri": uri})
            case "completion/complete":
                return await self._route_completion(params)
            case method if method in CLIENT_METHODS:
                return None
            case _:
                return await self._route_extension(request)

    async def _route_extension(self, request: ClientRequest) -> RequestRoute | None:
        """The server that has what a request of an extension names by its URI; of a request that names nothing which a
        gateway knows, the only server that may have the extension."""
        method, params = request.method, request.params
        known = EXTENSION_OF.get(method)
        uri: object = params.get("uri")
        if not isinstance(uri, str) or split_qualified(uri) is None:
            await self._wait_first_starts()
        takers = self._takers(method)
        if known is not None and known.requests[method] is None:
            if takers:
                return None
        else:
            takers += self._unknown()
        if not takers:
            raise JsonRpcError(METHOD_NOT_FOUND, "Method not found", method)
        if isinstance(uri, str):
            server, uri = await self._resource_of_takers(uri, takers)
            params |= {"uri": uri}
        elif len(takers) > 1:
            words = f"{method} names no server, and several may have it: {', '.join(takers)}"
            raise JsonRpcError(INVALID_PARAMS, words)
        else:
            server = takers[0]
        if server not in takers:
            raise JsonRpcError(METHOD_NOT_FOUND, f"{server} does not have this method", method)
        if known is None and not self.access.has_all_of(server):
            raise JsonRpcError(METHOD_NOT_FOUND, "Method not found", method)
        return RequestRoute(server, params)

    async def _resource_of_takers(self, uri: str, takers: Sequence[str]) -> Place:
        """The resource that a request of an extension is about. Its server need not list it. If it names no server,
        lists do not count: those of others may have it."""
        if split_qualified(uri) is not None:
            return await self.resource_of(uri)
        if len(takers) > 1:
            raise ContestedResource(uri, takers, uris=[qualify(server, uri) for server in takers])
        return takers[0], uri

    def _takers(self, method: str) -> list[str]:
        """The servers that are known to take a request of an extension."""
        return [name for name, able in self._capabilities().items() if takes(able, method)]

    def _unknown(self) -> list[str]:
        """The servers of which nothing is known, so that they may have whatever is asked for."""
        off = ServerState.DISABLED
        return [one.name for one in self.statuses if one.state is not off and self.supervisor.hello(one.name) is None]

    def _capabilities(self) -> dict[str, Json]:
        """The capabilities of the servers with extensions of which the client may use something, by server, as far as
        they are known."""
        hellos = ((one.name, self.supervisor.hello(one.name) or {}) for one in self.statuses)
        said = ((name, as_object(hello.get("capabilities"))) for name, hello in hellos)
        return {name: able for name, able in said if declared_by(able)}

    async def refresh(self, request: ClientRequest, since: float) -> None:
        """Fetch this list again from the servers whose own may be old."""
        await self.supervisor.refresh_old(_LIST_KINDS[LISTED[request.method]], since=since)

    async def answer(self, request: ClientRequest) -> Json:
        """The list of what all servers have, sorted."""
        of = LISTED.get(request.method)
        if of is None:
            return self._as_answer(request, {"skills": await self._list_skills(self._takers(request.method))})
        offered, shown = self._lists[of]
        if self._pages is None:
            listed: Json = {of: await by_turns(dump_definitions(shown(offered()), modern=request.modern))}
        else:
            key = self.access.allow, self.apps
            modern = request.modern or of != "tools"  # the other definitions are the same in both eras
            listed = {of: await self._pages.setdefault((of, modern), Pages(modern)).page(key, offered, shown)}
        return self._as_answer(request, listed)

    def _as_answer(self, request: ClientRequest, listed: Json) -> Json:
        return bridge_result(
            request.method, listed, to_modern=request.modern, from_modern=False, server_info=dict(_INFO)
        )

    async def _list_skills(self, servers: Collection[str]) -> list[Json]:
        """The entries of the skills of these servers. What a server cannot list now is as it was known last.

        Raises:
            NurseryError: No server can be asked.
        """
        failed: list[NurseryError] = []

        async def update(server: str) -> None:
            try:
                await self.supervisor.list_skills(server)
            except NurseryError as error:
                logger.warning("%s: its skills could not be listed: %s", clean_name(server), error.fact)
                failed.append(error)

        async with trio.open_nursery() as nursery:
            for server in servers:
                nursery.start_soon(update, server)
        if len(failed) == len(servers):
            raise failed[0]
        known = self.supervisor.skills
        return [qualify_skill(skill.server, skill.declared) for skill in known if skill.server in servers]

    @property
    def _lists(
        self,
    ) -> Mapping[str, tuple[Callable[[], Sequence[Any]], Callable[[Sequence[Any]], Iterable[NamedDefinition]]]]:
        """The functions, by kind of list, that return all entries and that select those that the client sees."""
        supervisor = self.supervisor
        return {
            "tools": (lambda: supervisor.tools, self._select_tools),
            "prompts": (lambda: supervisor.prompts, self._select_prompts),
            "resources": (lambda: supervisor.resources, self._select_readable),
            "resourceTemplates": (lambda: supervisor.resource_templates, self._select_readable),
        }

    def _select_tools(self, tools: Iterable[Tool]) -> Iterable[NamedDefinition]:
        return ((tool.declared, tool.name, tool.server) for tool in tools if self.may_call(tool.server, tool.tool))

    def _select_prompts(self, prompts: Iterable[Prompt]) -> Iterable[NamedDefinition]:
        return ((prompt.declared, prompt.name, None) for prompt in self._filter_permitted(prompts))

    def _select_readable(self, offered: Iterable[Resource | ResourceTemplate]) -> Iterable[NamedDefinition]:
        return ((each.declared, None, each.server) for each in self._filter_permitted(offered))

    def known_tool(self, name: object) -> Tool | None:
        """The tool of this public name, if it is known."""
        try:
            tool = self.supervisor.tool(str(name))
        except UnknownTool:
            return None
        return tool if self.may_call(tool.server, tool.tool) else None

    @override
    async def _find(self, name: str) -> Tool:
        if self.access.allow is not None and not self._is_known(name):
            await self.supervisor.list_tools()
            if not self._is_known(name):
                raise UnknownTool(name)  # without the names of others
        return await self.supervisor.find_tool(name, when_down=self.hold)

    def _is_known(self, name: str) -> bool:
        return any(tool.name == name and self.may_call(tool.server, tool.tool) for tool in self.supervisor.tools)

    async def wait_settled(self) -> None:
        """Wait for first attempts, `SETTLE` seconds at most."""
        with trio.move_on_after(SETTLE):
            await self.supervisor.list_tools()

    async def _place_of_tool(self, name: str) -> Place:
        """The server of the tool that a client means, and its own name of it."""
        tool = self.known_tool(name)
        if tool is None and (place := await self._place_of_app_tool(name)) is not None:
            return place
        try:
            tool = tool or await self.tool(name)
        except UnknownTool as error:
            if (place := await self._place_of_app_tool(name)) is not None:
                return place
            raise JsonRpcError(INVALID_PARAMS, str(error)) from None
        return tool.server, tool.tool

    async def _place_of_app_tool(self, name: str) -> Place | None:
        """The tool that a page means, which knows no names but those of its own server. It may be the page of a server
        of which nothing is known yet: a client outlives gateways.

        Raises:
            JsonRpcError: Pages of several servers may mean theirs.
        """
        if not self.apps or not self.supervisor.app_tools(name):
            return None
        await self._wait_first_starts()
        tools = self.supervisor.app_tools(name)
        claims = {*filter(self.access.has_server, tools), *self._unknown()}
        usable = {server: public for server, public in tools.items() if self._may_use(server, name)}
        if usable and len(claims) > 1:
            named = " or ".join(map(repr, usable.values()))
            words = f"several servers may have a tool {name!r} for their pages: call {named}"
            raise JsonRpcError(INVALID_PARAMS, words)
        return next(((server, name) for server in usable), None)

    async def _wait_first_starts(self) -> None:
        """Wait for first attempts, `SETTLE` seconds at most."""
        with trio.move_on_after(SETTLE):
            for server in filter(self.access.has_server, self.supervisor.unlisted):
                with suppress(UnknownServer):  # it was removed meanwhile
                    await self.supervisor.wait_listed(server)

    def _may_use(self, server: str, tool: str) -> bool:
        return self.access.has_tool(server, tool) and self.supervisor.spec(server).offers(tool)

    def _filter_permitted(self, offered: Iterable[P]) -> list[P]:
        return [each for each in offered if self.access.has_server(each.server)]

    async def _find_prompt(self, name: str) -> Prompt:
        prompt = self._find_known_prompt(name)
        if prompt is None:
            await self.supervisor.list_prompts()
            prompt = self._find_known_prompt(name)
        if prompt is None:
            raise JsonRpcError(INVALID_PARAMS, f"no server offers a prompt named {name!r}")
        return prompt

    def _find_known_prompt(self, name: str) -> Prompt | None:
        return next((prompt for prompt in self._filter_permitted(self.supervisor.prompts) if prompt.name == name), None)

    async def resource_of(self, uri: str) -> Place:
        """The resource of the server that the URI names; of a URI that names none, that of the only server that may
        have it."""
        if split_qualified(uri) is None:
            await self._wait_first_starts()
        found = await self.known_resource_of(uri)
        if found is None:
            await self.supervisor.list_resources()
            found = await self.known_resource_of(uri)
        if found is None:
            raise UnknownResource(uri)
        return found

    async def known_resource_of(self, uri: str) -> Place | None:
        """The resource that a client means, if that is known by now."""
        named = split_qualified(uri)
        if named is not None:
            server, _ = named
            if status_of(self.supervisor, server) is None or not self.access.has_server(server):
                raise UnknownResource(uri, server=server or None)
            return named
        claimants = [name for name in await self.supervisor.servers_with(uri) if self.access.has_server(name)]
        if len(claimants) > 1 or (claimants and is_web_address(uri)):
            raise ContestedResource(uri, claimants, uris=[qualify(server, uri) for server in claimants])
        return (claimants[0], uri) if claimants else None

    async def _route_completion(self, params: Json) -> RequestRoute:
        ref: Json = params["ref"]
        if ref["type"] == "ref/prompt":
            prompt = await self._find_prompt(ref["name"])
            return RequestRoute(prompt.server, params | {"ref": ref | {"name": prompt.prompt}})
        server, uri = await self.resource_of(ref["uri"])
        return RequestRoute(server, params | {"ref": ref | {"uri": uri}})

    @override
    async def filter_result(self, request: ClientRequest, result: Json, server: str) -> Json:
        return await by_turns(qualify_result(request.method, server, result))


def _join_instructions(instructions: Mapping[str, str]) -> str:
    """The instructions of servers for a model, each under its server's name, within bounds."""
    parts = [f"# {server}\n{said[:MOST_INSTRUCTIONS]}" for server, said in instructions.items()]
    return "\n\n".join(parts)[:INSTRUCTIONS]
