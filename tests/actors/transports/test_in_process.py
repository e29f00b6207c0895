"""A server object of this process: the same promises as on a wire."""

import math
from contextlib import asynccontextmanager

import pytest
import trio
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ListToolsResult
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.enums import Delivery, Era
from mcp_nursery.actors.errors import StartFailed
from mcp_nursery.actors.jsonrpc.codec import encode
from mcp_nursery.actors.outcomes import Answered, Loss, Rejected, Unlisted, Unsendable
from mcp_nursery.actors.pieces import at_once
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.session.base import BadResult, HandshakeFailed
from mcp_nursery.actors.transports.in_process import InProcessConnector

from ...lab.sdk_bridge import TOOLS, Bridge, lab
from ...lab.tool_requests import tool_request
from ...lab.wire_peer import no_progress

CLOSED = Loss("the connection was closed", pending=1)


def call(tool, arguments=None, meta=None, *, wants_progress=False):
    encoded = None if arguments is None else encode(arguments)
    slot = ReplySlot(wants_progress=wants_progress)
    return tool_request(server="lab", tool=tool, arguments=encoded, meta=meta or {}, slot=slot)


def open_object(server, *, close_grace):
    return InProcessConnector(server, close_grace=close_grace).connect()


@asynccontextmanager
async def driven(server, grace=1.0):
    async with open_object(server, close_grace=grace) as connection:
        await connection.handshake(None)
        await connection.list_tools()
        yield connection


@pytest.fixture
def bridge():
    """Keeps what the lab's server saw."""
    return Bridge()


async def test_the_facts_and_the_tools_of_an_object_of_this_process(bridge):
    async with open_object(lab(bridge), close_grace=1) as connection:
        handshake = await connection.handshake(None)
        assert (handshake.era, handshake.server_info["name"]) == (Era.MODERN, "lab")
        assert [tool.name for tool in await connection.list_tools()] == [tool.name for tool in TOOLS]
        assert connection.pid is None


async def test_calls_run_side_by_side_and_each_gets_its_own_answer(bridge):
    calls = [call("add", {"terms": [number, 1000]}) for number in range(20)]
    async with driven(lab(bridge)) as connection:
        connection.submit(calls)
        assert connection.in_flight == 20
        for number, sent in enumerate(calls):
            outcome = await sent.slot.wait(no_progress)
            assert at_once(sent.slot.codec.result(outcome.result)).structured_content == {"sum": number + 1000}
            assert sent.slot.delivery is Delivery.ANSWERED
        await connection.idle()
        assert connection.in_flight == 0


async def test_arguments_and_meta_arrive_as_they_were_given(bridge):
    sent = call("add", {"terms": [10**30 + 1, 1]}, {"mine": {"a": 1}})
    bare = call("refuse")
    async with driven(lab(bridge)) as connection:
        for each in (sent, bare):
            connection.submit([each])
            await each.slot.wait(no_progress)
    (_, arguments, meta), (_, none, _) = bridge.tools_called
    assert arguments == {"terms": [10**30 + 1, 1]}
    assert meta["mine"] == {"a": 1}
    assert not none


async def test_errors_of_the_server_keep_code_words_and_data(bridge):
    refused, unknown = call("refuse"), call("nope")
    async with driven(lab(bridge)) as connection:
        connection.submit([refused, unknown])
        assert await refused.slot.wait(no_progress) == Rejected(-32000, "not today", {"when": "tomorrow"})
        assert unknown.slot.outcome == Unlisted()


async def test_progress_comes_in_order_and_before_the_result(bridge):
    steps, sent = [], call("count", {"to": 30}, wants_progress=True)

    async def on_progress(*step):
        steps.append(step)

    async with driven(lab(bridge)) as connection:
        connection.submit([sent])
        assert isinstance(await sent.slot.wait(on_progress), Answered)
        assert steps == [(float(n), 30.0, f"step {n}") for n in range(30)]


async def test_a_call_given_up_ends_at_the_server_and_frees_its_place(bridge):
    calls = [call("hang"), call("hang")]
    async with driven(lab(bridge)) as connection:
        connection.submit(calls)
        await wait_all_tasks_blocked()
        connection.cancel(calls[0].slot)
        connection.cancel(ReplySlot())  # of nobody
        assert await connection.room(2) == 1
        await wait_all_tasks_blocked()
        assert len(bridge.cancelled) == 1
        assert not calls[1].slot.decided


