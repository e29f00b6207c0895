"""Calls over HTTP and SSE: one exchange each, from its first byte to the outcome, with a peer that speaks raw bytes."""

import json
import socket
import zlib

import httpx2
import pytest
import trio

from mcp_nursery.actors.callbacks import Callbacks, Host
from mcp_nursery.actors.enums import Delivery, Era
from mcp_nursery.actors.jsonrpc.stream import FRAME_LIMIT
from mcp_nursery.actors.outcomes import Answered, Dropped, Loss, Malformed, Rejected
from mcp_nursery.actors.session import handshake
from mcp_nursery.actors.session.base import HandshakeFailed
from mcp_nursery.actors.transports.http import limits, request

from .http_peer import (
    HANDSHAKE,
    MODERN,
    STREAM,
    call,
    chunk,
    connected,
    connector,
    event,
    outcome_of,
    response,
    serving,
    text,
    until,
)

WIRES = {
    "modern": {"era": MODERN},
    "handshake": {"era": HANDSHAKE},
    "sse": {"sse": True},
}
anyhow = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
bodies = pytest.mark.parametrize("wire", [WIRES["modern"], WIRES["handshake"]], ids=["modern", "handshake"])


def test_the_limits_are_those_of_the_docs():
    """P6, A7: by value, so that nobody changes them by accident."""
    assert (limits.POST_LIMIT, limits.REDIRECTS, limits.REFUSAL_LIMIT) == (60.0, 5, 65536)
    assert limits.HEADERS == 1000
    assert FRAME_LIMIT == 64 << 20
    for make in (connector,):
        assert make(type("Peer", (), {"sse": False, "url": "http://x"})).frame_limit == FRAME_LIMIT
        assert make(type("Peer", (), {"sse": True, "url": "http://x"})).frame_limit == FRAME_LIMIT


# when it counts as sent


@anyhow
async def test_a_call_that_is_decided_before_its_task_runs_is_not_sent(wire):
    """The window between begin and the first step: ledger 0, and nothing of it left."""
    async with connected(**wire) as (peer, connection):
        before = len(peer.asked)
        late = [call() for _ in range(20)]
        connection.submit(late)
        for each in late:
            each.slot.expire()
        assert isinstance(await outcome_of(connection, call()), Answered)
        assert peer.ledger == ["once"]
        assert not any(each.slot.sent for each in late)
        assert len(peer.heard("tools/call")) == 1
        assert len(peer.asked) == before + 1


@bodies
async def test_a_connect_that_hangs_sends_nothing(wire, monkeypatch):
    """R2: the time of the POST is over before there was a connection: `not_sent`, whatever was heard of the server."""
    async with connected(**wire) as (peer, connection):
        peer.listening.cancel()
        for stream in list(peer.streams):
            stream.socket.shutdown(socket.SHUT_RDWR)
        fillers = []
        listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        for _ in range(4):  # the queue of those that wait to be accepted is full: the next ones get no answer at all
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        carrier = connection._carrier
        carrier.url = carrier.url.copy_with(port=listener.getsockname()[1])
        monkeypatch.setattr(limits, "POST_LIMIT", 0.3)
        sent = call()
        outcome = await outcome_of(connection, sent)
        for each in (*fillers, listener):
            each.close()
    assert isinstance(outcome, Loss)
    assert "cannot connect to" in outcome.message
    assert sent.slot.delivery is Delivery.NOT_SENT


@pytest.mark.slow
@anyhow
async def test_the_end_of_a_call_is_the_end_of_its_exchange(wire):
    """200 calls that are over leave no connection that waits for them, and no task."""
    async with connected(**wire) as (peer, connection):

        async def hold(asked):
            assert not await asked.stream.receive_some(1)  # until the client has gone

        peer.on_call = hold
        tasks = trio.lowlevel.current_statistics().tasks_living - len(peer.streams)
        for _ in range(20):
            calls = [call(limited=True) for _ in range(10)]
            connection.submit(calls)
            heard = len(peer.heard("tools/call"))
            await until(lambda heard=heard: len(peer.heard("tools/call")) > heard)
            for each in calls:
                each.slot.expire()
                connection.cancel(each.slot)
        await until(lambda: len(peer.streams) < 30)
        await until(lambda: trio.lowlevel.current_statistics().tasks_living - len(peer.streams) <= tasks + 25)
        assert connection.in_flight == 0
        assert not connection._carrier._exchanges
        peer.on_call = peer.answer
        assert isinstance(await outcome_of(connection, call()), Answered)
        assert peer.ledger == ["once"]


