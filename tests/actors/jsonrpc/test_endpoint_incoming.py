"""The endpoint inbound: requests and notifications of the peer."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.extensions import TASK_CHANGED
from mcp_nursery.actors.jsonrpc.incoming import MOST_SERVED
from mcp_nursery.actors.jsonrpc.stream_carrier import MOST_OWED, OUTBOX_LIMIT
from mcp_nursery.actors.messages import ACKNOWLEDGED
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.actors.pieces import SMALL
from mcp_nursery.actors.protocol import SUBSCRIPTION_ID_META_KEY, JsonRpcError
from mcp_nursery.actors.reply import Relay, ReplySlot

from ...lab.wire_peer import Peer, error, notice, post, request, result, running


async def keep(*_notice):
    """A handler of notifications that does nothing."""


def cancelled(request_id):
    return notice("notifications/cancelled", {"requestId": request_id, "reason": "bored"})


async def served(peer, on_request, *messages):
    """What the peer hears after one read of these messages."""
    async with running(peer, on_request, keep) as endpoint:
        peer.say(*messages)
        await wait_all_tasks_blocked()
        assert not endpoint.lost.is_set()
        assert len(endpoint._requests) == 0
        return peer.heard


# requests


@pytest.mark.parametrize(("request_id", "params"), [("7", None), (7, {"a": 1}), (0, {}), ("x", None), ("", None)])
async def test_a_request_is_handled_and_answered_under_its_own_id(request_id, params):
    asked = []

    async def handle(context, method, given):
        asked.append((context.request_id, method, given))
        return {"echo": method}

    heard = await served(Peer(), handle, request(request_id, "roots/list", params))
    assert heard == [result(request_id, {"echo": "roots/list"})]
    assert asked == [(request_id, "roots/list", params)]


async def raise_refusal(*_request):
    raise JsonRpcError(-32601, "Method not found", data="x")


async def raise_anything(*_request):
    raise LookupError("a secret of the host")


async def answer_what_is_no_json(*_request):
    return {"value": object()}


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (raise_refusal, error(1, -32601, "Method not found", data="x")),
        (raise_anything, error(1, -32603, "Internal error")),
        (answer_what_is_no_json, error(1, -32603, "Internal error")),
    ],
)
async def test_a_handler_that_raises_is_an_error_for_the_peer_and_harms_nothing(handler, expected):
    assert await served(Peer(), handler, request(1, "m")) == [expected]


@pytest.mark.parametrize("data", [object(), {"a": {1j: object()}}, "\ud800"], ids=["object", "key", "surrogate"])
async def test_an_error_that_has_no_json_form_is_still_an_error_for_the_peer(data):
    """A callback of the host made it; the connection must not pay for it."""

    async def handle(*_request):
        raise JsonRpcError(-1, "no", data=data)

    (answer,) = await served(Peer(), handle, request(1, "m"))
    assert (answer["id"], set(answer)) == (1, {"jsonrpc", "id", "error"})


async def test_requests_are_served_side_by_side():
    peer, release = Peer(), trio.Event()

    async def handle(_context, method, _params):
        if method == "slow":
            await release.wait()
        return {}

    async with running(peer, handle, keep):
        peer.say(request(1, "slow"), request(2, "fast"))
        await wait_all_tasks_blocked()
        assert peer.heard == [result(2)]
        release.set()
        await wait_all_tasks_blocked()
        assert peer.heard == [result(2), result(1)]


async def test_a_handler_can_ask_the_peer_in_turn():
    peer = Peer()

    async def handle(context, _method, _params):
        return {"got": await context.send_raw_request("more", None)}

    async with running(peer, handle, keep):
        peer.say(request("a", "m"))
        await wait_all_tasks_blocked()
        peer.say(result(peer.heard[0]["id"], {"n": 1}))
        await wait_all_tasks_blocked()
        assert peer.heard[1] == result("a", {"got": {"n": 1}})


# a peer that asks too much


async def test_so_many_requests_are_served_at_once_and_the_rest_refused():
    """Q32: a task each, and the host may take its time: a peer that asks on and on must not eat the memory."""
    peer, release = Peer(), trio.Event()

    async def handle(*_request):
        await release.wait()
        return {}

    async with running(peer, handle, keep) as endpoint:
        peer.say(*(request(number % 600, "ask") for number in range(MOST_SERVED + 2)))  # an id may come twice
        await wait_all_tasks_blocked()
        refusal = {"code": -32603, "message": "too many requests at once", "data": {"delivery": "not_sent"}}
        assert [message["error"] for message in peer.heard] == [refusal, refusal]
        release.set()
        await wait_all_tasks_blocked()
        assert len(peer.heard) == MOST_SERVED + 2
        assert len(endpoint._requests) == 0
        peer.say(request("x", "ask"))
        await wait_all_tasks_blocked()
        assert peer.heard[-1] == result("x")


async def test_a_peer_that_asks_and_never_reads_is_lost():
    """Q32: answers that wait for it are bounded too, also those to what it had asked when it was heard last."""
    peer = Peer(room=0)

    async def handle(*_request):
        return {"text": "x" * (5 << 20)}

    async with running(peer, handle, keep) as endpoint:
        peer.say(*(request(number, "ask") for number in range(80)))
        await wait_all_tasks_blocked()
        assert endpoint.loss.message == "asked for more than 64 MiB of answers and did not read them"
        assert endpoint.lost.is_set()
        assert endpoint._carrier.outbox.size <= 70 << 20


@pytest.mark.parametrize(
    ("many", "request_id", "waiting"), [(10_000, "{}", 0), (3000, "{:05000}", 0), (5000, "{}", 1024)]
)
async def test_a_peer_that_asks_and_does_not_read_is_not_heard_until_it_does(many, request_id, waiting):
    """What it is owed is bounded in frames and in bytes, and nothing of what it asked is lost."""
    peer, release = Peer(room=0), trio.Event()

    async def handle(*_request):
        if waiting:
            await release.wait()
        return {}

    asked = [request_id.format(number) for number in range(many)]
    async with running(peer, handle, keep) as endpoint:
        outbox = endpoint._carrier.outbox
        peer.say(*(request(each, "ask") for each in asked))
        await wait_all_tasks_blocked()
        release.set()
        await wait_all_tasks_blocked()
        assert outbox.owed < MOST_OWED + 32 + waiting
        assert outbox.owed_bytes < OUTBOX_LIMIT + (1 << 20)
        assert endpoint.serving == 0
        peer.take()
        await wait_all_tasks_blocked()
        heard = [message["id"] for message in peer.heard]
        assert sorted(heard) == sorted(asked)
        assert waiting or peer.heard == [result(each) for each in asked]
        assert (outbox.owed, outbox.owed_bytes) == (0, 0)


async def test_a_peer_that_does_not_read_is_heard_nevertheless():
    """A thousand calls wait for it to read; answers to those before them are read."""
    peer = Peer(room=1)
    async with running(peer, answer_at_once, keep) as endpoint:
        first, others = ReplySlot(), [ReplySlot() for _ in range(2 * MOST_OWED)]
        endpoint.post([post(first)])
        endpoint.post([post(slot) for slot in others])
        peer.say(*(notice("notifications/message", {"level": "info", "data": "x"}) for _ in range(100)))
        peer.say(result(1))
        with trio.fail_after(20):
            await first.wait()
        assert not any(slot.sent for slot in others)
        peer.say(*(request(number, "ask") for number in range(2 * MOST_OWED)))
        await wait_all_tasks_blocked()
        peer.take()
        await wait_all_tasks_blocked()
        assert all(slot.sent for slot in others)
        assert len(peer.heard) == 1 + 4 * MOST_OWED


async def test_a_peer_that_reads_no_more_is_heard_to_its_end():
    """Nobody waits until it has read: it never will."""
    peer = Peer(room=0)
    async with running(peer, answer_at_once, keep) as endpoint:
        peer.say(*(request(number, "ask") for number in range(2 * MOST_OWED)))
        await wait_all_tasks_blocked()
        assert endpoint._carrier.outbox.owed >= MOST_OWED
        peer.close_its_ears()
        peer.say(*(request(number, "ask") for number in range(2 * MOST_OWED)))
        await wait_all_tasks_blocked()
        assert endpoint.serving == 0
        assert endpoint._carrier.outbox.owed < MOST_OWED + 32
        peer.end()
        await endpoint.lost.wait()


@pytest.mark.parametrize("line", [b"[]", b"{}", b"x", b'{"jsonrpc":"2.0","method":"notifications/x"}'])
async def test_after_some_lines_others_have_their_turn(line):
    """Whatever the lines are."""
    peer, turns = Peer(), 0

    async def neighbour():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with running(peer, answer_at_once, keep), run_alongside(neighbour):
        before = turns
        peer.say(*[line] * 1600)
        peer.say(request("x", "ask"))
        while not peer.frames:
            await trio.lowlevel.checkpoint()
        assert turns - before >= 100


# cancels of the peer


async def sleep(*_request):
    await trio.sleep_forever()
    raise AssertionError


async def answer_at_once(*_request):
    return {}


async def answer_after_a_checkpoint(*_request):
    await trio.lowlevel.checkpoint()
    return {}


async def answer_though_cancelled(*_request):
    with trio.CancelScope(shield=True):
        await trio.lowlevel.checkpoint()
    return {}


async def fail_when_cancelled(context, *_request):
    try:
        await trio.sleep_forever()
    finally:
        if context.cancel_requested.is_set():
            raise LookupError("on the way out")


HANDLERS = [sleep, answer_after_a_checkpoint, answer_at_once, answer_though_cancelled, fail_when_cancelled]


@pytest.mark.parametrize("handler", HANDLERS)
async def test_a_request_cancelled_in_the_same_read_gets_no_answer(handler):
    for _ in range(10):  # the order of tasks is random
        assert await served(Peer(), handler, request(1, "m"), cancelled(1)) == []


@pytest.mark.parametrize("request_id", [1, "a"])
async def test_a_cancel_ends_the_handler_and_only_that_one(request_id):
    peer, ended = Peer(), []

    async def handle(context, *_request):
        try:
            await trio.sleep_forever()
        finally:
            ended.append(context.request_id)

    async with running(peer, handle, keep):
        peer.say(request(request_id, "m"), request("other", "m"))
        await wait_all_tasks_blocked()
        peer.say(cancelled(request_id))
        await wait_all_tasks_blocked()
        assert ended == [request_id]
        assert peer.frames == []


@pytest.mark.parametrize(("request_id", "cancelled_id"), [("12", 12), (12, "12"), (-5, "-5")])
async def test_a_cancel_correlates_like_any_id(request_id, cancelled_id):
    assert await served(Peer(), sleep, request(request_id, "m"), cancelled(cancelled_id)) == []


@pytest.mark.parametrize(
    ("first", "other"), [("7", 7), ("1_0", "10"), ("007", 7), (" 5", "5"), ("\u0661", "1"), ("+1", 1)]
)
@pytest.mark.parametrize("swapped", [False, True])
async def test_a_cancel_is_of_the_request_with_exactly_its_id(first, other, swapped):
    if swapped:
        first, other = other, first
    ended = []

    async def handle(context, *_request):
        try:
            await trio.sleep_forever()
        finally:
            ended.append(context.request_id)

    peer = Peer()
    async with running(peer, handle, keep):
        peer.say(request(first, "m"), request(other, "m"))
        await wait_all_tasks_blocked()
        peer.say(cancelled(first))
        await wait_all_tasks_blocked()
        assert ended == [first]


@pytest.mark.parametrize("cancelled_id", ["007", "1_0", " 7", "+7", "\u0667"])
async def test_a_cancel_with_another_text_of_a_number_is_of_none(cancelled_id):
    number = int(cancelled_id)
    heard = await served(Peer(), answer_after_a_checkpoint, request(number, "m"), cancelled(cancelled_id))
    assert heard == [result(number)]


@pytest.mark.parametrize("params", [None, {}, {"requestId": None}, {"requestId": True}, {"requestId": "x"}])
async def test_a_cancel_of_nothing_is_passed_over(params):
    heard = await served(Peer(), answer_at_once, notice("notifications/cancelled", params), request(1, "m"))
    assert heard == [result(1)]


async def test_a_cancel_after_the_answer_is_nobodys():
    peer = Peer()
    async with running(peer, answer_at_once, keep):
        peer.say(request(1, "m"))
        await wait_all_tasks_blocked()
        peer.say(cancelled(1), request(1, "m"))  # and the id may be used again
        await wait_all_tasks_blocked()
        assert peer.heard == [result(1), result(1)]


# notifications


async def test_notifications_come_one_at_a_time_in_the_order_of_the_wire():
    peer, seen, active = Peer(), [], []

    async def notify(context, method, params):
        assert context.request_id is None
        active.append(method)
        assert len(active) == 1
        await trio.lowlevel.checkpoint()
        seen.append((method, params))
        active.pop()

    async with running(peer, on_notify=notify):
        peer.say(*(notice(f"n/{n}", {"n": n}) for n in range(100)))
        peer.say(*(notice(f"n/{n}") for n in range(100, 200)))
        await wait_all_tasks_blocked()
    assert seen == [(f"n/{n}", {"n": n} if n < 100 else None) for n in range(200)]


async def test_a_list_changed_behind_two_thousand_logs_arrives():
    peer, seen, release = Peer(), [], trio.Event()

    async def notify(_context, method, _params):
        await release.wait()
        seen.append(method)

    async with running(peer, on_notify=notify):
        peer.say(*[notice("notifications/message", {"data": "x"})] * 2000, notice("notifications/tools/list_changed"))
        await wait_all_tasks_blocked()
        release.set()
        await wait_all_tasks_blocked()
    assert seen[-1] == "notifications/tools/list_changed"
    assert len(seen) < 1100


async def test_a_handler_that_does_not_wait_loses_none_of_a_burst():
    """It keeps pace with the reader, which takes several messages in a turn."""
    peer, heard = Peer(), []

    async def hear(_context, _method, params):
        heard.append(params["data"])

    async with running(peer, on_notify=hear):
        peer.say(*[notice("notifications/message", {"data": number}) for number in range(3000)])
        await wait_all_tasks_blocked()
    assert heard == list(range(3000))


async def test_a_handler_of_notifications_that_raises_loses_that_one_only(caplog):
    peer, seen = Peer(), []

    async def notify(_context, method, _params):
        if method == "n/1":
            raise LookupError
        seen.append(method)

    async with running(peer, on_notify=notify):
        peer.say(*(notice(f"n/{n}") for n in range(3)))
        await wait_all_tasks_blocked()
    assert seen == ["n/0", "n/2"]
    assert len(caplog.records) == 1


async def test_a_handler_that_hangs_holds_neither_the_reader_nor_the_end():
    peer = Peer()

    async def notify(*_notice):
        await trio.sleep_forever()

    with trio.fail_after(20):
        async with running(peer, answer_at_once, notify) as endpoint:
            peer.say(notice("n"), request(1, "ping"))
            await wait_all_tasks_blocked()
            assert peer.heard == [result(1)]
            peer.end()
            await endpoint.lost.wait()


async def test_the_intercept_sees_every_notification_in_order_and_consumes_what_it_says():
    peer, offered, handled = Peer(), [], []

    def intercept(method, params):
        offered.append((method, params))
        return method.endswith("mine")

    async def notify(_context, method, _params):
        handled.append(method)

    wire = ["notifications/progress", "a/mine", "notifications/cancelled", "b", "c/mine"]
    async with running(peer, on_notify=notify, intercept=intercept):
        peer.say(*(notice(method, {"n": n}) for n, method in enumerate(wire)))
        await wait_all_tasks_blocked()
    assert offered == [(method, {"n": n}) for n, method in enumerate(wire)]
    assert handled == ["notifications/progress", "notifications/cancelled", "b"]


async def test_the_intercept_runs_before_an_answer_that_comes_later_is_given():
    """The SDK's listen streams depend on it."""
    peer, order = Peer(), []

    def intercept(method, _params):
        order.append(method)
        return True

    async def ask(endpoint):
        await endpoint.send_raw_request("subscriptions/listen", None, {"request_id": "listen-1"})
        order.append("answered")

    for _ in range(10):
        async with running(peer, intercept=intercept) as endpoint, trio.open_nursery() as nursery:
            nursery.start_soon(ask, endpoint)
            await wait_all_tasks_blocked()
            peer.say(notice("n/1"), result("listen-1"), notice("n/2"))
    assert order == ["n/1", "n/2", "answered"] * 10