@pytest.mark.parametrize("decide", [ReplySlot.cancel, ReplySlot.expire])
async def test_a_call_that_is_decided_before_its_task_runs_is_not_sent(bridge, decide):
    """Its caller was told so."""
    sent = call("add", {"terms": [1]})
    async with driven(lab(bridge)) as connection:
        connection.submit([sent])
        decide(sent.slot)
        await connection.idle()
        assert (sent.slot.delivery, bridge.tools_called) == (Delivery.NOT_SENT, [])


async def test_room_waits_for_a_place(bridge):
    calls = [call("hang"), call("hang")]
    async with driven(lab(bridge)) as connection:
        assert await connection.room(2) == 2
        connection.submit(calls)
        with trio.move_on_after(0):
            raise AssertionError(await connection.room(2))
        connection.withdraw_unsent()  # nothing waits here
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.idle)
            await wait_all_tasks_blocked()
            for sent in calls:
                connection.cancel(sent.slot)
        assert await connection.room(math.inf) == math.inf


async def test_what_has_no_json_form_ends_itself_and_nobody_else(bridge):
    bad, good = call("add", {"terms": []}, {"progressToken": object()}), call("add", {"terms": [1]})
    async with driven(lab(bridge)) as connection:
        connection.submit([bad, good])
        assert isinstance(await bad.slot.wait(no_progress), (Unsendable, Rejected))
        assert isinstance(await good.slot.wait(no_progress), Answered)


async def test_leaving_ends_the_calls_and_decides_their_slots(bridge):
    sent = call("hang")
    async with driven(lab(bridge)) as connection:
        connection.submit([sent])
        await wait_all_tasks_blocked()
    assert (sent.slot.outcome, sent.slot.delivery) == (CLOSED, Delivery.UNKNOWN)
    assert len(bridge.cancelled) == 1
    assert await connection.lost() == CLOSED
    connection.submit([late := call("hang")])
    assert late.slot.outcome == CLOSED


# objects that fail


def with_lifespan(lifespan, **handlers):
    async def no_tools(_context, _params):
        return ListToolsResult(tools=[])

    return Server("lab", lifespan=lifespan, **{"on_list_tools": no_tools, **handlers})


async def test_an_object_whose_lifespan_fails_says_so_in_one_line():
    @asynccontextmanager
    async def lifespan(_server):
        raise LookupError("no\ndatabase")
        yield

    async with open_object(with_lifespan(lifespan), close_grace=1) as connection:
        with pytest.raises(HandshakeFailed) as caught:
            await connection.handshake(None)
        assert caught.value.loss.message == "the server object ended: LookupError: no database"
        assert not caught.value.probe_refused
        assert await connection.lost() == caught.value.loss


@pytest.mark.parametrize("grace", [0.5, 3])
async def test_an_object_whose_lifespan_does_not_end_is_given_its_grace(grace, autojump_clock):
    @asynccontextmanager
    async def lifespan(_server):
        yield {}
        await trio.sleep_forever()

    async with driven(with_lifespan(lifespan), grace):
        pass
    assert trio.current_time() == grace


async def test_an_object_whose_lifespan_does_not_begin_is_given_its_grace_when_nobody_waits_any_more(autojump_clock):
    @asynccontextmanager
    async def lifespan(_server):
        await trio.sleep_forever()
        yield {}

    with trio.move_on_after(5):
        async with open_object(with_lifespan(lifespan), close_grace=2) as connection:
            await connection.handshake(None)
    assert trio.current_time() == 7


async def test_an_object_that_dies_in_the_middle_of_a_call_is_lost_at_once(bridge, autojump_clock):
    async def die():
        await trio.sleep(5)
        raise LookupError("the database went away")

    @asynccontextmanager
    async def lifespan(_server):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(die)
            yield {}

    async def list_tools(_context, _params):
        return ListToolsResult(tools=TOOLS)

    async def call_tool(_context, _params):
        await trio.sleep_forever()

    sent = call("hang")
    server = with_lifespan(lifespan, on_list_tools=list_tools, on_call_tool=call_tool)
    async with driven(server, grace=60) as connection:
        connection.submit([sent])
        outcome = await sent.slot.wait(no_progress)
        loss = await connection.lost()
        assert trio.current_time() == 5
        assert outcome == loss
        assert loss.message == "the server object ended: LookupError: the database went away"
        assert sent.slot.delivery is Delivery.UNKNOWN


