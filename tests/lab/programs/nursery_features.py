"""A server with some of everything, as FastMCP and the 1.x line of the MCP SDK have it; run by a Python of its own.

On standard streams, or over HTTP on the port that is its argument.
"""

import sys

from mcp.types import SamplingMessage, TextContent
from pydantic import BaseModel

try:
    from fastmcp import Context, FastMCP

    FASTMCP = True
except ImportError:
    from mcp.server.fastmcp import Context, FastMCP

    FASTMCP = False

PORT = int(sys.argv[1]) if sys.argv[1:] else None

server = FastMCP("features") if FASTMCP or PORT is None else FastMCP("features", port=PORT)


class Name(BaseModel):
    name: str


class Weather(BaseModel):
    degrees: float


@server.tool()
def weather(city: str) -> Weather:
    """What it is like there."""
    return Weather(degrees=len(city))


@server.tool()
def fail() -> str:
    """Never works."""
    raise ValueError("not today")


@server.tool()
async def count(to: int, ctx: Context) -> str:
    """Reports each step, and says so in the log."""
    for step in range(1, to + 1):
        await ctx.report_progress(step, to)
        await ctx.info(f"step {step}")
    return f"counted to {to}"


@server.tool()
async def greet(ctx: Context) -> str:
    """Asks for a name first."""
    said = await ctx.elicit("What is your name?", Name)
    return f"hello {said.data.name}" if said.action == "accept" else "hello"


@server.tool()
async def think(topic: str, ctx: Context) -> str:
    """Asks the host's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text=topic))
    thought = await ctx.session.create_message([message], max_tokens=5)
    return f"{thought.model}: {thought.content.text}"


@server.tool()
async def where(ctx: Context) -> str:
    """Asks the host for its folders."""
    return " ".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)


@server.resource("note://today")
def today() -> str:
    """A note."""
    return "Buy milk."


@server.resource("note://day/{day}")
def day(day: str) -> str:
    """The note of a day."""
    return f"Nothing on {day}."


@server.prompt()
def summarise(topic: str) -> str:
    """Asks for a summary."""
    return f"Summarise what you know of {topic}."


if __name__ == "__main__":
    if PORT is None:
        server.run()
    elif FASTMCP:
        server.run(transport="http", port=PORT)
    else:
        server.run(transport="streamable-http")
