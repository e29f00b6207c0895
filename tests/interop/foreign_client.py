"""A client that others wrote, on asyncio, in front of a server like `nursery_features`; run by a Python of its own.

Arguments: what it talks to, as JSON: a URL, or a command. Writes what it got as JSON.
"""

import asyncio
import json
import sys
from contextlib import asynccontextmanager


@asynccontextmanager
async def fastmcp_client(target, heard):
    """FastMCP's own client."""
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport

    async def name(message, response_type, params, context):
        heard["asked"].append(message)
        return {"name": "Ada"}

    async def log(message):
        heard["logged"].append(str(message.data))

    async def progress(done, total, message):
        heard["progress"].append(done)

    async def call(tool, arguments):
        return await client.call_tool(tool, arguments, progress_handler=progress, raise_on_error=False)

    transport = target if isinstance(target, str) else StdioTransport(target[0], target[1:])
    async with Client(transport, elicitation_handler=name, log_handler=log) as client:
        tools = await client.list_tools()
        note, prompt = (
            await client.read_resource("note://today"),
            await client.get_prompt("summarise", {"topic": "tea"}),
        )
        yield [tool.name for tool in tools], call, note, prompt.messages


def sdk_callbacks(heard, answer):
    """What a client of either line of the SDK is made with, and what is told of progress."""

    async def name(context, params):
        heard["asked"].append(params.message)
        return answer(action="accept", content={"name": "Ada"})

    async def log(params):
        heard["logged"].append(str(params.data))

    async def progress(done, total, message):
        heard["progress"].append(done)

    return {"elicitation_callback": name, "logging_callback": log}, progress


@asynccontextmanager
async def session_client(target, heard):
    """The first line of the SDK."""
    from mcp import ClientSession, StdioServerParameters, types
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    callbacks, progress = sdk_callbacks(heard, types.ElicitResult)

    async def call(tool, arguments):
        return await session.call_tool(tool, arguments, progress_callback=progress)

    if isinstance(target, str):
        opened = streamable_http_client(target)
    else:
        opened = stdio_client(StdioServerParameters(command=target[0], args=target[1:]))
    async with opened as (read, write, *_), ClientSession(read, write, **callbacks) as session:
        await session.initialize()
        tools, note = (await session.list_tools()).tools, (await session.read_resource("note://today")).contents
        prompt = await session.get_prompt("summarise", {"topic": "tea"})
        yield [tool.name for tool in tools], call, note, prompt.messages


@asynccontextmanager
async def sdk_client(target, heard):
    """The second line of the SDK."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp_types import ElicitResult

    callbacks, progress = sdk_callbacks(heard, ElicitResult)

    async def call(tool, arguments):
        return await client.call_tool(tool, arguments, progress_callback=progress)

    server = (
        target if isinstance(target, str) else stdio_client(StdioServerParameters(command=target[0], args=target[1:]))
    )
    async with Client(server, **callbacks) as client:
        tools, note = (await client.list_tools()).tools, (await client.read_resource("note://today")).contents
        prompt = await client.get_prompt("summarise", {"topic": "tea"})
        yield [tool.name for tool in tools], call, note, prompt.messages


def the_client():
    """Of whatever is installed here."""
    try:
        import fastmcp  # noqa: F401
    except ImportError:
        try:
            from mcp import Client  # noqa: F401
        except ImportError:
            return session_client
        return sdk_client
    return fastmcp_client


async def main(target):
    heard = {"asked": [], "logged": [], "progress": []}
    async with the_client()(target, heard) as (tools, call, note, messages):
        said = {}
        for tool, arguments in (("weather", {"city": "Oslo"}), ("count", {"to": 3}), ("greet", {}), ("fail", {})):
            result = await call(tool, arguments)
            said[tool] = result.content[0].text
            flags = result.model_dump(by_alias=True) if hasattr(result, "model_dump") else vars(result)
            said[f"{tool} failed"] = bool(flags.get("isError", flags.get("is_error")))
        said |= {"tools": sorted(tools), "note": note[0].text, "prompt": messages[0].content.text}
    sys.stdout.write(json.dumps(said | heard))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
