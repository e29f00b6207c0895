"""What would keep a server from starting here and now, as far as that can be told without starting or running anything.

Not part of reading a file: the environment and the disk may have changed when the server starts.
"""

from typing import Any

from mcp_nursery.actors.errors import ConfigError, StartFailed
from mcp_nursery.actors.process.command import Shown, child_environment, find_program
from mcp_nursery.supervisor.spec import ServerSpec
from mcp_nursery.supervisor.transports import DockerGatewayTransport, DockerTransport, StdioTransport

from .deferred import DeferredTransport, Resolver

_UNKNOWN = "unknown"
"""Stands for the output of a command that is not run."""


async def problem_with(spec: ServerSpec, *, trusted: bool) -> ConfigError | None:
    """A variable without value, an `envFile` that cannot be used, a program or working directory that is not there;
    None if nothing is found.

    Args:
        spec: The server.
        trusted: Whether its user agreed to it; no file is read for one that is not trusted.
    """
    transport = spec.transport
    written: Any = transport.transport if isinstance(transport, DeferredTransport) else transport
    try:
        if isinstance(transport, DeferredTransport):
            if transport.env_file is not None and not trusted:
                return None
            transport = await Resolver(transport, run=_not_run).transport()
        if isinstance(transport, StdioTransport | DockerTransport | DockerGatewayTransport):
            cwd = getattr(transport, "cwd", None)
            shown = Shown(written.command, getattr(written, "cwd", None))
            find_program(transport.command, child_environment(transport.env), cwd and str(cwd), shown)
    except StartFailed as error:
        problem = str(error)
    except ConfigError as error:  # a URL that its variables make none
        problem = error.problem
    else:
        return None
    where = f"{spec.source}: server {spec.name!r}: "
    return ConfigError(problem.removeprefix(where), file=spec.source, server=spec.name)


async def _not_run(_command: str, _folder: str) -> str:
    return _UNKNOWN
