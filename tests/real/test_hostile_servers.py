"""A hostile server on the paths that the SDK drives: over HTTP, and as an object of this process."""

import pytest
import trio
from mcp.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

from mcp_nursery.supervisor import HttpTransport, InProcessTransport, SseTransport

from ..lab.hostile_http import HostileHttp
from ..lab.hostile_plans import WORST_PLANS
from ..property.test_hostile_servers import CALLBACKS, Host, errors

pytestmark = pytest.mark.slow

__all__ = ["errors"]

KINDS = {
    "document": ("mcp", HttpTransport, False),
    "stream": ("mcp", HttpTransport, True),
    "sse": ("sse", SseTransport, True),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", WORST_PLANS.values(), ids=WORST_PLANS)
async def test_over_http(plan, kind, errors):
    """Q4, Q20: whatever a body says, it is this server's end at worst."""
    path, transport, streams = KINDS[kind]
    async with trio.open_nursery() as nursery:
        port = await nursery.start(HostileHttp(plan, streams=streams).serve)
        far = transport(f"http://127.0.0.1:{port}/{path}")
        await Host(far, patience=0.3, connect=1.5, callbacks=CALLBACKS).run()
        nursery.cancel_scope.cancel()
    assert not errors.crashes


def deep(levels):
    value = {}
    for _ in range(levels):
        value = {"a": value}
    return value


TOOLS = {
    "a name that has no JSON form": Tool(name="\ud800", input_schema={"type": "object"}),
    "a deep schema": Tool(name="echo", input_schema={"type": "object", "a": deep(900)}),
    "half a character": Tool(name="echo", description="\ud800", input_schema={"\ud800": "\udfff"}),
    "ordinary": Tool(name="echo", input_schema={"type": "object"}),
}
RESULTS = {
    "deep": CallToolResult(content=[], structured_content=deep(900)),
    "half a character": CallToolResult(content=[TextContent(text="\ud800")], structured_content={"\ud800": "\udfff"}),
    "no number": CallToolResult(content=[], structured_content={"a": float("nan"), "b": 10**5000}),
    "a deep error": MCPError(1, "m" * 10**6, deep(3000)),
    "an error of half a character": MCPError(10**30, "\ud800", "\udfff"),
    "a bug": RecursionError("no"),
}


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
async def test_an_object_of_this_process(tool, result, errors):
    """Q4: it never was JSON, so nothing has refused it yet."""

    async def on_list_tools(_context, _params):
        return ListToolsResult(tools=[tool, Tool(name="typed", input_schema={"type": "object"})])

    async def on_call_tool(_context, _params):
        if isinstance(result, Exception):
            raise result
        return result

    server = Server("hostile", on_list_tools=on_list_tools, on_call_tool=on_call_tool)
    await Host(InProcessTransport(server), patience=0.5, callbacks=CALLBACKS).run()
    assert not errors.crashes