async def test_an_intercept_that_raises_loses_nothing(caplog):
    peer, handled = Peer(), []

    def intercept(*_notice):
        raise LookupError

    async def notify(_context, method, _params):
        handled.append(method)

    async with running(peer, on_notify=notify, intercept=intercept):
        peer.say(notice("n"))
        await wait_all_tasks_blocked()
    assert handled == ["n"]


@pytest.mark.parametrize("params", [[1], "text", 5])
async def test_params_that_are_no_object_are_none(params):
    peer, seen = Peer(), []

    async def notify(_context, _method, given):
        seen.append(given)

    async with running(peer, on_notify=notify):
        peer.say({"jsonrpc": "2.0", "method": "n", "params": params})
        await wait_all_tasks_blocked()
    assert seen == [None]


async def test_the_end_cancels_what_is_being_served():
    peer, ended = Peer(), []

    async def handle(*_request):
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    async with running(peer, handle, keep) as endpoint:
        peer.say(request(1, "m"))
        await wait_all_tasks_blocked()
        peer.end()
        await endpoint.lost.wait()
    assert ended == [True]


# a peer that means harm


def nested(depth):
    return b'{"a":' * depth + b"1" + b"}" * depth


async def nothing(*_request):
    return {}


@pytest.mark.parametrize("depth", [199, 201, 900, 1100, 100_000])
async def test_whatever_is_nested_in_it_a_message_is_survived(depth):
    """A uri, an error's message, an id, parameters: what is nested too deep cannot even be turned into text."""
    messages = [
        b'{"method":"notifications/resources/updated","params":{"uri":%s}}',
        b'{"id":1,"error":{"code":1,"message":%s}}',
        b'{"id":%s,"result":{}}',
        b'{"id":%s,"method":"ping"}',
        b'{"method":%s}',
        b'{"id":5,"method":"roots/list","params":%s}',
    ]
    heard = await served(Peer(), nothing, *(message % nested(depth) for message in messages))
    answered = [message["id"] for message in heard]
    assert answered == [5] or (depth > 1000 and not answered)  # some versions of Python read deeper than others


