"""The views of clients: here a single server, and in `all` all servers as one."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from mcp_nursery.actors.enums import ListKind, ServerState
from mcp_nursery.actors.errors import NotApproved, SupervisorClosed, UnknownServer, UnknownTool
from mcp_nursery.actors.extensions import with_extensions
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.messages import LISTED
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.protocol import INVALID_PARAMS, METHOD_NOT_FOUND, JsonRpcError
from mcp_nursery.actors.records import frozen

from ...resources import Prompt, Resource, ResourceTemplate
from ...security.untrusted_marks import missing_servers
from ...status import ServerStatus
from ...supervisor import Supervisor
from ...tools.tool import Tool
from ...tools.ui import is_for_models
from ..auth.principal import EVERYTHING, Access
from ..bridge import Json, as_object, bridge_result, fit_definition, fit_list, server_info_of
from ..client_request import STANDARD_REQUESTS, ClientRequest
from .shown_uris import qualify_definition

if TYPE_CHECKING:
    from pydantic import BaseModel

RECONNECT_TIMEOUT: Final = 5.0
"""Seconds that a client of one server waits at most for further attempts, once one has failed: hosts give up after ten
or more. An attempt under way is waited for, however long it takes."""

NamedDefinition = tuple["BaseModel", str | None, str | None]
"""A definition as its server declares it; the name that clients know it by, None: its own; and the server that its URIs
are to show, None: they are as its server has them."""

Offered = Tool | Prompt | Resource | ResourceTemplate

Place = tuple[str, str]
"""A resource: its server, and the server's own URI of it."""

_AWAY: Final = frozenset([ServerState.CONNECTING, ServerState.WAITING, ServerState.NEEDS_AUTH, ServerState.FAILED])
"""States in which a server cannot be asked; its known definitions are shown if the server may come back by itself."""


@frozen
class RequestRoute:
    """The server that a request goes to, and the parameters that it has there."""

    server: str
    params: Json


class View(ABC):
    """The view of a client on the supervisor."""

    def __init__(self, supervisor: Supervisor, access: Access = EVERYTHING, server: str | None = None) -> None:
        self.supervisor = supervisor
        self.access: Final = access
        """The grant of the client."""
        self.server: Final = server
        """The one server; None for all of them."""
        self.hold: float = 0.0
        """Seconds that a call of a tool that is not known yet is held at most while the server restarts that may have
        it."""
        self.apps: bool = False
        """True if the client shows the pages of tools: it is offered tools that are not for models as well."""

    def with_apps(self) -> "View":
        """The view as a client has it that declares Apps."""
        view = copy(self)
        view.apps = True
        return view

    def may_call(self, server: str, tool: str) -> bool:
        """True if the client may know of this tool, by its server's own name of it, and may call it."""
        return self.access.has_tool(server, tool) and (self.apps or self.supervisor.for_models(server, tool))

    @property
    def statuses(self) -> list[ServerStatus]:
        """The statuses of the servers of which the client may use something."""
        statuses = self.supervisor.status()
        return [one for one in statuses if self.server in (None, one.name) and self.access.has_server(one.name)]

    def lists(self, method: str, server: str) -> bool:
        """True if the offers of a server are in the lists that this method asks for."""
        del method
        return self.server in (None, server) and self.access.has_server(server)

    def missing(self) -> str:
        """The line for a model about servers that are missing; empty for a view of one server."""
        if self.server is not None:
            return ""
        return missing_servers((one.name, one.state, one.tool_count > 0) for one in self.statuses)

    def instructions(self) -> dict[str, str]:
        """The instructions of servers for a model, as they came, by the servers' names, in their order."""
        said = ((one.name, self.supervisor.hello(one.name)) for one in self.statuses if one.instructions)
        return {name: hello["instructions"] for name, hello in said if hello}

    @abstractmethod
    async def hello(self) -> Json:
        """The introduction of the server to its client: an answer to `initialize` or `server/discover`.

        Raises:
            ServerDown: The server was never connected, and that will not change by itself, or not soon.
        """

    @abstractmethod
    async def route(self, request: ClientRequest) -> RequestRoute | None:
        """The destination of a request; None if it is answered here.

        Raises:
            JsonRpcError: No server has what it asks for.
        """

    def told(self, capabilities: Mapping[str, Any], server: str) -> Mapping[str, Any]:
        """The capabilities of the client as a request to this server declares them: its entry may say which extensions
        it is told of."""
        own = self.supervisor.spec(server).extensions
        return capabilities if own is None else with_extensions(capabilities, own)

    @abstractmethod
    async def refresh(self, request: ClientRequest, since: float) -> None:
        """Fetch again the lists behind the one that a client asks for, if they may be old: see
        `Supervisor.refresh_old`."""

    @abstractmethod
    async def answer(self, request: ClientRequest) -> Json:
        """The answer to a request that goes to no server.

        Raises:
            JsonRpcError: There is no answer.
        """

    async def tool(self, name: str) -> Tool:
        """The tool that the client calls by this name.

        Raises:
            NurseryError: There is no such tool, or it cannot be used now.
        """
        try:
            tool = await self._find(name)
            if self.may_call(tool.server, tool.tool):
                return tool
        except NotApproved as held:
            if self.may_call(held.server, held.tool or ""):
                raise
        raise UnknownTool(name, server=self.server)  # without the names of others

    @abstractmethod
    async def _find(self, name: str) -> Tool:
        """The tool of this name, which the client may not be permitted to call."""

    @abstractmethod
    async def wait_settled(self) -> None:
        """Wait, within bounds, until the tools to be listed are known.

        Raises:
            NurseryError: There are none: the error gives the reason.
        """

    @abstractmethod
    def known_tool(self, name: object) -> Tool | None:
        """The tool that the client calls by this name, if it is known by now: nothing is started or waited for."""

    def input_schema(self, name: object) -> Mapping[str, Any] | None:
        """The input schema of the tool that the client calls by this name, if it is known."""
        tool = self.known_tool(name)
        return None if tool is None else tool.input_schema

    @abstractmethod
    async def resource_of(self, uri: str) -> Place:
        """The resource that a client means.

        Raises:
            UnknownResource: No server that the client may use has it.
            ContestedResource: Several may have it.
        """

    @abstractmethod
    async def known_resource_of(self, uri: str) -> Place | None:
        """The resource that a client means, if that is known by now: nothing is started or waited for. Raises as
        `resource_of` does."""

    @abstractmethod
    async def filter_result(self, request: ClientRequest, result: Json, server: str) -> Json:
        """The result of a server as the client sees it."""


