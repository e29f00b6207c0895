"""A gateway in the scenarios of `behaviours.py`, which the SDK's client calls. Argument: the client's `mode`.

Over HTTP the gateway is a process that is started here, and gets SIGTERM at the end, or SIGINT if the scenario raises.
On standard streams it is the client that starts and ends it.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import scenarios
from mcp import Client, StdioServerParameters

MANAGEMENT = "hangar_"
"""Begins the names of mcp-hangar's own tools."""


class Gateway:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._names: list[str] = []

    async def call(self, _server: str, tool: str, arguments: dict[str, Any], timeout: float) -> str:
        self._names = self._names or await self.tools()
        name = self._find(tool, self._names)
        result = await self._client.call_tool(name, arguments, read_timeout_seconds=timeout)
        text = scenarios.sdk_text(result)
        if result.is_error:
            raise ToolError(text)
        return text

    @staticmethod
    def _find(tool: str, names: list[str]) -> str:
        found = [name for name in names if name.endswith(tool)]
        if len(found) != 1:
            raise scenarios.WrongAnswer(f"tools {names}")
        return found[0]

    async def tools(self) -> list[str]:
        result = await self._client.list_tools()
        return [tool.name for tool in result.tools if not tool.name.startswith(MANAGEMENT)]

    @asynccontextmanager
    async def again(self) -> AsyncIterator["Gateway"]:
        """The same gateway in a new session."""
        async with _client() as client:
            yield Gateway(client)


class ToolError(Exception):
    """A result that says of itself that it is an error."""

    said = "isError"


def _client() -> Client:
    command, *arguments = scenarios.JOB.gateway
    server = scenarios.JOB.url or StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    return Client(server, mode=sys.argv[2])


@asynccontextmanager
async def opened(_servers: dict[str, list[str]]) -> AsyncIterator[Gateway]:
    with _started():
        async with _client() as client:
            yield Gateway(client)


@contextmanager
def _started() -> Iterator[None]:
    if not scenarios.JOB.url:
        yield
        return
    process = subprocess.Popen(scenarios.JOB.gateway, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    ending = signal.SIGINT
    try:
        _wait_until_it_listens()
        yield
        ending = signal.SIGTERM
    finally:
        process.send_signal(ending)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)


def _wait_until_it_listens() -> None:
    at = urlsplit(scenarios.JOB.url)
    until = time.monotonic() + scenarios.START
    while True:
        try:
            socket.create_connection((at.hostname, at.port), 1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


if __name__ == "__main__":
    asyncio.run(scenarios.observe(opened))
