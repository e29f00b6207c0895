"""What the tests of a supervisor share: specs of scripted servers, their status, and tools of one line."""

from typing import Any

import trio

from mcp_nursery.supervisor import ServerSpec, Supervisor
from mcp_nursery.supervisor.status import ServerStatus
from mcp_nursery.supervisor.testing import ScriptedServer


def spec(server: ScriptedServer, name: str = "lab", **options: Any) -> ServerSpec:
    """The spec of a scripted server."""
    return ServerSpec(name, server.transport, **options)


def status(supervisor: Supervisor, name: str = "lab") -> ServerStatus:
    """Where a server stands now."""
    return next(one for one in supervisor.status() if one.name == name)


async def nothing(arguments: object) -> object:
    """A tool that is done at once."""
    await trio.lowlevel.checkpoint()
    return "done"


async def hang(arguments: object) -> object:
    """A tool that never ends."""
    await trio.sleep_forever()
    raise AssertionError
