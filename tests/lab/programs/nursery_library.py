"""A server of the SDK with resources, templates, prompts and completion, over any transport.

    python nursery_library.py stdio|http|sse|ws

Where it listens it writes the port as its first line. `note://file` is the file that NOTE in the environment names.
"""

import json
import os
import socket
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.message import SessionMessage
from mcp_types import Completion, jsonrpc_message_adapter

TRANSPORT = sys.argv[1]
server = MCPServer("library", version="1")


@server.resource("note://today")
def today() -> str:
    return "Buy milk."


@server.resource("note://file")
def file() -> str:
    return Path(os.environ["NOTE"]).read_text()


@server.tool()
async def write(text: str, context: Context) -> str:
    await anyio.Path(os.environ["NOTE"]).write_text(text)
    await context.notify_resource_updated("note://file")
    return "written"


@server.resource("note://picture", mime_type="image/png")
def picture() -> bytes:
    return b"\x89PNG"


@server.resource("note://day/{day}")
def day(day: str) -> str:
    return f"Nothing on {day}."


@server.prompt()
def summarise(topic: str) -> str:
    return f"Summarise {topic}."


@server.completion()
async def complete(ref, argument, context):
    return Completion(values=[word for word in ("milk", "mice", "bread") if word.startswith(argument.value)])


async def websocket(scope, receive, send):
    """A server on one WebSocket: what the SDK's 2.x line has no transport for."""
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept", "subprotocol": "mcp"})
    to_server, read = anyio.create_memory_object_stream(100)
    write, from_server = anyio.create_memory_object_stream(100)
    low = server.session_manager.app

    async def answers():
        async for message in from_server:
            text = message.message.model_dump_json(by_alias=True, exclude_none=True)
            await send({"type": "websocket.send", "text": text})

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answers)
        tasks.start_soon(low.run, read, write, low.create_initialization_options())
        while (event := await receive())["type"] == "websocket.receive":
            text = event.get("text") or event["bytes"].decode()
            await to_server.send(SessionMessage(jsonrpc_message_adapter.validate_python(json.loads(text))))
        tasks.cancel_scope.cancel()


def main():
    if TRANSPORT == "stdio":
        server.run("stdio")
        return
    import uvicorn

    app = server.sse_app() if TRANSPORT == "sse" else server.streamable_http_app()
    if TRANSPORT == "ws":

        async def app(scope, receive, send, whole=app):
            await (websocket if scope["type"] == "websocket" else whole)(scope, receive, send)

    listener = socket.create_server(("127.0.0.1", 0))
    os.write(1, b"%d\n" % listener.getsockname()[1])
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