@anyhow
async def test_a_call_that_is_over_is_not_sent_along_a_redirect(wire):
    """Timed out with ledger 0 stays ledger 0, whatever its server says later."""
    async with connected(**wire) as (peer, connection):
        go = trio.Event()

        async def redirect_late(asked):
            await go.wait()
            await asked.send(response(307, more=b"location: /moved\r\n"))

        peer.on_call = redirect_late
        sent = call("read")
        connection.submit([sent])
        await until(lambda: peer.heard("tools/call"))
        peer.on_call = peer.answer
        sent.slot.expire()
        connection.cancel(sent.slot)
        go.set()
        await outcome_of(connection, call())
        assert peer.ledger == ["once"]
        assert sent.slot.delivery is Delivery.UNKNOWN


# redirects


@anyhow
@pytest.mark.parametrize("status", [301, 307, 308])
async def test_a_call_is_not_sent_along_a_redirect_but_what_follows_is(wire, status):
    """Q36: whoever redirects may have acted. Whether it is sent again is the caller's rule, and goes straight there."""
    async with connected(**wire) as (peer, connection):

        async def act_and_redirect(asked):
            if asked.path == b"/moved":
                await asked.say(asked.execute())
            else:
                asked.execute()
                await asked.send(response(status, more=b"location: /moved\r\n"))

        peer.on_call = act_and_redirect
        sent = call()
        outcome = await outcome_of(connection, sent)
        assert outcome == Dropped(f"HTTP {status} redirect to {peer.origin}: calls are not sent along redirects")
        assert outcome.again
        assert (peer.ledger, sent.slot.delivery) == (["once"], Delivery.UNKNOWN)
        assert isinstance(await outcome_of(connection, call()), Answered)
        assert len(peer.ledger) == 2


@anyhow
async def test_a_redirect_that_leads_nowhere_is_not_for_good(wire):
    """A place that only leads on, to itself perhaps, takes one more call; the next begins where the server is."""
    async with connected(**wire) as (peer, connection):

        async def lead_in_a_circle(asked):
            await asked.send(response(307, more=b"location: /circle\r\n"))

        async def answer_at_home(asked):
            await (lead_in_a_circle if asked.path == b"/circle" else peer.answer)(asked)

        peer.on_call = lead_in_a_circle
        assert isinstance(await outcome_of(connection, call()), Dropped)
        peer.on_call = answer_at_home
        assert isinstance(await outcome_of(connection, call()), Dropped)
        assert isinstance(await outcome_of(connection, call()), Answered)
        assert peer.ledger == ["once"]


@anyhow
@pytest.mark.parametrize(
    ("status", "location", "told"),
    [
        (302, "/moved", "{origin}, which is not followed: the method would change to GET"),
        (303, "/moved", "{origin}, which is not followed: the method would change to GET"),
        (307, "http://127.0.0.1:1/moved", "http://127.0.0.1:1, which is not followed: another origin"),
        (308, "https://127.0.0.1/moved", "https://127.0.0.1:443, which is not followed: another origin"),
        (301, "http://me:it@{host}/", "{origin}, which is not followed: its URL holds a user name"),
    ],
)
async def test_a_redirect_that_is_not_followed_says_where_and_why(wire, status, location, told):
    """It ends the call, which may have been carried out, and does so once."""
    async with connected(**wire) as (peer, connection):

        async def redirect(asked):
            asked.execute()
            where = location.format(host=peer.origin[7:]).encode()
            await asked.send(response(status, more=b"location: %s\r\n" % where))

        peer.on_call = redirect
        outcome = await outcome_of(connection, sent := call())
        assert outcome.problem == f"HTTP {status} redirect to {told.format(origin=peer.origin)}"
        assert not outcome.again
        assert (peer.ledger, sent.slot.delivery) == (["once"], Delivery.UNKNOWN)
        peer.on_call = peer.answer
        assert isinstance(await outcome_of(connection, call()), Answered)


@anyhow
async def test_a_redirect_to_nowhere_ends_the_call(wire):
    async with connected(**wire) as (peer, connection):

        async def redirect(asked):
            await asked.send(response(304))

        peer.on_call = redirect
        outcome = await outcome_of(connection, call())
        assert outcome.problem == "HTTP 304 instead of an answer"


