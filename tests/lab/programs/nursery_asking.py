"""A server of the MCP SDK whose tools ask the host. `era=old` as the first argument: one of before 2026-07-28."""

import json
import os
import sys
import threading
import warnings
from typing import Annotated

from mcp.server.mcpserver import (
    AcceptedElicitation,
    Context,
    Elicit,
    ElicitationResult,
    ListRoots,
    MCPServer,
    Resolve,
    Sample,
)
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPDeprecationWarning, UrlElicitationRequiredError
from mcp_types import CreateMessageResult, ElicitRequestURLParams, ListRootsResult, SamplingMessage, TextContent
from pydantic import BaseModel

warnings.simplefilter("ignore", MCPDeprecationWarning)


class Name(BaseModel):
    name: str


class Age(BaseModel):
    age: int


async def ask_name() -> Elicit[Name]:
    return Elicit("What is your name?", Name)


async def ask_age(name: Annotated[ElicitationResult[Name], Resolve(ask_name)]) -> Elicit[Age]:
    known = name.data.name if isinstance(name, AcceptedElicitation) else "you"
    return Elicit(f"How old is {known}?", Age)


async def ask_model(topic: str) -> Sample:
    return Sample([SamplingMessage(role="user", content=TextContent(type="text", text=topic))], max_tokens=5)


server = MCPServer("asking")
visited = []


@server.tool()
async def greet(
    name: Annotated[ElicitationResult[Name], Resolve(ask_name)],
    age: Annotated[ElicitationResult[Age], Resolve(ask_age)],
) -> str:
    if not isinstance(name, AcceptedElicitation) or not isinstance(age, AcceptedElicitation):
        return "hello, whoever you are"
    return f"hello {name.data.name}, {age.data.age}"


async def ask_roots() -> ListRoots:
    return ListRoots()


@server.tool()
async def where(roots: Annotated[ListRootsResult, Resolve(ask_roots)]) -> list[str]:
    return [str(root.uri) for root in roots.roots]


@server.tool()
async def think(topic: str, thought: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    return f"{topic}: {thought.content.text} says {thought.model}"


@server.tool()
async def enter(ctx: Context) -> str:
    """Only for those who have visited the page."""
    visited.append(True)
    if len(visited) == 1:
        page = ElicitRequestURLParams(message="log in", url="https://login.example", elicitation_id="1")
        raise UrlElicitationRequiredError([page])
    return "welcome"


@server.tool()
async def insist(ctx: Context) -> str:
    """Asks by a request, as there is none on connections of 2026-07-28."""
    said = await ctx.elicit("What is your name?", Name)
    return f"hello {said.data.name}" if isinstance(said, AcceptedElicitation) else "hello"


@server.tool()
async def give_up(ctx: Context) -> str:
    """As servers on FastMCP 4 say it: in a result."""
    raise ToolError("elicitation via server-initiated requests is unavailable on 2026-07-28 connections.")


@server.tool()
async def talk(lines: int, ctx: Context) -> str:
    for number in range(lines):
        await ctx.log("info", f"line {number}")
        await ctx.log("debug", "noise")
    return "talked"


def refuse_discovery() -> None:
    """Answer `server/discover` as servers do that have never heard of it; everything else goes on to the SDK."""
    stdin = os.fdopen(os.dup(0), "rb")
    read, write = os.pipe()
    os.dup2(read, 0)
    os.close(read)

    def pump() -> None:
        with os.fdopen(write, "wb", buffering=0) as onward:
            for line in stdin:
                message = json.loads(line)
                if message.get("method") == "server/discover":
                    refusal = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}}
                    os.write(1, json.dumps(refusal).encode() + b"\n")
                else:
                    onward.write(line)

    threading.Thread(target=pump, daemon=True).start()


if __name__ == "__main__":
    if "era=old" in sys.argv[1:]:
        refuse_discovery()
    server.run()
