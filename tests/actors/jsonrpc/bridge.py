"""A stream with one of the SDK's own servers on its far side, in memory."""

from contextlib import asynccontextmanager

import anyio
import trio
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool, jsonrpc_message_adapter

from mcp_nursery.actors.outcomes import Loss


class Bridge:
    """Frames in and out of the SDK's memory streams."""

    pid = None
    unfinished = False

    def __init__(self):
        self.frames = []
        self.tools_called = []
        self.cancelled = []
        self.bus = InMemorySubscriptionBus()
        self._to_server, self._pumped = trio.open_memory_channel(1000)
        self._from_server, self._answers = trio.open_memory_channel(1000)

    def write_nowait(self, frames):
        for frame in frames:
            self.frames.append(frame)
            self._to_server.send_nowait(frame)
        return len(frames)

    async def taken(self):
        await trio.lowlevel.checkpoint()

    async def writable(self):
        await trio.sleep_forever()

    async def read(self):
        try:
            return [await self._answers.receive()]
        except trio.EndOfChannel:
            return []

    async def loss(self):
        await trio.lowlevel.checkpoint()
        return Loss("the bridge fell")

    def fall(self):
        self._from_server.close()

    async def pump_in(self, stream):
        async for frame in self._pumped:
            await stream.send(SessionMessage(jsonrpc_message_adapter.validate_json(frame)))

    async def pump_out(self, stream):
        async for item in stream:
            self._from_server.send_nowait(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())


ADD_OUTPUT = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
TOOLS = [
    Tool(name="add", input_schema={"type": "object"}, output_schema=ADD_OUTPUT),
    Tool(name="count", input_schema={"type": "object"}),
    Tool(name="hang", input_schema={"type": "object"}),
    Tool(name="roots", input_schema={"type": "object"}),
    Tool(name="refuse", input_schema={"type": "object"}),
]


def lab(bridge):
    """A low-level server whose tools are the test's instruments."""

    async def list_tools(_context, _params):
        return ListToolsResult(tools=TOOLS)

    async def call_tool(context, params):
        arguments = params.arguments or {}
        bridge.tools_called.append((params.name, params.arguments, dict(context.meta or {})))
        match params.name:
            case "add":
                total = sum(arguments["terms"])
                return CallToolResult(content=[], structured_content={"sum": total})
            case "count":
                for step in range(arguments["to"]):
                    await context.session.report_progress(step, arguments["to"], f"step {step}")
                return text("counted")
            case "hang":
                try:
                    await anyio.sleep_forever()
                finally:
                    bridge.cancelled.append(context.request_id)
            case "roots":
                return text(str(len((await context.session.list_roots()).roots)))
            case "refuse":
                raise MCPError(-32000, "not today", data={"when": "tomorrow"})

    return Server(
        "lab",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscriptions_listen=ListenHandler(bridge.bus),
    )


def text(words):
    return CallToolResult(content=[TextContent(type="text", text=words)])


@asynccontextmanager
async def bridged():
    """The bridge to a server that runs until the block is left."""
    bridge = Bridge()
    server = lab(bridge)
    async with (
        create_client_server_memory_streams() as ((read, write), (server_read, server_write)),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(server.run, server_read, server_write, server.create_initialization_options())
        nursery.start_soon(bridge.pump_in, write)
        nursery.start_soon(bridge.pump_out, read)
        yield bridge
        nursery.cancel_scope.cancel()
