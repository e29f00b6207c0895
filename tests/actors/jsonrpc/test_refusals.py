"""A message that is not read: whom it concerns is told, the connection lives, and nobody waits for ever."""

import json

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors import fairness
from mcp_nursery.actors.jsonrpc.endpoint import Endpoint
from mcp_nursery.actors.jsonrpc.incoming import Notices
from mcp_nursery.actors.jsonrpc.stream_carrier import StreamCarrier
from mcp_nursery.actors.limits import CostLimits
from mcp_nursery.actors.outcomes import Answered, Loss, Malformed
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.actors.reply import ReplySlot

from ...lab.wire_peer import Passes, Peer, error, no_request, notice, post, request, result, running

MANY = [{}] * 300_000
NOT_SENT = {"delivery": "not_sent"}
PROBLEM = r"a message of \d\.\d MiB with more than 250000 JSON values"


async def test_the_call_it_answers_fails_and_the_others_go_on(caplog):
    peer, slots = Peer(), [ReplySlot(), ReplySlot()]
    async with running(peer) as endpoint:
        endpoint.post([post(slot) for slot in slots])
        peer.say(result(1, {"a": MANY}), result(2))
        await wait_all_tasks_blocked()
        refused = slots[0].outcome
        assert isinstance(refused, Malformed)
        more = "(max_message_values, or maxMessageValues in a file, allows more)"
        problem = f"a message of 1.1 MiB with more than 250000 JSON values, the most it may have {more}"
        assert refused.problem == problem
        assert slots[1].outcome == Answered({})
        assert not endpoint.lost.is_set()
        assert endpoint.in_flight == 0
    assert [record.getMessage() for record in caplog.records] == [f"refused {refused.problem}"]


async def test_an_id_behind_the_result_is_found_too():
    peer, slot = Peer(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(slot)])
        peer.say({"error": {"code": 1, "message": "no", "data": MANY}, "id": "1", "jsonrpc": "2.0"})
        await wait_all_tasks_blocked()
        assert isinstance(slot.outcome, Malformed)


@pytest.mark.parametrize(
    ("said", "most"), [({"result": MANY}, 10_000), ([result(1, {"a": MANY})], 250_000)], ids=["no id", "a batch"]
)
async def test_nobody_waits_for_ever_for_what_nobody_can_tell_whose_it_is(said, most):
    """The connection is lost: a caller without a time limit would wait for ever."""
    peer, slot = Peer(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(slot)])
        peer.say(json.dumps(said).encode())
        await endpoint.lost.wait()
        assert isinstance(slot.outcome, Loss)
        assert slot.outcome.message.startswith(f"sent a message of 1.1 MiB with more than {most} JSON values")


@pytest.mark.parametrize(
    "said",
    [notice("notifications/message", {"data": MANY}), result(99, {"a": MANY}), b"log: " + b"[{" * 200_000],
    ids=["a notification", "an answer nobody waits for", "no message"],
)
async def test_what_is_nobodys_answer_loses_nothing(said):
    peer, slot = Peer(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(slot)])
        peer.say(said, result(1))
        await wait_all_tasks_blocked()
        assert slot.outcome == Answered({})


async def test_a_peer_that_asks_too_much_is_told_so():
    peer = Peer()
    async with running(peer):
        peer.say(request("q", "sampling/createMessage", {"a": MANY}))
        peer.say(request("r", "sampling/createMessage", {"a": [{"b": "x" * 20}] * 5_000}))
        await wait_all_tasks_blocked()
    refusals = [
        f"a message of {size} MiB with more than 10000 JSON values, the most it may have" for size in (1.1, 0.1)
    ]
    assert peer.heard == [
        error("q", -32600, refusals[0], data=NOT_SENT),
        error("r", -32600, refusals[1], data=NOT_SENT),
    ]


async def test_a_client_that_may_say_as_much_unasked_as_in_answers_is_told_later():
    peer, heard = Peer(), []

    async def handle(context, method, params):
        heard.append(len(params["a"]))
        return {}

    endpoint = Endpoint(StreamCarrier(peer), CostLimits(unasked=250_000))
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run, handle, no_request, None)
        peer.say(request("q", "tools/call", {"a": [0] * 15_000}), request("r", "tools/call", {"a": [0] * 40_000}))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    too_many = "a request with more than 5000 JSON values, the most it may have"
    assert peer.heard == [result("q"), error("r", -32603, too_many, data=NOT_SENT)]
    assert heard == [15_000]


