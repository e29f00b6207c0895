"""A server of the SDK that gains a tool by a call of another, and announces nothing."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("growing")


def said(name: str):
    def say() -> str:
        return f"{name} said"

    return say


@server.tool()
def grow(name: str) -> str:
    """Gain a tool."""
    server.add_tool(said(name), name=name)
    return "grown"


server.run()
