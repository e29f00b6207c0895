"""FastMCP's client in the scenarios of `behaviours.py`: one `async with` for all calls, or one for each.

Argument: `block` or `each`.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import scenarios
from fastmcp import Client

KIND = sys.argv[2]


class FastMCP:
    def __init__(self, client: Client, names: list[str]) -> None:
        self._client = client
        self._prefixed = len(names) > 1

    def _open(self) -> Any:
        return self._client if KIND == "each" else nullcontext()

    async def call(self, server: str, tool: str, arguments: dict[str, Any], timeout: float) -> str:
        async with self._open():
            name = f"{server}_{tool}" if self._prefixed else tool
            return scenarios.sdk_text(await self._client.call_tool(name, arguments, timeout=timeout))

    async def tools(self) -> list[str]:
        async with self._open():
            return [tool.name for tool in await self._client.list_tools()]


@asynccontextmanager
async def opened(servers: dict[str, list[str]]) -> AsyncIterator[FastMCP]:
    entries = {name: {"command": command, "args": args} for name, (command, *args) in servers.items()}
    client = Client({"mcpServers": entries})
    async with client if KIND == "block" else nullcontext():
        yield FastMCP(client, list(servers))


if __name__ == "__main__":
    asyncio.run(scenarios.observe(opened))
