"""langchain-mcp-adapters: tools over sessions that stay open (a session a call, its default, would start a process)."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import worker
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools


def text_of(result: Any) -> str:
    return result if isinstance(result, str) else result[0]["text"]


async def main() -> None:
    job = worker.job()
    timeout = {} if job.timeout is None else {"read_timeout_seconds": timedelta(seconds=job.timeout)}
    connections: dict[str, Any] = {
        name: {"transport": "stdio", "command": command, "args": args, "session_kwargs": timeout}
        for name, (command, *args) in job.commands.items()
    }
    client = MultiServerMCPClient(connections)
    async with AsyncExitStack() as stack:
        tools = {}
        for name in connections:
            session = await stack.enter_async_context(client.session(name))
            tools |= {(name, tool.name): tool for tool in await load_mcp_tools(session)}

        async def call(server: str, tool: str, arguments: dict[str, Any]) -> Any:
            return await tools[server, tool].ainvoke(arguments)

        async def gather() -> list[Any]:
            return await asyncio.gather(*(call(*one) for one in job.plan))

        await worker.serve(job, call, gather, text_of)


if __name__ == "__main__":
    asyncio.run(main())
