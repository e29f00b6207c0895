"""mcp-use: one client, a session a server. Telemetry is off."""

import asyncio
import os
from datetime import timedelta
from typing import Any

os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"

import worker
from mcp_use import MCPClient


async def main() -> None:
    job = worker.job()
    timeout = None if job.timeout is None else timedelta(seconds=job.timeout)
    servers = {name: {"command": command, "args": args} for name, (command, *args) in job.commands.items()}
    client = MCPClient({"mcpServers": servers})
    sessions = await client.create_all_sessions()

    async def call(server: str, tool: str, arguments: dict[str, Any]) -> Any:
        return await sessions[server].call_tool(tool, arguments, timeout)

    async def gather() -> list[Any]:
        return await asyncio.gather(*(call(*one) for one in job.plan))

    await worker.serve(job, call, gather, lambda result: result.content[0].text)
    await client.close_all_sessions()


if __name__ == "__main__":
    asyncio.run(main())
