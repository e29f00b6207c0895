"""Docker's MCP gateway as one server: whether it can be had here, and the client of docker that runs it."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import trio
from attrs import frozen

from ..errors import StartFailed
from ..jsonrpc.stream import FrameStream
from .base import StreamConnector
from .docker import run_client
from .stdio import StdioConnector

DETECTION: Final = 3.0
"""Seconds that it may take to find out whether there is a gateway."""


async def problem_with_gateway(command: str, env: Mapping[str, str]) -> str | None:
    """Why docker's MCP gateway cannot run here, in one line; None if it can. Takes `DETECTION` seconds at most.

    Args:
        command: Docker's client.
        env: Variables that it gets besides the inherited few.
    """
    said = f"docker's MCP gateway cannot run here: {command!r}"
    with trio.move_on_after(DETECTION):
        try:
            words = await run_client(command, ["mcp", "--help"], env)
            if words.returncode != 0 or b"gateway" not in words.stdout:
                return f"{said} has no command `mcp gateway`"
            version = await run_client(command, ["info", "--format", "{{.ServerVersion}}"], env)
            if version.returncode != 0 or not version.stdout.strip():
                return f"{said} reaches no daemon"
        except OSError as error:
            return f"{said}: {error.strerror or type(error).__name__}"
        return None
    return f"{said} did not answer within {DETECTION:g} s"


@frozen
class DockerGatewayConnector(StreamConnector):
    """Runs a gateway of its own for every `open` or `connect`. It ends as any process: it removes its containers."""

    client: StdioConnector
    """The docker client, told to run the gateway."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[FrameStream, None]:
        """Look whether there is a gateway, and run it; leaving the block ends it, as a `StdioConnector` does.

        Raises:
            StartFailed: On entering: it cannot run here. It is not tried again.
        """
        problem = await problem_with_gateway(self.client.command, self.client.env)
        if problem is not None:
            raise StartFailed(problem, retriable=False)
        async with self.client.open() as stream:
            yield stream
