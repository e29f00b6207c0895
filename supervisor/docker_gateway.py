"""Docker's MCP gateway, added to the servers where it is found."""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

from mcp_nursery.actors.errors import ConfigError, SupervisorClosed

from .config.specs import ConfigSource, is_taken
from .spec import ServerSpec
from .transports import DockerGatewayTransport

if TYPE_CHECKING:
    from .servers.servers import Servers

logger: Final = logging.getLogger(__name__)

Docker = Literal["auto"]
"""Whether the gateway is added without an entry of its own: where it is found."""

NAME: Final = "docker"
"""What it is called then."""


async def add_gateway(servers: "Servers", source: ConfigSource) -> None:
    """Look for the gateway and add it, also to what later reloads find, unless there is one, or a server of its name.
    Where it cannot run, one warning says why."""
    from mcp_nursery.actors.transports.docker_gateway import problem_with_gateway

    transport = DockerGatewayTransport()
    spec = ServerSpec(NAME, transport)
    if is_taken(spec, servers.specs()):
        return
    problem = await problem_with_gateway(transport.command, transport.env)
    if problem is not None:
        logger.warning("%s", problem)
        return
    source.besides = (spec,)
    if not is_taken(spec, servers.specs()):
        with suppress(ConfigError, SupervisorClosed):  # somebody else has just added it; the block is being left
            await servers.add(spec)