async def test_a_call_of_an_object_whose_lifespan_is_ending_is_not_sent(autojump_clock):
    async def die():
        await trio.sleep(1)
        raise LookupError("the database went away")

    @asynccontextmanager
    async def lifespan(_server):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(die)
            try:
                yield {}
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(5)

    async def list_tools(_context, _params):
        return ListToolsResult(tools=TOOLS)

    async with driven(with_lifespan(lifespan, on_list_tools=list_tools), grace=60) as connection:
        await trio.sleep(2)
        connection.submit([late := call("hang")])
        assert await late.slot.wait(no_progress) == await connection.lost()
        assert late.slot.delivery is Delivery.NOT_SENT
        assert trio.current_time() == 2


async def test_a_tool_that_exits_ends_its_server_and_not_the_host():
    async def list_tools(_context, _params):
        return ListToolsResult(tools=TOOLS)

    async def call_tool(_context, _params):
        raise SystemExit(3)

    sent = call("hang")
    server = Server("lab", on_list_tools=list_tools, on_call_tool=call_tool)
    async with driven(server) as connection:
        connection.submit([sent])
        outcome = await sent.slot.wait(no_progress)
        assert outcome == await connection.lost()
        assert outcome.message == "the server object ended: SystemExit: 3"
        assert sent.slot.delivery is Delivery.UNKNOWN
        connection.submit([late := call("hang")])
        assert late.slot.outcome == outcome
        assert late.slot.delivery is Delivery.NOT_SENT


async def test_a_probe_is_heard(bridge, autojump_clock):
    """L6."""
    async with driven(lab(bridge)) as connection:
        await trio.sleep(5)
        assert connection.heard_at == 0
        await connection.probe()
        assert connection.heard_at == 5


async def test_an_answer_and_progress_are_signs_of_life(bridge, autojump_clock):
    async with driven(lab(bridge)) as connection:
        for at, sent in ((5, call("add", {"terms": [1]})), (9, call("count", {"to": 3}, wants_progress=True))):
            await trio.sleep_until(at)
            connection.submit([sent])
            await wait_all_tasks_blocked()
            assert connection.heard_at == at


async def test_a_connection_given_up_for_lost_ends_its_calls(bridge, autojump_clock):
    """L6."""
    sent = call("hang")
    async with driven(lab(bridge)) as connection:
        connection.submit([sent])
        await wait_all_tasks_blocked()
        connection.lose(Loss("silent"))
        assert await connection.lost() == Loss("silent", pending=1)
        await wait_all_tasks_blocked()
        assert sent.slot.outcome == Loss("silent", pending=1)
        assert sent.slot.delivery is Delivery.UNKNOWN


async def test_each_connection_enters_the_lifespan_anew():
    entered = []

    @asynccontextmanager
    async def lifespan(_server):
        entered.append("in")
        yield {}
        entered.append("out")

    server = with_lifespan(lifespan)
    for _ in range(2):
        async with driven(server):
            pass
    assert entered == ["in", "out"] * 2


async def test_a_listing_that_fails_is_a_handshake_that_failed():
    @asynccontextmanager
    async def lifespan(_server):
        yield {}

    async def broken(_context, _params):
        raise LookupError("a secret of the host")

    async with open_object(with_lifespan(lifespan, on_list_tools=broken), close_grace=1) as connection:
        await connection.handshake(None)
        with pytest.raises(HandshakeFailed, match="tools/list failed"):
            await connection.list_tools()


