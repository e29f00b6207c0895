"""FastMCP: its multi-server client, or its `ClientGroup`, as the second argument says: `multi` or `group`."""

import asyncio
import sys
from typing import Any

import worker
from fastmcp import Client
from fastmcp.client.group import ClientGroup
from fastmcp.client.transports import FastMCPTransport
from fastmcp.mcp_config import MCPConfig, StdioMCPServer


class LocalServer(StdioMCPServer):
    """An entry of a configuration whose server is in this process."""

    command: str = ""

    def to_transport(self) -> Any:
        from sdk_server import make_server

        return FastMCPTransport(make_server())


def servers(job: worker.Job) -> dict[str, Any]:
    made: dict[str, Any] = {
        name: StdioMCPServer(command=command, args=args) for name, (command, *args) in job.commands.items()
    }
    return made | {name: LocalServer() for name in job.in_process}


def client(kind: str, job: worker.Job) -> Any:
    config = MCPConfig(mcpServers=servers(job))
    if kind == "group":
        return ClientGroup.from_config(config)
    return Client(config)


async def main(kind: str) -> None:
    job = worker.job()
    prefixed = kind == "group" or len(job.commands) + len(job.in_process) > 1
    async with client(kind, job) as connected:

        async def call(server: str, tool: str, arguments: dict[str, Any]) -> Any:
            name = f"{server}_{tool}" if prefixed else tool
            return await connected.call_tool(name, arguments, timeout=job.timeout)

        async def gather() -> list[Any]:
            return await asyncio.gather(*(call(*one) for one in job.plan))

        await worker.serve(job, call, gather, lambda result: result.content[0].text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[2]))