class One(View):
    """One server, with its own names."""

    def __init__(self, supervisor: Supervisor, server: str, access: Access = EVERYTHING) -> None:
        super().__init__(supervisor, access, server)
        self._name: Final = server

    async def hello(self) -> Json:
        """The introduction of the server."""
        return await introduction_of(self.supervisor, self._name)

    async def route(self, request: ClientRequest) -> RequestRoute | None:
        """The server itself, for any request. A client that may not use all of it cannot make requests that neither the
        protocol nor a standard of an extension has."""
        if request.method not in STANDARD_REQUESTS and not self.access.has_all_of(self._name):
            raise JsonRpcError(METHOD_NOT_FOUND, "Method not found", request.method)
        if request.method == "tools/call" and not self.may_call(self._name, request.params["name"]):
            raise JsonRpcError(INVALID_PARAMS, f"Unknown tool: {request.params['name']}")
        if request.method in LISTED and self._answers_from_cache(request):
            return None
        return RequestRoute(self._name, request.params)

    async def refresh(self, request: ClientRequest, since: float) -> None:
        """Have the tools known before the server lists them: filters use those, and changed definitions are noticed. A
        server that is not asked for its list is not asked for this either."""
        if request.method == "tools/list" and not self._answers_from_cache(request):
            await self.supervisor.refresh_old(ListKind.TOOLS, server=self._name, since=since)

    def _answers_from_cache(self, request: ClientRequest) -> bool:
        """True if a list is answered without the server, which is away or does not answer calls: the known list is
        valid until clients are notified of a change."""
        if "cursor" in request.params:
            return False
        status = status_of(self.supervisor, self._name)
        if status is None or (status.state not in _AWAY and status.breaker is None):
            return False
        if status.state is ServerState.CONNECTING or any(map(self._own, self.supervisor.tools)):
            return True
        comes_back = status.state is not ServerState.FAILED or status.retry_in is not None
        return comes_back and self.supervisor.hello(self._name) is not None

    def _own(self, offered: Offered) -> bool:
        return offered.server == self._name

    @override
    async def _find(self, name: str) -> Tool:
        if self.access.has_all_of(self._name):
            return await self.supervisor.find_tool(name, server=self._name, when_down=self.hold)
        if self.access.has_tool(self._name, name):
            with suppress(UnknownTool):
                return await self.supervisor.find_tool(name, server=self._name, when_down=self.hold)
        raise UnknownTool(name, server=self._name)  # without the names of others

    async def wait_settled(self) -> None:
        """Have the server started, if nothing is known of it."""
        if not any(tool.server == self._name for tool in self.supervisor.tools):
            await self.supervisor.request(self._name, "tools/list")

    async def resource_of(self, uri: str) -> Place:
        """The server's own resource, for any URI."""
        return self._name, uri

    async def known_resource_of(self, uri: str) -> Place:
        """The server's own resource, for any URI."""
        return self._name, uri

    def known_tool(self, name: object) -> Tool | None:
        """The tool, by the server's own name of it, if it is known."""
        if isinstance(name, str) and self.may_call(self._name, name):
            with suppress(UnknownTool, UnknownServer):
                return self.supervisor.tool(name, server=self._name)
        return None

    async def answer(self, request: ClientRequest) -> Json:
        """The list, as far as it is known."""
        of, supervisor = LISTED[request.method], self.supervisor
        offered: Mapping[str, Sequence[Offered]] = {
            "tools": [each for each in supervisor.tools if self.may_call(each.server, each.tool)],
            "prompts": supervisor.prompts,
            "resources": supervisor.resources,
            "resourceTemplates": supervisor.resource_templates,
        }
        entries = ((each.declared, None, None) for each in offered[of] if self._own(each))
        listed = await by_turns(dump_definitions(entries, modern=request.modern))
        info = server_info_of(supervisor.hello(self._name) or {})
        return bridge_result(
            request.method, {of: listed}, to_modern=request.modern, from_modern=False, server_info=info
        )

    async def filter_result(self, request: ClientRequest, result: Json, server: str) -> Json:
        """The result without the tools that filters and pins hold back, that the client may not use, or that are only
        for what it does not show."""
        of = LISTED.get(request.method)
        listed: object = None if of is None else result.get(of)
        if of is None or not isinstance(listed, list):
            return result
        entries = cast("list[object]", listed)
        shown = entries if of != "tools" else [each for each in entries if self._shows(server, each)]
        return fit_list(of, result, shown, modern=request.modern)

    def _shows(self, server: str, tool: object) -> bool:
        name, said = _name_of(tool), as_object(tool)
        for_client = self.apps or is_for_models(said.get("_meta"))
        return for_client and self.supervisor.offers(server, name, said) and self.access.has_tool(server, name)