async def test_an_error_that_is_nested_too_deep_answers_its_call_all_the_same():
    peer, slot = Peer(), ReplySlot()
    async with running(peer, nothing, keep) as endpoint:
        endpoint.post([post(slot)])
        peer.say(b'{"id":%d,"error":{"code":1,"message":"no","data":%s}}' % (peer.id_of(1), nested(900)))
        assert (await slot.wait()).message == "malformed response"


@pytest.mark.parametrize("request_id", ["\ud800", 10**4000, "", "\x00"])
async def test_a_request_is_answered_whatever_its_id(request_id):
    """An answer that had no JSON form ended the connection's tasks."""
    (heard,) = await served(Peer(), nothing, request(request_id, "ping"))
    assert heard["id"] == ("\ufffd" if request_id == "\ud800" else request_id)


async def test_requests_are_begun_in_the_order_in_which_they_came():
    begun = []

    async def handler(context, method, params):
        begun.append(context.request_id)
        await trio.lowlevel.checkpoint()
        return {}

    for _ in range(20):
        await served(Peer(), handler, *(request(number, "m") for number in range(8)))
    assert begun == [*range(8)] * 20


# notifications behind which others wait


@pytest.mark.parametrize(
    ("method", "named", "to"),
    [
        (ACKNOWLEDGED, "listen-1", "session"),
        (ACKNOWLEDGED, "gone", "session"),
        (ACKNOWLEDGED, None, "session"),
        (ACKNOWLEDGED, "relayed", "listener"),
        ("notifications/other", "listen-1", "session"),
        ("notifications/other", "relayed", "listener"),
        ("notifications/other", None, "call"),
    ],
)
async def test_a_notification_about_a_subscription_goes_to_whoever_subscribed(method, named, to):
    """The session's own subscription is none of the clients on whose behalf calls are made meanwhile."""
    peer, heard = Peer(), []
    listener, call = (ReplySlot(relay=Relay("ann")) for _ in range(2))

    def take(method, params):
        heard.append("session")
        return True

    def hearing(name):
        async def hear(*_notice):
            heard.append(name)

        return hear

    async with running(peer, intercept=take) as endpoint, trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.send_raw_request, "subscriptions/listen", None, {"request_id": "listen-1"})
        endpoint.post([post(listener, "subscriptions/listen")])
        endpoint.post([post(call)])
        for name, slot in (("listener", listener), ("call", call)):
            nursery.start_soon(slot.wait, hearing(name))
        await wait_all_tasks_blocked()
        request_id = listener.request_id if named == "relayed" else named
        peer.say(notice(method, {} if named is None else {"_meta": {SUBSCRIPTION_ID_META_KEY: request_id}}))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert heard == [to]


