"""The SDK's own server behind a WebSocket, in both eras: what works on the other wires works on this one."""

import pytest
import trio
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from trio_websocket import ConnectionClosed

from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.outcomes import Answered, Rejected
from mcp_nursery.actors.reply import ReplySlot

from ...lab.sdk_bridge import Bridge, lab
from ...lab.tool_requests import tool_request
from ...lab.websocket_peer import connector, serving
from ...lab.wire_peer import no_progress


def served(told):
    """Serves the SDK's server, one for every connection; `told` gets its instruments."""

    async def handle(request):
        connection = await request.accept(subprotocol="mcp")
        bridge = Bridge()
        told.append(bridge)
        server = lab(bridge)
        async with (
            create_client_server_memory_streams() as ((read, write), (server_read, server_write)),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(server.run, server_read, server_write, server.create_initialization_options())
            nursery.start_soon(speak, connection, read)
            try:
                while True:
                    text = await connection.get_message()
                    await write.send(SessionMessage(jsonrpc_message_adapter.validate_json(text)))
            except ConnectionClosed:
                nursery.cancel_scope.cancel()

    async def speak(connection, stream):
        async for item in stream:
            await connection.send_message(item.message.model_dump_json(by_alias=True, exclude_unset=True))

    return handle


def call(tool, arguments=b"{}", *, wants_progress=False):
    slot = ReplySlot(wants_progress=wants_progress)
    return tool_request(server="lab", tool=tool, arguments=arguments, meta={}, slot=slot)


@pytest.mark.parametrize(
    ("remembered", "era", "version"),
    [
        (None, Era.MODERN, "2026-07-28"),
        (Era.MODERN, Era.MODERN, "2026-07-28"),
        (Era.HANDSHAKE, Era.HANDSHAKE, "2025-11-25"),
    ],
)
async def test_both_eras(remembered, era, version):
    """P7, R5, R6: lists, results, errors, progress in order and cancels."""
    told, reports = [], []

    async def on_progress(progress, total, message):
        reports.append((progress, message))

    with trio.fail_after(20):
        async with serving(served(told)) as url, connector(url).connect() as connection:
            handshake = await connection.handshake(remembered)
            assert (handshake.era, handshake.protocol_version) == (era, version)
            assert {"add", "count", "hang", "refuse"} <= {tool.name for tool in await connection.list_tools()}

            add, refuse, hang = call("add", b'{"terms":[1,2,39]}'), call("refuse"), call("hang")
            count = call("count", b'{"to":100}', wants_progress=True)
            connection.submit([add, refuse, count, hang])
            answered = await add.slot.wait(no_progress)
            assert isinstance(answered, Answered)
            assert answered.result["structuredContent"] == {"sum": 42}
            refused = await refuse.slot.wait(no_progress)
            assert isinstance(refused, Rejected)
            assert refused.code == -32000
            assert isinstance(await count.slot.wait(on_progress), Answered)
            assert reports == [(step, f"step {step}") for step in range(100)]

            connection.cancel(hang.slot)
            again = call("add", b'{"terms":[1]}')
            connection.submit([again])
            await again.slot.wait(no_progress)
            assert told[0].cancelled == [hang.slot.request_id]
            assert connection.in_flight == 0
