"""The endpoint outbound: requests, timeouts, cancels and notifications of a session."""

import math

import pytest
import trio
from mcp.shared.dispatcher import Outbound
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.jsonrpc.endpoint import ConnectionClosed, Endpoint, RequestTimedOut
from mcp_nursery.actors.jsonrpc.stream_carrier import OUTBOX_LIMIT, StreamCarrier
from mcp_nursery.actors.outcomes import Answered
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.actors.reply import ReplySlot

from ...lab.wire_peer import Peer, error, no_notice, no_request, notice, post, request, result, running


async def keep(*_notice):
    """A handler of notifications that does nothing."""


def test_it_is_an_outbound_of_the_sdk():
    assert isinstance(Endpoint(StreamCarrier(Peer())), Outbound)


async def test_a_request_returns_the_raw_result_which_is_the_callers_own():
    peer = Peer()
    async with running(peer) as endpoint:
        peer.on_message = lambda message: peer.say(result(message["id"], {"a": [1]}))
        first = await endpoint.send_raw_request("tools/list", {"cursor": "x"})
        second = await endpoint.send_raw_request("tools/list", None)
        assert first == second == {"a": [1]}
        assert first is not second
    assert peer.heard == [request(1, "tools/list", {"cursor": "x"}), request(2, "tools/list")]


async def test_requests_and_calls_share_one_table():
    peer, slot, answers = Peer(), ReplySlot(), []

    async def ask(request_id):
        answers.append(await endpoint.send_raw_request("m", None, {"request_id": request_id}))

    async with running(peer) as endpoint, trio.open_nursery() as nursery:
        nursery.start_soon(ask, "7")
        nursery.start_soon(ask, "listen-1")
        await wait_all_tasks_blocked()
        endpoint.post([post(slot)])
        assert {message["id"] for message in peer.heard} == {"7", "listen-1", 1}
        assert endpoint.in_flight == 1
        peer.say(result("listen-1", {"to": "listen-1"}), result(1, {"to": 1}), result(7, {"to": "7"}))
        await wait_all_tasks_blocked()
        assert slot.outcome == Answered({"to": 1})
        assert sorted(map(str, answers)) == sorted(map(str, [{"to": "7"}, {"to": "listen-1"}]))


@pytest.mark.parametrize(("first", "second"), [("9", 9), (9, "9"), ("a", "a")])
async def test_an_id_in_flight_is_a_value_error_and_leaves_the_first_alone(first, second):
    peer, answers = Peer(), []

    async def ask():
        answers.append(await endpoint.send_raw_request("m", None, {"request_id": first}))

    async with running(peer) as endpoint, trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        with pytest.raises(ValueError, match="already in flight"):
            await endpoint.send_raw_request("m", None, {"request_id": second})
        assert len(peer.frames) == 1
        peer.say(result(first))
    assert answers == [{}]


async def test_an_error_of_the_peer_is_an_error_of_its_own_for_each_waiter():
    peer = Peer()
    raised = []

    async def ask():
        with pytest.raises(JsonRpcError) as caught:
            await endpoint.send_raw_request("m", None)
        raised.append(caught.value)

    async with running(peer) as endpoint, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        peer.say(error(1, -32601, "unknown", data={"a": 1}), error(2, -32601, "unknown", data={"a": 1}))
    assert [(e.code, e.message, e.data) for e in raised] == [(-32601, "unknown", {"a": 1})] * 2
    assert raised[0] is not raised[1]


async def test_before_run_a_request_is_an_error_of_ours_and_a_notification_is_sent():
    peer = Peer()
    endpoint = Endpoint(StreamCarrier(peer))
    with pytest.raises(RuntimeError, match="not running"):
        await endpoint.send_raw_request("m", None)
    await endpoint.notify("notifications/early", {"a": 1})
    assert peer.heard == [notice("notifications/early", {"a": 1})]


async def test_what_was_told_before_run_and_not_taken_is_written_when_the_peer_takes_more():
    peer = Peer(room=0)
    endpoint = Endpoint(StreamCarrier(peer))
    await endpoint.notify("notifications/early", None)
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run, no_request, no_notice, None)
        peer.take()
        await wait_all_tasks_blocked()
        assert peer.heard == [notice("notifications/early")]
        peer.end()


# meta