async def test_other_requests_go_along_redirects_but_not_for_ever():
    async with connected() as (peer, connection):

        async def loop(asked):
            if asked.message.get("method") != "tools/list":
                return False
            await asked.send(response(307, more=b"location: /mcp\r\n"))
            return True

        peer.on_other = loop
        before = len(peer.asked)
        with pytest.raises(Exception, match=f"HTTP 307 redirect to {peer.origin}: more than 5 in a row"):
            await connection.list_tools()
        assert len(peer.asked) - before == 6


# exchanges that bring no answer


def _another_id(asked):
    return {**text(asked.message, "another's"), "id": 4711}


NO_ANSWERS = {
    "no id": lambda asked: {**text(asked.message, "whose"), "id": None},
    "another id": _another_id,
    "a notification": lambda asked: {"jsonrpc": "2.0", "method": "notifications/message", "params": {}},
    "a request": lambda asked: {"jsonrpc": "2.0", "id": 1, "method": "ping"},
    "an error without an id": lambda asked: {"jsonrpc": "2.0", "id": None, "error": {"code": -1, "message": "no"}},
    "an empty batch": lambda asked: [],
}


@bodies
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("make", NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_an_exchange_without_the_answer_decides_its_call(wire, streams, make):
    """Without a time limit it would wait for ever; its server may have acted."""
    async with connected(**wire) as (peer, connection):

        async def answer(asked):
            asked.execute()
            said = make(asked)
            body = json.dumps(said).encode()
            await asked.send(STREAM + event(body) + chunk(b"") if streams else response(200, body))

        peer.on_call = answer
        outcome = await outcome_of(connection, sent := call())
        assert isinstance(outcome, Dropped)
        assert sent.slot.delivery is Delivery.UNKNOWN
        peer.on_call = peer.answer
        assert isinstance(await outcome_of(connection, call()), Answered)
        assert connection.in_flight == 0


@bodies
@pytest.mark.parametrize(
    ("said", "told"),
    [
        (response(202), "HTTP 202 with application/json instead|answered, but not this request|not valid JSON-RPC"),
        (response(204), ""),
        (response(200, b"<p>", b"text/html"), "HTTP 200 with text/html instead of an answer"),
        (STREAM + chunk(b": nothing\n\n") + chunk(b""), "closed the stream"),
        (STREAM + event(b"{}", b"other") + chunk(b""), "closed the stream"),
        (b"SSH-2.0\r\n\r\n", "broke"),
        (response(200, b"{}" * 9)[:-3], "broke"),
    ],
)
async def test_answers_that_are_none_decide_the_call(wire, said, told):
    async with connected(**wire) as (peer, connection):

        async def answer(asked):
            asked.execute()
            await asked.send(said)
            await asked.stream.aclose()

        peer.on_call = answer
        outcome = await outcome_of(connection, sent := call())
        assert isinstance(outcome, (Dropped, Rejected))
        assert peer.ledger == ["once"]
        assert sent.slot.delivery is not Delivery.NOT_SENT
        peer.on_call = peer.answer
        assert isinstance(await outcome_of(connection, call()), Answered)


@bodies
async def test_an_answer_counts_in_its_own_exchange_only(wire):
    """The answer to B in A's exchange is nobody's; B gets its own, and A does not get B's."""
    async with connected(**wire) as (peer, connection):
        both, turn = [], trio.Event()

        async def cross(asked):
            both.append(asked)
            if len(both) == 2:
                turn.set()
            await turn.wait()
            mine, other = (both[0], both[1]) if asked is both[0] else (both[1], both[0])
            if mine is both[0]:
                await asked.say(text(other.message, "crossed"))
            else:
                await until(lambda: first.slot.decided)
                await asked.say(text(mine.message, "own"))

        peer.on_call = cross
        first, second = call(), call()
        connection.submit([first])
        await until(lambda: both)
        connection.submit([second])
        with trio.fail_after(20):
            assert isinstance(await first.slot.wait(), Dropped)
            outcome = await second.slot.wait()
        assert outcome.result["content"][0]["text"] == "own"


@bodies
@pytest.mark.parametrize("apart", [False, True])
async def test_what_is_said_twice_is_not_the_next_calls_answer(wire, apart):
    """A body more on a connection that is kept: at worst the next call does not know, and the one after it does."""
    async with connected(**wire) as (peer, connection):

        async def twice(asked):
            said = response(200, json.dumps(asked.execute()).encode())
            if apart:
                await asked.send(said)
                await trio.sleep(0.05)
                await asked.send(said)
            else:
                await asked.send(said * 2)

        peer.on_call = twice
        assert isinstance(await outcome_of(connection, call()), Answered)
        await trio.sleep(0.1)
        peer.on_call = peer.answer
        second = await outcome_of(connection, call())
        assert isinstance(second, Answered if apart else (Answered, Dropped))
        assert isinstance(await outcome_of(connection, call()), Answered)


# what the server asks in the middle of a call


async def _accept(_message):
    from mcp_types import ElicitResult

    return ElicitResult(action="accept", content={})


HOST = Host("peer", Callbacks(elicit=_accept))
QUESTION = {
    "jsonrpc": "2.0",
    "id": "q-1",
    "method": "elicitation/create",
    "params": {"message": "Well?", "requestedSchema": {"type": "object", "properties": {}}},
}


@pytest.mark.parametrize("wire", [WIRES["handshake"], WIRES["sse"]], ids=["handshake", "sse"])
@pytest.mark.parametrize("status", [202, 500, 307])
async def test_an_answer_of_ours_that_is_not_taken_ends_who_waits_for_it(wire, status):
    """The server waits for it, and so would the call, for ever."""
    async with connected(**wire, host=HOST) as (peer, connection):
        taken = trio.Event()

        async def ask(asked):
            asked.execute()
            if peer.sse:
                await asked.send(response(202))
                await peer.stream.send_all(event(QUESTION))
                peer.nursery.start_soon(go_on, asked)
            else:
                await asked.send(STREAM + event(QUESTION))
                await go_on(asked)

        async def go_on(asked):
            await taken.wait()
            to = peer.stream if peer.sse else asked.stream
            await to.send_all(event(text(asked.message, "thanks")) + (b"" if peer.sse else chunk(b"")))

        async def refuse(asked):
            if asked.message.get("id") != "q-1":
                return False
            await asked.send(response(status, more=b"location: http://127.0.0.1:1/\r\n"))
            if status == 202:
                taken.set()
            return True

        peer.on_call, peer.on_other = ask, refuse
        outcome = await outcome_of(connection, sent := call())
        if status == 202:
            assert isinstance(outcome, Answered)
        else:
            assert isinstance(outcome, Loss if peer.sse else Dropped)
            assert "request was not accepted: HTTP" in str(outcome)
            assert sent.slot.delivery is Delivery.UNKNOWN


# limits


def _big(asked, size, *, id_first):
    message = text(asked.message, "x" * size)
    ordered = message if id_first else {"result": message["result"], "jsonrpc": "2.0", "id": message["id"]}
    return json.dumps(ordered).encode()


@pytest.mark.slow
@anyhow
@pytest.mark.parametrize("streams", [False, True])
async def test_twelve_megabytes_are_an_answer(wire, streams):
    """Q37: over every way to answer."""
    async with connected(**wire) as (peer, connection):

        async def answer(asked):
            body = _big(asked, 12_000_000, id_first=True)
            if peer.sse:
                await asked.send(response(202))
                await peer.stream.send_all(event(body))
            else:
                await asked.send(STREAM + event(body) + chunk(b"") if streams else response(200, body))

        peer.on_call = answer
        outcome = await outcome_of(connection, call())
        assert len(outcome.result["content"][0]["text"]) == 12_000_000


@anyhow
@pytest.mark.parametrize("id_first", [True, False])
@pytest.mark.parametrize("how", ["known", "chunked", "streams"])
async def test_over_the_limit_one_call_fails_and_the_connection_lives(wire, id_first, how):
    """A7: the error names the size and the limit; others on the connection notice nothing."""
    async with connected(**wire, frame_limit=1 << 20) as (peer, connection):
        held = trio.Event()

        async def answer(asked):
            if asked.message["params"]["name"] == "read":
                await held.wait()
                await asked.say(asked.execute())
                return
            body = _big(asked, 3 << 20, id_first=id_first)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            if peer.sse:
                await asked.send(response(202))
                await peer.stream.send_all(event(body))
            elif how == "known":
                await asked.send(response(200, body))
            elif how == "chunked":
                await asked.send(head + chunk(body) + chunk(b""))
            else:
                await asked.send(STREAM + event(body) + chunk(b""))

        peer.on_call = answer
        connection.submit([other := call("read")])
        outcome = await outcome_of(connection, sent := call())
        assert isinstance(outcome, Malformed)
        assert "an answer of " in outcome.problem
        assert outcome.problem.endswith("over the limit of 1,048,576")
        assert sent.slot.delivery is Delivery.ANSWERED
        held.set()
        with trio.fail_after(20):
            assert isinstance(await other.slot.wait(), Answered)


async def test_on_sse_an_event_too_large_that_names_nobody_is_the_end():
    """Nobody could tell whose call waits for ever."""
    async with connected(sse=True, frame_limit=1 << 20) as (peer, connection):

        async def answer(asked):
            await asked.send(response(202))
            await peer.stream.send_all(event(b"{" + b"x" * (2 << 20)))

        peer.on_call = answer
        outcome = await outcome_of(connection, call())
        assert isinstance(outcome, Loss)
        assert "its beginning and end do not say which request it answers" in outcome.message


async def test_a_list_over_the_limit_says_so():
    async with connected(frame_limit=1 << 20) as (peer, connection):

        async def list_much(asked):
            if asked.message.get("method") != "tools/list":
                return False
            await asked.send(response(200, _big(asked, 2 << 20, id_first=True)))
            return True

        peer.on_other = list_much
        with pytest.raises(Exception, match=r"tools/list failed: an answer of .* over the limit of 1,048,576"):
            await connection.list_tools()


# streams that are taken up again


@pytest.mark.parametrize("at", ["e-1", "é ☃", "with a space "])
async def test_a_stream_is_taken_up_again_where_it_ended(at):
    async with connected(HANDSHAKE) as (peer, connection):

        async def begin(asked):
            asked.execute()
            peer.pending = asked.message
            await asked.send(STREAM + event(b"", more=b"id: %s\nretry: 100\n" % at.encode()) + chunk(b""))

        async def resume(asked):
            if asked.method != b"GET" or asked.header(b"last-event-id") is None:
                return False
            assert asked.header(b"last-event-id") == at.strip().encode()
            await asked.send(STREAM + event(text(peer.pending, "late")) + chunk(b""))
            return True

        peer.on_call, peer.on_other = begin, resume
        outcome = await outcome_of(connection, call())
        assert outcome.result["content"][0]["text"] == "late"
        assert peer.ledger == ["once"]


@pytest.mark.parametrize("status", [405, 500])
async def test_a_stream_that_cannot_be_taken_up_again_leaves_the_call_unknown(status):
    """The refusal is one of the resumption, and none of the call."""
    async with connected(HANDSHAKE) as (peer, connection):

        async def begin(asked):
            await asked.send(STREAM + event(b"", more=b"id: e-1\nretry: 100\n") + chunk(b""))

        async def refuse(asked):
            if asked.method == b"GET":
                await asked.send(response(status))
            return asked.method == b"GET"

        peer.on_call, peer.on_other = begin, refuse
        outcome = await outcome_of(connection, sent := call())
        assert isinstance(outcome, Dropped)
        assert f"resuming it failed: HTTP {status}" in outcome.problem
        assert sent.slot.delivery is Delivery.UNKNOWN


async def test_the_end_of_a_call_ends_the_polling_for_it():
    async with connected(HANDSHAKE) as (peer, connection):
        polls = []

        async def begin(asked):
            await asked.send(STREAM + event(b"", more=b"id: e-1\nretry: 100\n") + chunk(b""))

        async def again(asked):
            if asked.method != b"GET":
                return False
            polls.append(asked)
            await asked.send(STREAM + event(b"", more=b"id: e-%d\n" % len(polls)) + chunk(b""))
            return True

        peer.on_call, peer.on_other = begin, again
        connection.submit([sent := call(limited=True)])
        await until(lambda: len(polls) > 1)
        sent.slot.expire()
        connection.cancel(sent.slot)
        seen = len(polls)
        await trio.sleep(0.5)
        assert len(polls) <= seen + 1


async def test_what_a_server_says_unasked_is_heard_again_after_an_end(monkeypatch):
    """L6: the stream of an older server is opened with `initialized`, and again when it has ended."""
    monkeypatch.setattr(request, "_RETRY", 0.05)
    async with serving(HANDSHAKE) as peer:
        opened = []

        async def stream(asked):
            if asked.method != b"GET":
                return False
            opened.append(asked)
            change = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
            await asked.send(STREAM + event(change, more=b"id: %d\nretry: 50\n" % len(opened)) + chunk(b""))
            return True

        peer.on_other = stream
        async with connector(peer).connect() as connection:
            await connection.handshake(None)
            await connection.list_tools()
            told = []
            await connection.watch_lists(lambda kinds: told.append(True))
            await until(lambda: len(opened) > 2 and len(told) > 1)
            assert opened[1].header(b"last-event-id") == b"1"
            assert opened[0].header(b"mcp-session-id") == b"one"


async def test_an_answer_among_what_a_server_says_unasked_is_one():
    """A server is not to answer there, and clients that read all streams alike never notice."""
    async with serving(HANDSHAKE) as peer:
        unasked = []

        async def stream(asked):
            if asked.method != b"GET":
                return False
            await asked.send(STREAM)
            unasked.append(asked)
            return True

        async def answer_there(asked):
            await asked.send(STREAM + event(b"", more=b"id: e-1\n"))
            await unasked[0].send(event(asked.execute()))

        peer.on_other, peer.on_call = stream, answer_there
        async with connector(peer).connect() as connection:
            await connection.handshake(None)
            await connection.list_tools()
            await until(lambda: unasked)
            assert isinstance(await outcome_of(connection, call()), Answered)
            (asked,) = peer.heard("tools/call")
            await until(lambda: asked.stream not in peer.streams)  # nobody waits there any more
            assert not peer.heard("notifications/cancelled")


# who it is


async def test_a_late_answer_to_initialize_opens_no_session(monkeypatch):
    """Q35: what lost the race for the era changes nothing: its session id goes with no request, and is not ended."""
    monkeypatch.setattr(handshake, "PATIENCE", 0.1)
    monkeypatch.setattr(handshake, "PRECEDENCE", 0.1)
    async with serving(HANDSHAKE) as peer:

        async def late(asked):
            message = asked.message
            if message.get("method") == "server/discover":
                await until(lambda: peer.heard("initialize"))
                peer.era = MODERN
                return False
            if message.get("method") == "initialize":
                await until(lambda: peer.heard("tools/list"))
            return False

        peer.on_other = late
        async with connector(peer).connect() as connection:
            assert (await connection.handshake(None)).era is Era.MODERN
            await connection.list_tools()
            assert isinstance(await outcome_of(connection, call()), Answered)
        modern = [asked for asked in peer.asked if asked.header(b"mcp-protocol-version") == MODERN.encode()]
        assert modern
        assert all(asked.header(b"mcp-session-id") is None for asked in modern)
        assert not [asked for asked in peer.asked if asked.method == b"DELETE"]


class Failing(httpx2.Auth):
    """Authorises nothing after the first requests."""

    def __init__(self):
        self.left = 3

    async def async_auth_flow(self, request):
        self.left -= 1
        if self.left < 0:
            raise LookupError("no\ntoken")
        request.headers["authorization"] = "Bearer mine"
        yield request


@bodies
async def test_an_authorisation_that_fails_wants_a_person(wire):
    """P5: nothing is sent without it."""
    auth = Failing()
    auth.left = 10
    async with connected(**wire, auth=auth) as (peer, connection):
        assert isinstance(await outcome_of(connection, call()), Answered)
        assert peer.asked[-1].header(b"authorization") == b"Bearer mine"
        auth.left = 0
        outcome = await outcome_of(connection, sent := call())
        assert (outcome.message, outcome.needs_auth) == ("authorisation failed: no token", True)
        assert sent.slot.delivery is Delivery.NOT_SENT
        assert peer.ledger == ["once"]


@anyhow
async def test_a_refused_call_was_not_sent_and_its_neighbours_may_have_been(wire):
    """P5: 401 says that it was not begun; what else is in flight is lost with the connection."""
    async with connected(**wire) as (peer, connection):

        async def answer(asked):
            if asked.message["params"]["name"] == "read":
                asked.execute()
                await trio.sleep_forever()
            await asked.send(response(401))

        peer.on_call = answer
        connection.submit([other := call("read")])
        await until(lambda: peer.ledger)
        outcome = await outcome_of(connection, refused := call())
        assert (outcome.message, outcome.needs_auth) == ("HTTP 401 Unauthorized", True)
        assert (refused.slot.sent, refused.slot.delivery) == (True, Delivery.NOT_SENT)
        with trio.fail_after(20):
            assert isinstance(await other.slot.wait(), Loss)
        assert other.slot.delivery is Delivery.UNKNOWN


# bodies


async def test_answers_are_read_whole_and_as_they_are():
    """Whatever the coding and the number of parts."""
    async with connected() as (peer, connection):

        async def answer(asked):
            packer = zlib.compressobj(wbits=31)
            packed = packer.compress(_big(asked, 100_000, id_first=True)) + packer.flush()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n"
            parts = b"".join(chunk(packed[at : at + 10]) for at in range(0, len(packed), 10))
            await asked.send(head + b"transfer-encoding: chunked\r\n\r\n" + parts + chunk(b""))

        peer.on_call = answer
        outcome = await outcome_of(connection, call())
        assert len(outcome.result["content"][0]["text"]) == 100_000


async def test_a_long_error_page_is_an_error_all_the_same():
    async with connected() as (peer, connection):

        async def refuse(asked):
            await asked.send(response(500, b"x" * 2**20))

        peer.on_call = refuse
        outcome = await outcome_of(connection, call())
        assert (outcome.code, outcome.message) == (500, "HTTP 500 Internal Server Error")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b'{"error": 1}', b'{"error": {"code": "x", "message": 1}}', b"\xff"]
)
async def test_a_refusal_that_is_no_error_of_the_protocol(body):
    async with connected() as (peer, connection):

        async def refuse(asked):
            await asked.send(response(499, body))

        peer.on_call = refuse
        outcome = await outcome_of(connection, call())
        assert (outcome.code, outcome.message, outcome.data) == (499, "HTTP 499", None)


