"""mcp-use in the scenarios of `behaviours.py`: one client, a session a server. Telemetry is off."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"

import scenarios
from mcp_use import MCPClient


class McpUse:
    def __init__(self, sessions: dict[str, Any]) -> None:
        self._sessions = sessions

    async def call(self, server: str, tool: str, arguments: dict[str, Any], timeout: float) -> str:
        return scenarios.sdk_text(await self._sessions[server].call_tool(tool, arguments, timedelta(seconds=timeout)))

    async def tools(self) -> list[str]:
        return [tool.name for session in self._sessions.values() for tool in await session.list_tools()]


@asynccontextmanager
async def opened(servers: dict[str, list[str]]) -> AsyncIterator[McpUse]:
    entries = {name: {"command": command, "args": args} for name, (command, *args) in servers.items()}
    client = MCPClient.from_dict({"mcpServers": entries})
    try:
        yield McpUse(await client.create_all_sessions())
    finally:
        await client.close_all_sessions()


if __name__ == "__main__":
    asyncio.run(scenarios.observe(opened))