async def test_a_progress_token_is_put_into_meta_and_what_was_given_is_not_touched():
    peer = Peer()
    params = {"a": 1, "_meta": {"mine": True}}
    async with running(peer) as endpoint:
        peer.on_message = lambda message: peer.say(result(message["id"]))
        await endpoint.send_raw_request("m", params, {"on_progress": keep, "request_id": "listen-1"})
        await endpoint.send_raw_request("m", params)
    assert [message["params"] for message in peer.heard] == [
        {"a": 1, "_meta": {"mine": True, "progressToken": "listen-1"}},
        {"a": 1, "_meta": {"mine": True}},
    ]
    assert params == {"a": 1, "_meta": {"mine": True}}


async def test_the_stamp_is_learnt_from_the_last_list_of_any_kind_only():
    peer = Peer()
    stamp = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "x"},
    }
    async with running(peer) as endpoint:
        peer.on_message = lambda message: peer.say(result(message["id"]))
        assert endpoint.stamp == {}
        await endpoint.send_raw_request("server/discover", {"_meta": stamp})
        assert endpoint.stamp == {}
        await endpoint.send_raw_request("tools/list", {"_meta": {**stamp, "other": 1}}, {"on_progress": keep})
        assert endpoint.stamp == stamp
        await endpoint.send_raw_request("prompts/list", {})
        assert endpoint.stamp == {}


# timeouts


@pytest.mark.parametrize("timeout", [0.5, 3, 10])
async def test_a_timeout_is_exact_and_the_peer_is_told(timeout, autojump_clock):
    peer = Peer()
    async with running(peer) as endpoint:
        with pytest.raises(RequestTimedOut) as caught:
            await endpoint.send_raw_request("m", None, {"timeout": timeout})
        assert trio.current_time() == timeout
        assert caught.value.code == REQUEST_TIMEOUT
        assert caught.value.message == f"m timed out after {timeout} s"
        assert peer.heard_of("notifications/cancelled")[0]["params"]["requestId"] == 1
        peer.say(result(1))  # late, and nobody's
        await trio.sleep(1)
        assert endpoint.noise == 0


async def test_a_timeout_counts_from_the_call_though_the_peer_is_deaf(autojump_clock):
    peer = Peer(room=0)
    async with running(peer) as endpoint:
        with pytest.raises(RequestTimedOut):
            await endpoint.send_raw_request("m", None, {"timeout": 0.5})
        assert trio.current_time() == 0.5
        peer.take()
        await trio.sleep(1)
        assert peer.frames == []  # withdrawn: the peer never saw it, and hears of no cancel


@pytest.mark.parametrize(("method", "options"), [("initialize", {}), ("m", {"cancel_on_abandon": False})])
async def test_what_must_not_be_cancelled_is_given_up_in_silence(autojump_clock, method, options):
    peer = Peer(room=1)
    async with running(peer) as endpoint:
        for _ in range(2):
            with pytest.raises(RequestTimedOut):
                await endpoint.send_raw_request(method, None, {"timeout": 1, **options})
        peer.take()
        await trio.sleep(1)
        assert [message["method"] for message in peer.heard] == [method]


async def test_an_answer_in_time_is_not_timed_out(autojump_clock):
    peer = Peer()

    async def answer():
        await trio.sleep(2.5)
        peer.say(result(1, {"late": False}))

    async with running(peer) as endpoint, trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        assert await endpoint.send_raw_request("m", None, {"timeout": 3}) == {"late": False}
        assert trio.current_time() == 2.5
    assert peer.heard_of("notifications/cancelled") == []


# the caller gives up


async def test_cancelling_before_anything_is_sent_sends_nothing():
    peer = Peer()
    async with running(peer) as endpoint:
        with trio.CancelScope() as scope:
            scope.cancel()
            await endpoint.send_raw_request("m", None)
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert peer.frames == []


@pytest.mark.parametrize("tell", [True, False])
async def test_cancelling_afterwards_tells_the_peer_which_unless_it_must_not(tell):
    peer = Peer()

    async def ask(scope):
        with scope:
            await endpoint.send_raw_request("m", None, {"request_id": "listen-7", "cancel_on_abandon": tell})

    async with running(peer) as endpoint, trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(ask, scope)
        await wait_all_tasks_blocked()
        scope.cancel()
        await wait_all_tasks_blocked()
        told = [message["params"]["requestId"] for message in peer.heard_of("notifications/cancelled")]
        assert told == (["listen-7"] if tell else [])
        peer.say(result("listen-7"))  # nobody's
        await wait_all_tasks_blocked()


