"""What this library relies on in the SDK: its `Dispatcher` seam, and a session over the endpoint in both eras.

A failure here after an update of `mcp` says that the seam has moved.
"""

import inspect
import json
import warnings

import pytest
import trio
from mcp.client import ClientSession
from mcp.client.subscriptions import ToolsListChanged, listen
from mcp.shared.dispatcher import CallOptions, DispatchContext, Dispatcher, Outbound, as_request_id, coerce_request_id
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import Implementation, ListRootsResult, Root, ToolListChangedNotification
from pydantic import BaseModel
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.jsonrpc.endpoint import Endpoint
from mcp_nursery.actors.jsonrpc.incoming import Inbound
from mcp_nursery.actors.jsonrpc.stream_carrier import StreamCarrier
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.actors.session.sdk import SessionContext, SessionDispatcher

from ...lab.sdk_bridge import TOOLS, EndpointDispatcher, bridged
from ...lab.wire_peer import Peer

ERAS = ["2025-11-25", "2026-07-28"]
CLIENT = Implementation(name="contract", version="1")


# the seam


@pytest.mark.parametrize(
    ("ours", "theirs", "method"),
    [
        (SessionDispatcher, Dispatcher, "run"),
        (SessionDispatcher, Dispatcher, "send_raw_request"),
        (SessionDispatcher, Dispatcher, "notify"),
        (SessionContext, DispatchContext, "send_raw_request"),
        (SessionContext, DispatchContext, "notify"),
        (SessionContext, DispatchContext, "progress"),
    ],
)
def test_our_methods_take_what_the_sdks_protocol_gives(ours, theirs, method):
    wanted = inspect.signature(getattr(theirs, method)).parameters
    given = inspect.signature(getattr(ours, method)).parameters
    assert {name: parameter.kind for name, parameter in given.items()} == {
        name: parameter.kind for name, parameter in wanted.items()
    }


def test_an_inbound_message_has_all_that_the_sdks_context_has():
    wanted = {name for name in vars(DispatchContext) if not name.startswith("_")}
    message = SessionContext(Inbound(Endpoint(StreamCarrier(Peer())), 1, None))
    assert wanted <= set(dir(message))
    assert {"transport", "can_send_request", "request_id", "message_metadata", "cancel_requested", "progress"} <= wanted


def test_the_protocols_that_can_be_asked_at_run_time_know_us():
    assert isinstance(SessionDispatcher(Endpoint(StreamCarrier(Peer()))), Outbound)
    assert isinstance(SessionContext(Inbound(Endpoint(StreamCarrier(Peer())), 1, None)), Outbound)


def test_the_options_we_read_are_options_of_the_sdk():
    assert {"request_id", "timeout", "cancel_on_abandon", "on_progress"} <= set(CallOptions.__annotations__)


def test_the_sdks_rules_for_ids():
    assert [as_request_id(value) for value in (1, "a", "", True, None, 1.0, [1])] == [
        1,
        "a",
        "",
        None,
        None,
        None,
        None,
    ]
    assert [coerce_request_id(value) for value in (7, "7", "x", "listen-1")] == [7, 7, "x", "listen-1"]


# a session over the endpoint, against the SDK's own server


class Lab:
    """A session over our endpoint, and the bridge under it."""

    def __init__(self, era, bridge, **callbacks):
        self.era = era
        self.bridge = bridge
        self.endpoint = Endpoint(StreamCarrier(bridge))
        self.session = ClientSession(dispatcher=EndpointDispatcher(self.endpoint), client_info=CLIENT, **callbacks)

    async def open(self):
        if self.era == "2026-07-28":
            await self.session.discover()
        else:
            await self.session.initialize()
        assert self.session.protocol_version == self.era
        assert self.session.server_info.name == "lab"


@pytest.fixture(params=ERAS)
def era(request):
    return request.param


