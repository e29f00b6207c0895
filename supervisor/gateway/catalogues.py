"""What a client sees, and one server as it is; all of them as one are in `all_as_one`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from attrs import frozen

from mcp_nursery.actors.enums import ListKind, ServerState
from mcp_nursery.actors.errors import UnknownTool
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.messages import LISTED
from mcp_nursery.actors.protocol import CLIENT_METHODS, INVALID_PARAMS, METHOD_NOT_FOUND, JsonRpcError

from ..resources.prompt import Prompt
from ..resources.resource import Resource, ResourceTemplate
from ..status import ServerStatus
from ..supervisor import Supervisor
from ..tools.tool import Tool
from .access import EVERYTHING, Access
from .downstream import Incoming, as_object
from .eras import Json, bridged, server_info_of
from .pages import declared_steps

PATIENCE: Final = 5.0
"""Seconds that a client of one server waits at most for further attempts, once one has failed: hosts give up after ten
and more. An attempt under way is waited for, however long."""

Offered = Tool | Prompt | Resource | ResourceTemplate

_AWAY: Final = frozenset([ServerState.CONNECTING, ServerState.WAITING, ServerState.NEEDS_AUTH, ServerState.FAILED])
"""States in which a server cannot be asked, and what is known of it is shown if it may come back by itself."""


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

    def lists(self, method: str, server: str) -> bool:
        """Whether what a server offers is in the lists that this method asks for."""
        del method
        return self.server in (None, server) and self.access.has_server(server)

    def instructions(self) -> dict[str, str]:
        """What servers want a model to know, as it came, by their names, in their order."""
        said = ((one.name, self.supervisor.hello(one.name)) for one in self.statuses if one.instructions)
        return {name: hello["instructions"] for name, hello in said if hello}

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
            JsonRpcError: Nobody has what it wants.
        """

    @abstractmethod
    async def own_answer(self, incoming: Incoming) -> Json:
        """The answer to what goes to no server.

        Raises:
            JsonRpcError: There is none.
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
    async def server_of(self, uri: str) -> str:
        """The server whose resource a client means.

        Raises:
            UnknownResource: None that it may use.
        """

    @abstractmethod
    def known_server_of(self, uri: str) -> str | None:
        """The server whose resource a client means, if that is known by now: nothing is started or waited for."""

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
            if incoming.method not in CLIENT_METHODS:
                raise JsonRpcError(METHOD_NOT_FOUND, "Method not found", incoming.method)
            if incoming.method == "tools/call" and not self.access.has_tool(self.server, incoming.params["name"]):
                raise JsonRpcError(INVALID_PARAMS, f"Unknown tool: {incoming.params['name']}")
        if self._lists_what_is_known(incoming):
            return None
        if incoming.method == "tools/list":  # by what is known then it is filtered, and changed definitions are noticed
            await self.supervisor.refresh_old(ListKind.TOOLS, server=self.server)
        return Place(self.server, incoming.params)

    def _lists_what_is_known(self, incoming: Incoming) -> bool:
        """Whether a list is answered without the server: it is not there now, or does not answer calls, and what is
        known of it stays true until clients are told otherwise."""
        if incoming.method not in LISTED or "cursor" in incoming.params:
            return False
        status = status_of(self.supervisor, self.server)
        if status is None or (status.state not in _AWAY and status.breaker is None):
            return False
        if status.state is ServerState.CONNECTING or any(map(self._own, self.supervisor.tools)):
            return True
        comes_back = status.state is not ServerState.FAILED or status.retry_in is not None
        return comes_back and self.supervisor.hello(self.server) is not None

    def _own(self, offered: Offered) -> bool:
        return offered.server == self.server

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

    async def server_of(self, uri: str) -> str:
        """That server, for any URI."""
        return self.known_server_of(uri)

    def known_server_of(self, uri: str) -> str:
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
        """A list of what is known."""
        of, supervisor = LISTED[incoming.method], self.supervisor
        offered: Mapping[str, Sequence[Offered]] = {
            "tools": [each for each in supervisor.tools if self.access.has_tool(each.server, each.tool)],
            "prompts": supervisor.prompts,
            "resources": supervisor.resources,
            "resourceTemplates": supervisor.resource_templates,
        }
        listed = await by_turns(declared_steps((each.declared, None) for each in offered[of] if self._own(each)))
        info = server_info_of(supervisor.hello(self.server) or {})
        return bridged(incoming.method, {of: listed}, to_modern=incoming.modern, from_modern=False, server_info=info)

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