async def test_the_query_goes_to_the_endpoint_only(caplog):
    """L17: and into no text."""
    caplog.set_level("DEBUG")
    async with connected(query="?key=5ecret") as (peer, connection):

        async def redirect(asked):
            await asked.send(response(307, more=b"location: /other?mine=1\r\n"))

        peer.on_call = redirect
        await outcome_of(connection, call())
        peer.on_call = peer.answer
        await outcome_of(connection, call())
        paths = [asked.path for asked in peer.asked]
        assert set(paths[:-1]) == {b"/mcp?key=5ecret"}
        assert paths[-1] == b"/other?mine=1"
    assert "5ecret" not in caplog.text


async def test_proxies_of_the_environment_are_used(monkeypatch):
    """K2: as other programs do."""
    async with serving() as peer:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, peer.origin)
        monkeypatch.setenv("no_proxy", "")
        far = type("Far", (), {"sse": False, "url": "http://far.invalid/mcp"})
        async with connector(far).connect() as connection:
            await connection.handshake(None)
        assert peer.asked[0].path == b"http://far.invalid/mcp"

        async def refuse(asked):
            await asked.send(response(403))
            return True

        peer.on_other = refuse
        far = type("Far", (), {"sse": False, "url": "https://far.invalid/mcp"})
        async with connector(far).connect() as connection:
            with pytest.raises(Exception, match=r"the proxy did not connect to far\.invalid: 403"):
                await connection.handshake(None)
        assert peer.asked[-1].head.startswith(b"CONNECT far.invalid:443 HTTP/1.1\r\n")