async def test_a_session_lists_calls_and_pings(era):
    async with bridged() as bridge:
        lab = Lab(era, bridge)
        async with lab.session as session:
            await lab.open()
            assert [tool.name for tool in (await session.list_tools()).tools] == [tool.name for tool in TOOLS]
            result = await session.call_tool("add", {"terms": [1, 2, 3]})
            assert result.structured_content == {"sum": 6}
            if era == "2025-11-25":
                await session.send_ping()
    assert [name for name, *_ in bridge.tools_called] == ["add"]


async def test_many_callers_at_once_each_get_their_own_answer(era):
    sums = {}

    async def add(session, number):
        sums[number] = (await session.call_tool("add", {"terms": [number, 1000]})).structured_content["sum"]

    async with bridged() as bridge:
        lab = Lab(era, bridge)
        async with lab.session as session:
            await lab.open()
            await session.list_tools()
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(add, session, number)
    assert sums == {number: number + 1000 for number in range(50)}


async def test_progress_comes_in_order_and_before_the_result(era):
    steps = []

    async def on_progress(*step):
        steps.append(step)

    async with bridged() as bridge:
        lab = Lab(era, bridge)
        async with lab.session as session:
            await lab.open()
            await session.list_tools()
            result = await session.call_tool("count", {"to": 50}, progress_callback=on_progress)
            assert result.content[0].text == "counted"
            assert steps == [(float(n), 50.0, f"step {n}") for n in range(50)]


async def test_an_error_keeps_its_data(era):
    async with bridged() as bridge:
        lab = Lab(era, bridge)
        async with lab.session as session:
            await lab.open()
            await session.list_tools()
            with pytest.raises(MCPError) as caught:
                await session.call_tool("refuse")
    assert (caught.value.code, caught.value.message, caught.value.error.data) == (
        -32000,
        "not today",
        {"when": "tomorrow"},
    )


async def test_cancelling_a_call_ends_it_at_the_server(era):
    async def hang(session, scope):
        with scope:
            await session.call_tool("hang")

    async with bridged() as bridge:
        lab = Lab(era, bridge)
        async with lab.session as session, trio.open_nursery() as nursery:
            await lab.open()
            await session.list_tools()
            scope = trio.CancelScope()
            nursery.start_soon(hang, session, scope)
            await wait_all_tasks_blocked()
            scope.cancel()
            await wait_all_tasks_blocked()
            (asked,) = (json.loads(f)["id"] for f in bridge.frames if json.loads(f)["method"] == "tools/call")
            assert bridge.cancelled == [asked]
            assert (await session.call_tool("add", {"terms": [1]})).structured_content == {"sum": 1}


async def test_the_session_may_be_used_from_any_task_while_one_owns_it(era):
    async with bridged() as bridge:
        lab = Lab(era, bridge)
        async with trio.open_nursery() as outer, lab.session as session:
            await lab.open()
            outer.start_soon(session.list_tools)
            await wait_all_tasks_blocked()


async def test_the_end_of_the_stream_leaves_the_body_of_the_session_alone(era):
    async with bridged() as bridge:
        lab = Lab(era, bridge)
        async with lab.session as session:
            await lab.open()
            bridge.fall()
            await lab.endpoint.lost.wait()
            await trio.lowlevel.checkpoint()  # not cancelled
            with pytest.raises(MCPError):
                await session.list_tools()
    assert lab.endpoint.loss.message == "the bridge fell"


async def test_the_server_may_ask_in_the_middle_of_a_call():
    """Handshake era: a request of the server is answered while a call of ours waits."""

    async def roots(_context):
        return ListRootsResult(roots=[Root(uri="file:///a"), Root(uri="file:///b")])

    async with bridged() as bridge:
        lab = Lab("2025-11-25", bridge, list_roots_callback=roots)
        async with lab.session as session:
            await lab.open()
            await session.list_tools()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MCPDeprecationWarning)
                result = await session.call_tool("roots")
            assert result.content[0].text == "2"


async def test_without_a_callback_the_server_is_told_so():
    async with bridged() as bridge:
        lab = Lab("2025-11-25", bridge)
        async with lab.session as session:
            await lab.open()
            await session.list_tools()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MCPDeprecationWarning)
                with pytest.raises(MCPError):
                    await session.call_tool("roots")


