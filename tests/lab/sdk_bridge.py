"""A stream with one of the SDK's own servers on its far side, in memory."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import trio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.dispatcher import OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool, jsonrpc_message_adapter

from mcp_nursery.actors.jsonrpc.endpoint import Endpoint
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.session.sdk import SessionDispatcher


class Bridge:
    """Frames in and out of the SDK's memory streams."""

    pid = None
    unfinished = False

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.tools_called: list[tuple[str, dict[str, Any] | None, dict[str, Any]]] = []
        self.cancelled: list[object] = []
        self.bus = InMemorySubscriptionBus()
        self._to_server, self._pumped = trio.open_memory_channel[bytes](1000)
        self._from_server, self._answers = trio.open_memory_channel[bytes](1000)

    def write_nowait(self, frames: Sequence[bytes]) -> int:
        for frame in frames:
            self.frames.append(frame)
            self._to_server.send_nowait(frame)
        return len(frames)

    async def taken(self) -> None:
        await trio.lowlevel.checkpoint()

    async def writable(self) -> None:
        await trio.sleep_forever()

    async def read(self) -> list[bytes]:
        try:
            return [await self._answers.receive()]
        except trio.EndOfChannel:
            return []

    async def loss(self) -> Loss:
        await trio.lowlevel.checkpoint()
        return Loss("the bridge fell")

    def fall(self) -> None:
        self._from_server.close()

    async def pump_in(self, stream: Any) -> None:
        async for frame in self._pumped:
            await stream.send(SessionMessage(jsonrpc_message_adapter.validate_json(frame)))

    async def pump_out(self, stream: Any) -> None:
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


def lab(bridge: Bridge) -> Server[Any]:
    """A low-level server whose tools are the test's instruments."""

    async def list_tools(_context: object, _params: object) -> ListToolsResult:
        return ListToolsResult(tools=TOOLS)

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
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
                    raise AssertionError
                finally:
                    bridge.cancelled.append(context.request_id)
            case "roots":
                return text(str(len((await context.session.list_roots()).roots)))
            case _:
                raise MCPError(-32000, "not today", data={"when": "tomorrow"})

    return Server(
        "lab",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscriptions_listen=ListenHandler(bridge.bus),
    )


def text(words: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=words)])


class EndpointDispatcher(SessionDispatcher):
    """A dispatcher of the SDK that runs the endpoint as well, which `ServerSession` does in the product."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._endpoint = endpoint

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(super().run, on_request, on_notify, on_notify_intercept)
            await self._endpoint.run(self.asked, self.told, self.intercept, task_status=task_status)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def bridged() -> AsyncGenerator[Bridge, None]:
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