# how an SSE connection begins


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [
        (b"http://127.0.0.1:1/messages", "the endpoint on the stream is at http://127.0.0.1:1, another origin"),
        (b"http://x:y/", "the endpoint on the stream is not a URL"),
        (b"\xff", "the endpoint on the stream is not a URL"),
    ],
)
async def test_an_endpoint_on_the_stream_that_is_none_of_this_server(endpoint, told):
    """P6: nothing is sent there, whatever it says."""
    async with serving(sse=True) as peer:

        async def point(asked):
            await asked.send(STREAM + event(endpoint, b"endpoint"))
            await trio.sleep_forever()

        peer.on_other = point
        async with connector(peer).connect() as connection:
            with pytest.raises(HandshakeFailed) as caught:
                await connection.handshake(None)
            assert (caught.value.loss.message, caught.value.loss.unusable) == (told, True)
        assert len(peer.asked) == 1


@pytest.mark.parametrize(
    ("location", "told", "times"),
    [
        (b"/sse", "redirect to {origin}", 6),
        (b"http://127.0.0.1:1/", "redirect to http://127.0.0.1:1, which is not followed: another origin", 1),
    ],
)
async def test_a_stream_that_is_redirected(location, told, times):
    async with serving(sse=True) as peer:

        async def redirect(asked):
            await asked.send(response(302, more=b"location: %s\r\n" % location))
            return True

        peer.on_other = redirect
        async with connector(peer).connect() as connection:
            with pytest.raises(HandshakeFailed, match=told.format(origin=peer.origin)):
                await connection.handshake(None)
        assert len(peer.asked) == times


