"""mcp-nursery in the scenarios of `behaviours.py`: one supervisor on Trio, all defaults."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp  # noqa: F401 - imports are another subject, and ours would come late
import scenarios
import trio

from mcp_nursery.supervisor import ServerSpec, StdioTransport, Supervisor, open_supervisor


class Nursery:
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def call(self, server: str, tool: str, arguments: dict[str, Any], timeout: float) -> str:
        result = await self._supervisor.call_tool(tool, arguments, server=server, timeout=timeout)
        return result.full_text

    async def tools(self) -> list[str]:
        return [tool.name for tool in self._supervisor.tools]


@asynccontextmanager
async def opened(servers: dict[str, list[str]]) -> AsyncIterator[Nursery]:
    specs = [ServerSpec(name, StdioTransport(command, args)) for name, (command, *args) in servers.items()]
    async with open_supervisor(specs) as supervisor:
        yield Nursery(supervisor)


if __name__ == "__main__":
    trio.run(scenarios.observe, opened)
