"""An `MCPServer` of the SDK on standard streams, with a tap on what it reads: `tapped_server.py LOG`."""

import os
import sys
import threading

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import EmbeddedResource, ResourceLink, TextContent, TextResourceContents
from pydantic import BaseModel

server = MCPServer("tapped", instructions="Listen.")
cancelled = []


class Sum(BaseModel):
    sum: int


@server.tool()
def mark() -> str:
    return "marked"


@server.tool()
def add(a: int, b: int) -> Sum:
    return Sum(sum=a + b)


@server.tool()
def picture() -> Image:
    return Image(data=b"\x89PNG", format="png")


@server.tool(structured_output=False)
def everything() -> list[object]:
    return [
        TextContent(type="text", text="naïve 🎺"),
        ResourceLink(type="resource_link", uri="file:///a", name="a"),
        EmbeddedResource(type="resource", resource=TextResourceContents(uri="file:///a", text="t")),
    ]


@server.tool()
def fails() -> str:
    raise ValueError("it failed")


@server.tool()
def refuses(data: dict[str, object]) -> str:
    raise MCPError(-32000, "not today", data=data)


@server.tool()
async def counts(to: int, ctx: Context) -> str:
    for step in range(to):
        await ctx.report_progress(step, to, f"step {step}")
    return "counted"


@server.tool()
async def logs(ctx: Context) -> str:
    await ctx.info("one")
    return "logged"


@server.tool()
def echoes_meta(ctx: Context) -> dict[str, object]:
    return dict(sorted((ctx.request_context.meta or {}).items()))


@server.tool()
async def hangs(ctx: Context) -> str:
    await ctx.report_progress(0)
    try:
        await anyio.sleep_forever()
    finally:
        cancelled.append(1)
    return "never"


@server.tool()
async def heard_of_cancels(count: int) -> int:
    while len(cancelled) < count:  # noqa: ASYNC110 - an event made here would belong to no loop
        await anyio.sleep(0.01)
    return count


def tap(source: int, target: int, log: str) -> None:
    with open(log, "wb") as written, open(source, "rb") as lines, open(target, "wb", 0) as pipe:
        for line in lines:
            written.write(line)
            written.flush()
            pipe.write(line)
        os._exit(0)  # the client is gone, and nothing is left to be done for it


if __name__ == "__main__":
    source, (reads, writes) = os.dup(0), os.pipe()
    os.dup2(reads, 0)
    threading.Thread(target=tap, args=(source, writes, sys.argv[1]), daemon=True).start()
    server.run("stdio")
