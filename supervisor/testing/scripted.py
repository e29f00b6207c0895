"""Servers in memory that fail as told. They speak the protocol frame by frame, so all of the wire is under test."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, field, frozen

from mcp_nursery.actors.errors import StartFailed
from mcp_nursery.actors.jsonrpc.stream import Duplex
from mcp_nursery.actors.transports.base import WireConnector

from .incarnation import Incarnation
from .life import Life, ToolFunction

if TYPE_CHECKING:
    from mcp_nursery.actors.server import Connector


async def _echo(arguments: dict[str, Any]) -> object:
    await trio.lowlevel.checkpoint()
    return json.dumps(arguments, sort_keys=True)


@define(eq=False)
class ScriptedServer:
    """A server that lives its lives one after another, the last one again and again.

    server = ScriptedServer(Life(refuses="no such luck"), Life(dies_after=60))
    async with open_supervisor([ServerSpec("lab", server.transport)]) as supervisor: ...
    """

    lives: Sequence[Life]
    """One for each incarnation; the last is repeated."""
    tools: Mapping[str, ToolFunction]
    """What it offers, by name."""
    annotations: Mapping[str, Mapping[str, Any]]
    """Of each tool, with the protocol's keys."""
    declared: Mapping[str, Mapping[str, Any]]
    """More of each tool's definition."""
    starts: list[float] = field(factory=list[float])
    """When each incarnation was opened, on Trio's clock."""
    ends: list[float] = field(factory=list[float])
    """When each incarnation was closed."""
    calls: list[tuple[int, str, dict[str, Any]]] = field(factory=list[tuple[int, str, dict[str, Any]]])
    """Every `tools/call` it read, as (incarnation, tool, arguments): the ledger of what it may have acted on."""
    cancelled: list[int | str] = field(factory=list["int | str"])
    """The ids of the requests it was told to cancel."""
    probes: list[float] = field(factory=list[float])
    """When it was asked whether it lives."""
    most_alive: int = 0
    """The most incarnations ever open at once."""
    _alive: int = 0
    _current: Incarnation | None = None

    def __init__(
        self,
        *lives: Life,
        tools: Mapping[str, ToolFunction] | None = None,
        annotations: Mapping[str, Mapping[str, Any]] | None = None,
        declared: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Script a server.

        Args:
            lives: One for each incarnation; the last is repeated. Default: a healthy one.
            tools: By name. Default: `echo`, which returns its arguments as JSON.
            annotations: Of each tool, with the protocol's keys, such as `readOnlyHint`.
            declared: More of each tool's definition, with the protocol's keys, such as `inputSchema`.
        """
        offered = {"echo": _echo} if tools is None else tools
        self.__attrs_init__(lives or (Life(),), offered, annotations or {}, declared or {})  # type: ignore[attr-defined]

    @property
    def transport(self) -> "ScriptedTransport":
        """For `ServerSpec(name, server.transport)`."""
        return ScriptedTransport(self)

    def crash(self, exit_code: int = 1) -> None:
        """End the living incarnation now, as if its process had died."""
        if self._current is not None:
            self._current.die(exit_code)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification from the living incarnation."""
        await trio.lowlevel.checkpoint()
        if self._current is not None:
            self._current.send({"jsonrpc": "2.0", "method": method, "params": dict(params or {})})

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Incarnation, None]:
        """Live the next life.

        Raises:
            StartFailed: It refuses.
        """
        number = len(self.starts)
        life = self.lives[min(number, len(self.lives) - 1)]
        self.starts.append(trio.current_time())
        self._alive += 1
        self.most_alive = max(self.most_alive, self._alive)
        try:
            if life.refuses is not None:
                raise StartFailed(life.refuses, retriable=life.usable, needs_auth=life.needs_auth)
            async with trio.open_nursery() as nursery:
                self._current = Incarnation(self, life, number + 1, nursery)
                nursery.start_soon(self._current.live)
                try:
                    yield self._current
                finally:
                    with trio.CancelScope(shield=True):  # bounded by the script
                        await trio.sleep(life.closes_after)
                    nursery.cancel_scope.cancel()
        finally:
            self._alive -= 1
            self.ends.append(trio.current_time())


@frozen
class ScriptedTransport:
    """A scripted server as the transport of a `ServerSpec`."""

    server: ScriptedServer

    @property
    def kind(self) -> str:
        """`scripted`."""
        return "scripted"

    def connector(self, *, close_grace: float) -> "Connector":
        """How an incarnation reaches it; it closes as its script says."""
        del close_grace
        return _ScriptedConnector(self.server)


@frozen
class _ScriptedConnector(WireConnector):
    server: ScriptedServer

    def open(self) -> AbstractAsyncContextManager[Duplex]:
        """Begin its next life."""
        return self.server.open()