async def test_a_result_is_judged_as_on_a_wire():
    @asynccontextmanager
    async def lifespan(_server):
        yield {}

    async def list_tools(_context, _params):
        return ListToolsResult(tools=TOOLS)

    async def call_tool(_context, _params):
        return CallToolResult(content=[], structured_content={"sum": "many"})

    sent = call("add")
    server = with_lifespan(lifespan, on_list_tools=list_tools, on_call_tool=call_tool)
    async with driven(server) as connection:
        connection.submit([sent])
        outcome = await sent.slot.wait(no_progress)
        with pytest.raises(BadResult, match="output schema"):
            at_once(sent.slot.codec.result(outcome.result))


# the connector


@pytest.mark.parametrize("thing", [None, "server.py", Server, object()])
async def test_what_is_no_server_object_is_not_worth_a_second_try(thing):
    with pytest.raises(StartFailed, match=type(thing).__name__) as caught:
        async with InProcessConnector(thing, close_grace=1).connect():
            raise AssertionError
    assert not caught.value.retriable


async def test_the_connector_of_an_object_opens_it(bridge):
    async with InProcessConnector(lab(bridge), close_grace=1).connect() as connection:
        assert (await connection.handshake(None)).server_info["name"] == "lab"


async def test_a_probe_is_answered_and_heard_of(bridge, autojump_clock):
    """L6: and one that is not tells why."""
    async with driven(lab(bridge)) as connection:
        began = connection.heard_at
        await trio.sleep(5)
        assert connection.heard_at == began
        await connection.probe()
        assert connection.heard_at == began + 5
        connection.lose(Loss("it fell silent"))
        connection.lose(Loss("again"))
        assert await connection.lost() == Loss("it fell silent")
        with pytest.raises(HandshakeFailed, match="it fell silent"):
            await connection.probe()


async def test_a_loss_decides_every_call_at_once(bridge):
    """R3."""
    sent, late = call("hang"), call("hang")
    async with driven(lab(bridge)) as connection:
        connection.submit([sent])
        await wait_all_tasks_blocked()
        connection.lose(Loss("gone"))
        assert sent.slot.outcome == Loss("gone", pending=1)
        connection.submit([late])
        assert late.slot.outcome == sent.slot.outcome
        await connection.idle()


# the object


async def test_an_object_that_takes_long_to_begin_is_asked_once(autojump_clock):
    """It has not heard the question before it has begun."""
    asked = []

    @asynccontextmanager
    async def lifespan(_server):
        await trio.sleep(9)
        yield {}

    async def note(context, call_next):
        asked.append(context.method)
        return await call_next(context)

    server = with_lifespan(lifespan)
    server.middleware.append(note)
    async with driven(server):
        assert trio.current_time() == 9
    assert asked == ["server/discover", "tools/list"]


@pytest.mark.parametrize("over_http", [False, True])
async def test_an_object_may_be_served_over_http_as_well(over_http):
    """What its host has made for that is not touched."""
    server = MCPServer("lab")
    if over_http:
        server.streamable_http_app()
    manager = server.session_manager if over_http else None
    async with driven(server) as one, driven(server) as two:
        assert one is not two
        assert manager in (None, server.session_manager)
    server.streamable_http_app()
    assert server.session_manager is not manager


async def test_a_lifespan_that_fails_loses_what_waits_for_it(autojump_clock):
    """Whatever runs first: the requests that waited, or who looks at the end."""

    @asynccontextmanager
    async def lifespan(_server):
        await trio.sleep(1)
        raise LookupError("no database")
        yield

    for _ in range(20):
        async with open_object(with_lifespan(lifespan), close_grace=1) as connection:
            with pytest.raises(HandshakeFailed, match=r"^the server object ended: LookupError: no database$"):
                await connection.handshake(None)
            assert (await connection.lost()).message == "the server object ended: LookupError: no database"


async def test_an_error_that_looks_like_a_closed_connection_is_the_servers_answer():
    """Of a server object that passes on what another said."""

    async def list_tools(_context, _params):
        return ListToolsResult(tools=TOOLS)

    async def call_tool(_context, _params):
        raise MCPError(-32000, "Connection closed")

    sent = call("hang")
    async with driven(Server("lab", on_list_tools=list_tools, on_call_tool=call_tool)) as connection:
        connection.submit([sent])
        assert await sent.slot.wait(no_progress) == Rejected(-32000, "Connection closed")
        assert sent.slot.delivery is Delivery.ANSWERED