async def test_a_stream_without_authorisation():
    async with serving(sse=True) as peer:
        auth = Failing()
        auth.left = 0
        async with connector(peer, auth=auth).connect() as connection:
            with pytest.raises(HandshakeFailed) as caught:
                await connection.handshake(None)
            assert caught.value.loss == Loss("authorisation failed: no token", needs_auth=True)
        assert not peer.asked


async def test_where_the_unasked_stream_is_moved_to_is_no_place_for_requests():
    """Only what was posted moves what is posted."""
    async with serving(HANDSHAKE) as peer:

        async def move(asked):
            if asked.method != b"GET" or asked.path == b"/stream":
                return False
            await asked.send(response(307, more=b"location: /stream\r\n"))
            return True

        peer.on_other = move
        async with connector(peer).connect() as connection:
            await connection.handshake(None)
            await until(lambda: any(asked.path == b"/stream" for asked in peer.asked))
            await connection.list_tools()
            assert isinstance(await outcome_of(connection, call()), Answered)
        assert {asked.path for asked in peer.asked if asked.method == b"POST"} == {b"/mcp"}


# how a mute server is given up


@bodies
async def test_a_mute_post_is_given_up_and_its_server_told(wire, monkeypatch):
    """P6, Q16: by the POST's own limit, unless the caller has set one."""
    async with connected(**wire) as (peer, connection):

        async def hold(asked):
            await asked.stream.receive_some(1)

        peer.on_call = hold
        monkeypatch.setattr(limits, "POST_LIMIT", 0.3)
        outcome = await outcome_of(connection, sent := call())
        assert outcome == Dropped(f"{peer.origin[7:]} did not answer within 0.3 s", again=False)
        assert sent.slot.delivery is Delivery.UNKNOWN
        connection.submit([longer := call(limited=True)])
        await trio.sleep(0.6)
        assert not longer.slot.decided
        if wire is WIRES["handshake"]:
            await until(lambda: peer.heard("notifications/cancelled"))


