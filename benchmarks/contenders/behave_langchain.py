"""langchain-mcp-adapters in the scenarios of `behaviours.py`: a session a call, its default, or sessions that stay.

Arguments: `call` or `session`.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import scenarios
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools

KIND = sys.argv[2]


class Adapters:
    """Tools by server. The timeout of a call was given with the connection."""

    def __init__(self, tools: dict[str, list[Any]]) -> None:
        self._tools = tools

    async def call(self, server: str, tool: str, arguments: dict[str, Any], timeout: float) -> str:  # noqa: ARG002
        (found,) = (each for each in self._tools[server] if each.name == tool)
        result = await found.ainvoke(arguments)
        return result if isinstance(result, str) else result[0]["text"]

    async def tools(self) -> list[str]:
        return [each.name for tools in self._tools.values() for each in tools]


@asynccontextmanager
async def opened(servers: dict[str, list[str]]) -> AsyncIterator[Adapters]:
    options = {"read_timeout_seconds": scenarios.read_timeout()}
    client = MultiServerMCPClient(
        {
            name: {"transport": "stdio", "command": command, "args": args, "session_kwargs": options}
            for name, (command, *args) in servers.items()
        }
    )
    if KIND == "session":
        async with scenarios.all_of([client.session(name) for name in servers]) as sessions:
            yield Adapters(
                {name: await load_mcp_tools(session) for name, session in zip(servers, sessions, strict=True)}
            )
    elif len(servers) == 3:
        yield Adapters({"": await client.get_tools()})
    else:
        yield Adapters({name: await client.get_tools(server_name=name) for name in servers})


if __name__ == "__main__":
    asyncio.run(scenarios.observe(opened))
