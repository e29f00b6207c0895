"""A server as users write one with the MCP SDK: over stdio, or handed out for use in this process."""

from mcp.server.mcpserver import MCPServer


def make_server() -> MCPServer:
    server = MCPServer("echo")

    @server.tool()
    async def echo(text: str) -> str:  # a plain function would run in a thread
        """Say it again."""
        return text

    return server


if __name__ == "__main__":
    make_server().run()