async def test_an_exchange_that_crashes_is_one_calls_failure(monkeypatch, caplog):
    """Whatever a library raises that nobody foresaw."""
    async with connected() as (_, connection):

        async def crash(*_given):
            raise LookupError("5ecret")

        with monkeypatch.context() as patched:
            patched.setattr(request, "read_body", crash)
            outcome = await outcome_of(connection, call())
        assert outcome == Dropped("the exchange crashed: LookupError")
        assert isinstance(await outcome_of(connection, call()), Answered)
    assert "an HTTP exchange crashed; please report it" in caplog.text


@bodies
async def test_a_tool_that_repeats_arguments_in_headers_wrongly_is_not_offered_where_that_counts(wire):
    """The protocol of 2026-07-28 forbids to call it; before it such a remark means nothing."""
    async with connected(**wire) as (peer, connection):
        good = {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "A"}}}
        bad = {"type": "object", "properties": {"a": {"type": "object", "x-mcp-header": "A"}}}

        async def tools(asked):
            if asked.message.get("method") != "tools/list":
                return False
            await peer._result(
                asked, {"tools": [{"name": "good", "inputSchema": good}, {"name": "bad", "inputSchema": bad}]}
            )
            return True

        peer.on_other = tools
        names = [tool.name for tool in await connection.list_tools()]
        assert names == (["good"] if peer.era == MODERN else ["good", "bad"])
        await outcome_of(connection, call("good", arguments={"a": "x"}))
        assert peer.asked[-1].header(b"mcp-param-a") == (b"x" if peer.era == MODERN else None)
