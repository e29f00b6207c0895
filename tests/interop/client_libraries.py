"""Libraries for clients that others wrote, one session of each; run by a Python of its own.

Arguments: which, what it talks to as JSON (a URL, or a command), and whether the server is to announce what it learns.
Writes what it saw as JSON: a server like `nursery_learning` is killed and learns a tool meanwhile.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager

REST = 0.1
"""Seconds between two looks at what another process does."""


def parameters(target):
    return {"url": target} if isinstance(target, str) else {"command": target[0], "args": target[1:]}


@asynccontextmanager
async def sdk_1(target):
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    if isinstance(target, str):
        opened = streamable_http_client(target)
    else:
        opened = stdio_client(StdioServerParameters(**parameters(target)))
    async with opened as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        yield session


@asynccontextmanager
async def sdk_2(target, mode="auto"):
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    opened = target if isinstance(target, str) else stdio_client(StdioServerParameters(**parameters(target)))
    async with Client(opened, mode=mode) as client:
        yield client


@asynccontextmanager
async def fastmcp(target):
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport

    transport = target if isinstance(target, str) else StdioTransport(target[0], target[1:])
    async with Client(transport) as client:
        yield Plain(client.list_tools, lambda name, said: client.call_tool(name, said, raise_on_error=False))


@asynccontextmanager
async def openai_agents(target):
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp

    kind = MCPServerStreamableHttp if isinstance(target, str) else MCPServerStdio
    async with kind(params=parameters(target), client_session_timeout_seconds=30) as server:
        yield server


@asynccontextmanager
async def pydantic_ai(target):
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai.mcp import MCPToolset

    transport = target if isinstance(target, str) else StdioTransport(target[0], target[1:])
    # It keeps a list until it is told of a change, and over HTTP it opens no stream on which it could be.
    async with MCPToolset(transport, tool_error_behavior="error", cache_tools=False) as server:
        yield Plain(server.list_tools, server.direct_call_tool)


@asynccontextmanager
async def langchain(target):
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from langchain_mcp_adapters.tools import load_mcp_tools

    kind = "streamable_http" if isinstance(target, str) else "stdio"
    client = MultiServerMCPClient({"it": {"transport": kind, **parameters(target)}})
    async with client.session("it") as session:

        async def call(name, said):
            (tool,) = [tool for tool in await load_mcp_tools(session) if tool.name == name]
            return await tool.ainvoke(said)

        yield Plain(lambda: load_mcp_tools(session), call)


class Plain:
    """What they all can do."""

    def __init__(self, list_tools, call_tool):
        self.list_tools, self.call_tool = list_tools, call_tool


async def names(client):
    listed = await client.list_tools()
    return sorted(tool.name for tool in getattr(listed, "tools", listed))


def text_of(result):
    content = getattr(result, "content", result)
    first = content[0] if isinstance(content, list) else content
    return str(first["text"] if isinstance(first, dict) else getattr(first, "text", first))


async def main(library, target, announced):
    libraries = {each.__name__: each for each in (sdk_1, fastmcp, openai_agents, pydantic_ai, langchain)}
    libraries |= {"sdk_2_auto": sdk_2, "sdk_2_legacy": lambda target: sdk_2(target, "legacy")}
    async with libraries[library](target) as client:
        said = {"first": await names(client)}
        (pid,) = [name for name in said["first"] if name.endswith("pid")]
        prefix = pid.removesuffix("pid")
        before = text_of(await client.call_tool(pid, {}))
        os.kill(int(before), signal.SIGKILL)
        said["answers"] = []
        while not (after := await answer(client, pid)).isdigit() or after == before:
            said["answers"].append(after)
            await asyncio.sleep(REST)
        said["learned"] = text_of(await client.call_tool(f"{prefix}learn", {"announced": announced}))
        while f"{prefix}learned" not in (last := await names(client)):  # noqa: ASYNC110 - not every library is told
            await asyncio.sleep(REST)
        said["last"] = last
    sys.stdout.write(json.dumps(said))


async def answer(client, name):
    """What a tool says, or what a library that raises failures of tools says of it."""
    try:
        return text_of(await client.call_tool(name, {}))
    except Exception as problem:  # each has its own
        return f"{type(problem).__name__}: {problem}"


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "announced"))
