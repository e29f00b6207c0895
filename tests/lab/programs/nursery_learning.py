"""A server that learns a tool while it runs, and tells clients of it or does not; on the 1.x line of the SDK."""

import os

from mcp.server.fastmcp import Context, FastMCP

server = FastMCP("learning")


@server.tool()
def pid() -> str:
    """Which process answers."""
    return str(os.getpid())


@server.tool()
async def learn(announced: bool, ctx: Context) -> str:
    """Have one tool more."""
    server.add_tool(lambda: "it", name="learned", description="What was learned.")
    if announced:
        await ctx.session.send_tool_list_changed()
    return "learned"


if __name__ == "__main__":
    server.run()