async def test_a_deaf_peer_holds_no_caller(autojump_clock):
    """A wedged server: the SDK's own dispatcher took 6 s for this."""
    peer = Peer(room=0)
    async with running(peer) as endpoint:
        with trio.move_on_after(0.25):
            await endpoint.send_raw_request("m", None)
        assert trio.current_time() == 0.25


async def test_with_a_deaf_peer_and_a_full_outbox_a_request_is_not_forgotten(autojump_clock):
    """Either it waits its turn or it is refused: it must not be neither queued nor answered."""
    peer, answers = Peer(room=0), []

    async def ask():
        try:
            answers.append(await endpoint.send_raw_request("tools/list", {"text": "y"}))
        except JsonRpcError as refused:
            answers.append(refused)

    async with running(peer) as endpoint, trio.open_nursery() as nursery:
        endpoint.post([post(text="x" * OUTBOX_LIMIT)])
        nursery.start_soon(ask)
        await trio.sleep(1)
        peer.on_message = lambda message: peer.say(result(message["id"]))
        peer.take()
        await trio.sleep(60)
        assert answers, "neither sent nor refused"
        nursery.cancel_scope.cancel()


# progress


async def test_progress_is_reported_in_order_before_the_result():
    peer, seen = Peer(), []

    async def on_progress(progress, total, message):
        await trio.lowlevel.checkpoint()
        seen.append((progress, total, message))

    def answer(message):
        token = message["params"]["_meta"]["progressToken"]
        steps = [
            notice("notifications/progress", {"progressToken": token, "progress": n, "total": 9, "message": str(n)})
            for n in range(9)
        ]
        peer.say(*steps, result(message["id"], {"done": True}))

    peer.on_message = answer
    async with running(peer, on_notify=keep) as endpoint:
        assert await endpoint.send_raw_request("m", None, {"on_progress": on_progress}) == {"done": True}
    assert seen == [(float(n), 9.0, str(n)) for n in range(9)]


async def test_progress_for_a_request_that_wants_none_is_dropped():
    peer = Peer()
    peer.on_message = lambda message: peer.say(
        notice("notifications/progress", {"progressToken": message["id"], "progress": 1}), result(message["id"])
    )
    async with running(peer, on_notify=keep) as endpoint:
        assert await endpoint.send_raw_request("m", None) == {}


# the end


async def test_every_waiting_request_gets_an_error_of_its_own_that_tells_the_loss():
    peer, raised = Peer(), []

    async def ask():
        with pytest.raises(ConnectionClosed) as caught:
            await endpoint.send_raw_request("m", None)
        raised.append(caught.value)

    async with running(peer) as endpoint, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        peer.end()
    assert {(e.code, e.message) for e in raised} == {(CONNECTION_CLOSED, "gone")}
    assert len({id(e) for e in raised}) == 3
    assert endpoint.loss.pending == 0  # those were the session's, not calls


async def test_after_the_loss_requests_fail_at_once_and_notifications_are_dropped():
    peer = Peer()
    async with running(peer) as endpoint:
        peer.end()
        await endpoint.lost.wait()
        with pytest.raises(ConnectionClosed):
            await endpoint.send_raw_request("m", None)
        await endpoint.notify("notifications/late", None)
        assert peer.frames == []


async def test_leaving_the_session_ends_the_requests_in_other_tasks():
    peer, raised = Peer(), []

    async def ask(endpoint, started):
        started.set()
        with pytest.raises(ConnectionClosed):
            await endpoint.send_raw_request("m", None)
        raised.append(True)

    async with trio.open_nursery() as outer, running(peer) as endpoint:
        started = trio.Event()
        outer.start_soon(ask, endpoint, started)
        await started.wait()
        await wait_all_tasks_blocked()
    assert raised == [True]


async def test_an_infinite_timeout_is_none(autojump_clock):
    peer = Peer()
    async with running(peer) as endpoint:
        with trio.move_on_after(1e6):
            await endpoint.send_raw_request("m", None, {"timeout": math.inf})
        assert trio.current_time() == 1e6


async def test_run_is_ready_when_it_says_so():
    endpoint = Endpoint(StreamCarrier(peer := Peer()))
    peer.on_message = lambda message: peer.say(result(message["id"]))
    async with trio.open_nursery() as nursery:
        assert await nursery.start(endpoint.run, no_request, no_notice, None) is None
        assert await endpoint.send_raw_request("m", None) == {}
        nursery.cancel_scope.cancel()