async def test_listen_works_over_the_endpoint():
    changes = []

    async def handle(message):
        changes.append(type(message))

    async with bridged() as bridge:
        lab = Lab("2026-07-28", bridge, message_handler=handle)
        async with lab.session as session:
            await lab.open()
            async with listen(session, tools_list_changed=True) as subscription:
                await bridge.bus.publish(ToolsListChanged())
                with trio.fail_after(20):
                    async for event in subscription:
                        assert event == ToolsListChanged()
                        break
                await wait_all_tasks_blocked()
            (asked,) = (json.loads(f)["id"] for f in bridge.frames if json.loads(f)["method"] == "subscriptions/listen")
            assert asked.startswith("listen-")
            assert (await session.list_tools()).tools
    assert changes == [ToolListChangedNotification]


# requests of the peer that the session answers by itself


@pytest.mark.parametrize(
    ("method", "code"), [("ping", None), ("nonsense/method", -32601), ("sampling/createMessage", -32602)]
)
async def test_requests_of_the_peer_are_answered_by_the_session(method, code):
    peer = Peer()
    async with ClientSession(dispatcher=EndpointDispatcher(Endpoint(StreamCarrier(peer))), client_info=CLIENT):
        peer.say({"jsonrpc": "2.0", "id": "q", "method": method})
        await wait_all_tasks_blocked()
        (answer,) = peer.heard
        assert answer["id"] == "q"
        if code is None:
            assert answer["result"] == {}
        else:
            assert answer["error"]["code"] == code


class Strict(BaseModel):
    number: int


async def raise_an_error_of_the_sdk(*_request):
    raise MCPError(-32601, "Method not found", data="x")


async def raise_a_validation_error(*_request):
    Strict.model_validate({"number": "no"})


async def raise_anything(*_request):
    raise LookupError("a secret of the host")


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (raise_an_error_of_the_sdk, {"code": -32601, "message": "Method not found", "data": "x"}),
        (raise_a_validation_error, {"code": -32602, "message": "Invalid request parameters", "data": ""}),
        (raise_anything, {"code": -32603, "message": "Internal error"}),
    ],
)
async def test_what_a_handler_of_the_sdk_raises_is_said_to_the_peer_as_the_sdk_would(handler, said):
    async def no_notice(*_):
        raise AssertionError

    peer = Peer()
    dispatcher = EndpointDispatcher(Endpoint(StreamCarrier(peer)))
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run, handler, no_notice)
        peer.say({"jsonrpc": "2.0", "id": "q", "method": "m"})
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    (answer,) = peer.heard
    assert answer["error"] == said


async def test_a_handler_of_the_sdk_sees_a_context_of_the_sdks():
    told = []

    class Back:
        async def send_raw_request(self, method, params, opts=None):
            raise JsonRpcError(-1, "no")

        async def notify(self, method, params, opts=None):
            told.append((method, params))

    message = Inbound(Back(), 1, {"_meta": {"progressToken": 7}})
    context = SessionContext(message)
    assert (context.request_id, context.message_metadata, context.can_send_request) == (1, None, True)
    assert (context.transport.kind, context.transport.can_send_request) == ("wire", True)
    with pytest.raises(MCPError, match="no"):
        await context.send_raw_request("roots/list", None)
    await context.notify("m", None)
    await context.progress(1)
    assert told == [("m", None), ("notifications/progress", {"progressToken": 7, "progress": 1})]
    assert not context.cancel_requested.is_set()
    message.cancel()
    assert context.cancel_requested.is_set()
    await message.serve(trio.lowlevel.checkpoint)
    assert not context.can_send_request


async def test_a_listing_carries_the_stamp_of_its_era(era):
    """The endpoint learns it there for the calls beside the session."""
    async with bridged() as bridge:
        lab = Lab(era, bridge)
        async with lab.session as session:
            await lab.open()
            await session.list_tools()
            names = {key.removeprefix("io.modelcontextprotocol/") for key in lab.endpoint.stamp}
            assert names == ({"protocolVersion", "clientInfo", "clientCapabilities"} if era == "2026-07-28" else set())
