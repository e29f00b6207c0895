"""What the tests of a supervisor share: specs of scripted servers, their status, and tools of one line."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import field, frozen

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor import ServerSpec, Supervisor
from mcp_nursery.supervisor.events import DefinitionsChanged, EventStream, SnapshotEvent
from mcp_nursery.supervisor.status import ServerStatus
from mcp_nursery.supervisor.testing import ScriptedServer

SERVERS: dict[str, ScriptedServer] = {}
"""The servers that a `Named` stands for."""


@frozen
class Named:
    """The transport of a scripted server, a value that lasts as a command is: the store remembers what it found."""

    name: str
    kind = "scripted"

    def connector(self, *, close_grace: float) -> Any:
        return SERVERS[self.name].transport.connector(close_grace=close_grace)


@frozen
class WithEnvironment:
    """The transport of a scripted server that is given an environment, as a subprocess is."""

    server: ScriptedServer
    env: Mapping[str, str] = field(factory=dict, repr=False)
    kind = "scripted"

    def connector(self, *, close_grace: float) -> Any:
        return self.server.transport.connector(close_grace=close_grace)


def spec(server: ScriptedServer, name: str = "lab", **options: Any) -> ServerSpec:
    """The spec of a scripted server."""
    return ServerSpec(name, server.transport, **options)


def status(supervisor: Supervisor, name: str = "lab") -> ServerStatus:
    """Where a server stands now."""
    return next(one for one in supervisor.status() if one.name == name)


def states(supervisor: Supervisor) -> dict[str, ServerState]:
    """Where each server stands now, in order."""
    return {one.name: one.state for one in supervisor.status()}


async def nothing(arguments: object) -> object:
    """A tool that is done at once."""
    await trio.lowlevel.checkpoint()
    return "done"


async def hang(arguments: object) -> object:
    """A tool that never ends."""
    await trio.sleep_forever()
    raise AssertionError


def lasting(seconds: float) -> Callable[[object], Awaitable[object]]:
    """A tool that takes so long."""

    async def tool(arguments: object) -> object:
        await trio.sleep(seconds)
        return "done"

    return tool


@asynccontextmanager
async def live_events(supervisor: Supervisor) -> AsyncGenerator[EventStream, None]:
    """A stream of events of which it was read where everything stands."""
    async with supervisor.events() as events:
        for one in supervisor.status():
            event = await events.receive()
            assert isinstance(event, SnapshotEvent)
            assert event.status.name == one.name
            if any(change.server == one.name for change in supervisor.definition_changes):
                assert isinstance(await events.receive(), DefinitionsChanged)
        yield events
