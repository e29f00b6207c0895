"""A server as the MCP SDK's 1.x line has it; run by a Python of its own."""

from mcp.server.fastmcp import FastMCP

server = FastMCP("first line", instructions="Add numbers.")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    server.run()