async def test_a_stream_is_no_call_about_which_a_server_may_ask_or_say_something():
    """Nor is it one that has to end before the connection may: a server need never answer it, nor when it ends."""
    peer, heard = Peer(), []
    stream, call = (ReplySlot(relay=Relay(who, listens=listens)) for who, listens in (("ann", True), ("bob", False)))

    async def hear(*_notice):
        heard.append("stream")

    async def hear_call(*_notice):
        heard.append("call")

    async with running(peer) as endpoint, trio.open_nursery() as nursery:
        endpoint.post([post(call)])
        endpoint.post([post(stream, "subscriptions/listen")])
        nursery.start_soon(stream.wait, hear)
        nursery.start_soon(call.wait, hear_call)
        await wait_all_tasks_blocked()
        assert endpoint.in_flight == 1
        peer.say(notice("notifications/other", {}))
        peer.say(notice("notifications/other", {"_meta": {SUBSCRIPTION_ID_META_KEY: stream.request_id}}))
        await wait_all_tasks_blocked()
        stream.cancel()
        endpoint.cancel([stream], "no more")
        peer.say(notice("notifications/other", {}))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sorted(heard) == ["call", "call", "stream"]


@pytest.mark.parametrize(
    ("method", "task_id", "handed_on"),
    [
        (TASK_CHANGED, "t1", {"taskId": "t1"}),
        (TASK_CHANGED, "t" * (SMALL + 1), None),
        (TASK_CHANGED, 1, None),
        ("notifications/other", "t1", None),
    ],
)
async def test_of_a_large_notification_about_a_task_its_id_is_handed_on(method, task_id, handed_on):
    peer, heard, stream = Peer(), [], ReplySlot(relay=Relay("ann", listens=True))

    async def hear(_method, params):
        heard.append(params)

    async with running(peer) as endpoint, trio.open_nursery() as nursery:
        endpoint.post([post(stream, "subscriptions/listen")])
        nursery.start_soon(stream.wait, hear)
        await wait_all_tasks_blocked()
        about = {"taskId": task_id, "text": "x" * SMALL, "_meta": {SUBSCRIPTION_ID_META_KEY: stream.request_id}}
        peer.say(notice(method, about))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert heard == ([] if handed_on is None else [handed_on])


@pytest.mark.parametrize(
    ("ids", "length", "handed_on"),
    [(1000, 250, True), (1, SMALL, True), (1, 1 << 20, False), (11_000, 8, False)],
)
async def test_the_acknowledgement_of_a_stream_may_be_large(ids, length, handed_on):
    """It names all that the stream is about."""
    peer, heard, stream = Peer(), [], ReplySlot(relay=Relay("ann", listens=True))
    tasks = [f"{number:0{length}}" for number in range(ids)]

    async def hear(_method, params):
        heard.append(params["notifications"]["taskIds"])

    async with running(peer) as endpoint, trio.open_nursery() as nursery:
        endpoint.post([post(stream, "subscriptions/listen")])
        nursery.start_soon(stream.wait, hear)
        await wait_all_tasks_blocked()
        stamp = {"_meta": {SUBSCRIPTION_ID_META_KEY: stream.request_id}}
        peer.say(notice(ACKNOWLEDGED, {"notifications": {"taskIds": tasks}} | stamp))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert heard == ([tasks] if handed_on else [])
