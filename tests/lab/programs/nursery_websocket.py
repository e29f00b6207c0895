"""A server behind a WebSocket as the MCP SDK's 1.x line has it; run by a Python of its own.

Writes the port it listens on as its first line. Its one argument is the port; 0 takes any.
"""

import os
import socket
import sys

import uvicorn
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.websocket import websocket_server

server = Server("first line", version="1")


@server.list_tools()
async def list_tools():
    numbers = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    return [types.Tool(name="add", description="Add two numbers.", inputSchema=numbers)]


@server.call_tool()
async def call_tool(name, arguments):
    context = server.request_context
    if context.meta is not None and context.meta.progressToken is not None:
        for step in range(3):
            await context.session.send_progress_notification(context.meta.progressToken, step, 3)
    return [types.TextContent(type="text", text=str(arguments["a"] + arguments["b"]))]


async def app(scope, receive, send):
    async with websocket_server(scope, receive, send) as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    os.write(1, b"%d\n" % listener.getsockname()[1])
    uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error")).run(sockets=[listener])