async def test_the_session_learns_that_its_answer_was_refused():
    peer = Peer()
    peer.on_message = lambda message: peer.say(result(message["id"], {"tools": MANY}))
    async with running(peer) as endpoint:
        with pytest.raises(JsonRpcError, match=PROBLEM):
            await endpoint.send_raw_request("tools/list", None)


async def test_the_budget_of_values_is_the_servers_own():
    peer, slot = Peer(), ReplySlot()
    endpoint = Endpoint(StreamCarrier(peer), CostLimits(values=10_000_000))
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run, no_request, no_request, None)
        endpoint.post([post(slot)])
        peer.say(result(1, {"a": MANY}))
        await wait_all_tasks_blocked()
        assert slot.outcome == Answered({"a": MANY})
        nursery.cancel_scope.cancel()


async def test_requests_that_wait_have_a_budget_of_bytes():
    peer, release = Peer(), trio.Event()

    async def handle(*_asked):
        await release.wait()
        return {}

    endpoint = Endpoint(StreamCarrier(peer), CostLimits(kept=100_000))
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run, handle, no_request, None)
        peer.say(*(request(number, "roots/list", {"a": "x" * 40_000}) for number in range(3)))
        await wait_all_tasks_blocked()
        assert peer.heard == [error(2, -32603, "more than 100000 bytes of requests at once", data=NOT_SENT)]
        release.set()
        await wait_all_tasks_blocked()
        peer.say(request(3, "roots/list", {"a": "x" * 40_000}))
        await wait_all_tasks_blocked()
        assert sorted(message["id"] for message in peer.heard[1:]) == [0, 1, 3]
        nursery.cancel_scope.cancel()


LOG, TOOLS, UPDATED = "notifications/message", "notifications/tools/list_changed", "notifications/resources/updated"


def test_notifications_that_wait_have_a_budget_of_bytes():
    notices = Notices(most=100_000)
    for number in range(3):
        notices.add(LOG, {"data": number}, 40_000)
    notices.add(UPDATED, {"uri": "a:b"}, 40_000)
    notices.add(TOOLS, {"_meta": {}}, 40_000)
    assert notices.lost == 2
    taken = [notices.receive_nowait() for _ in range(3)]
    assert taken == [(LOG, {"data": 0}), (LOG, {"data": 1}), (TOOLS, None)]
    notices.add(LOG, {"data": 3}, 40_000)
    assert notices.receive_nowait() == (LOG, {"data": 3})


@pytest.mark.parametrize("params", [{"data": "x"}, {"data": [{}] * 6_000}], ids=["bytes", "values"])
def test_a_notification_that_takes_long_to_understand_is_dropped_but_for_a_change(params):
    notices, size = Notices(), 2 << 20 if params["data"] == "x" else 100_000
    notices.add(LOG, params, size)
    notices.add(TOOLS, params, size)
    assert notices.lost == 1
    assert notices.receive_nowait() == (TOOLS, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("frame", "least"),
    [
        (json.dumps([result("none")] * 20_000).encode(), 20_000 // 16),
        (json.dumps([notice(LOG, {"data": 1})] * 5_000).encode(), 5_000 // 16),
        (b'{"jsonrpc":"2.0","id":"none","result":{"a":"%s"}}' % (rb"\ud800" * 1_000_000), 100),
        (b'{"jsonrpc":"2.0","id":"none","result":{"a":"%s"}}' % (b"," * 8_000_000), 60),
    ],
    ids=["answers", "logs", "half characters", "commas"],
)
async def test_others_run_while_one_frame_is_taken(frame, least, monkeypatch):
    monkeypatch.setattr(fairness, "_SLICE_SECONDS", 0)  # after each piece, however small
    others, peer, slot = Passes(), Peer(), ReplySlot()
    async with running(peer, intercept=lambda *_: True) as endpoint, trio.open_nursery() as nursery:
        endpoint.post([post(slot)])
        nursery.start_soon(others.run)
        peer.say(frame, result(1))
        await slot.wait()
        nursery.cancel_scope.cancel()
    assert others.count >= least


async def test_long_lines_take_turns_by_their_bytes():
    """Sixteen of them could hold up everybody for as long as one large one."""
    others, peer, slot = Passes(), Peer(), ReplySlot()
    async with running(peer) as endpoint, trio.open_nursery() as nursery:
        endpoint.post([post(slot)])
        nursery.start_soon(others.run)
        peer.say(*[result("none", {"a": "x" * 60_000})] * 32, result(1))
        await slot.wait()
        nursery.cancel_scope.cancel()
    assert others.count >= 16