async def introduction_of(supervisor: Supervisor, server: str) -> Json:
    """The introduction of a server: the last one, if it is cached with what the server lists, or else the first, once
    the server has been connected.

    Raises:
        UnknownServer: No server has that name.
        ServerDown: The server was never connected, and that will not change by itself, or not soon.
    """
    began = trio.current_time()
    await supervisor.wait_listed(server)
    hello = supervisor.hello(server)
    if hello is None:
        await protocol_of(supervisor, server, since=began)
        hello = supervisor.hello(server)
    assert hello is not None  # it was connected
    return hello


async def protocol_of(supervisor: Supervisor, server: str, *, hold: float = 0.0, since: float | None = None) -> str:
    """The version of the protocol that a server speaks, once it has been connected. A request waits `hold` seconds at
    most for further attempts, if that is longer than `RECONNECT_TIMEOUT`, from `since` on, or from now.

    Raises:
        UnknownServer: No server has that name.
        ServerDown: The server was never connected, and that will not change by itself, or not soon.
    """
    version = supervisor.protocol_version(server)
    if version is None:
        waited = 0.0 if since is None else trio.current_time() - since
        await supervisor.wait_connected(server, patience=max(0.0, max(hold, RECONNECT_TIMEOUT) - waited))
        version = supervisor.protocol_version(server)
    assert version is not None  # it was connected
    return version


def status_of(supervisor: Supervisor, server: str) -> ServerStatus | None:
    """The status of a server; None if no server has that name, or the supervisor is closed."""
    try:
        return supervisor.status_of(server)
    except (UnknownServer, SupervisorClosed):
        return None


def _name_of(tool: object) -> str:
    name: object = cast("Json", tool).get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else ""


def dump_definitions(entries: Iterable[NamedDefinition], *, modern: bool) -> Steps[list[Json]]:
    """The definitions as servers declare them, in steps."""
    listed: list[Json] = []
    for entry in entries:
        listed.append(dump_definition(entry, modern=modern))
        yield
    return listed


def dump_definition(entry: NamedDefinition, *, modern: bool) -> Json:
    """The definition as its server declares it, as far as strict clients of an era take that, with the name and the
    URIs that they know."""
    definition, name, server = entry
    said = fit_definition(definition.model_dump(by_alias=True, mode="json", exclude_unset=True), modern=modern)
    named = said if name is None else said | {"name": name}
    return named if server is None else qualify_definition(server, named)
