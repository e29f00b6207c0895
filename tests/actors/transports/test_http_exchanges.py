"""Calls over HTTP and SSE: one exchange each, from its first byte to the outcome, with a peer that speaks raw bytes."""

import socket
from contextlib import asynccontextmanager

import httpx2
import pytest
import trio

from mcp_nursery.actors.callbacks import Callbacks, Host
from mcp_nursery.actors.enums import Delivery, Era
from mcp_nursery.actors.http import limits
from mcp_nursery.actors.jsonrpc.carrier import FRAME_LIMIT
from mcp_nursery.actors.limits import CALL_SETTINGS
from mcp_nursery.actors.outcomes import Answered, Dropped, Loss
from mcp_nursery.actors.session import handshake
from mcp_nursery.actors.session.base import HandshakeFailed
from mcp_nursery.actors.transports.http import streamable as request

from ...lab.http_peer import (
    HANDSHAKE,
    MODERN,
    STREAM,
    WIRES,
    RenewingAuth,
    anyhow,
    bodies,
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


def test_the_limits_are_those_of_the_docs():
    """P6, Q37: by value, so that nobody changes them by accident."""
    assert (limits.POST_LIMIT, limits.MOST_REDIRECTS, limits.REFUSAL_LIMIT) == (60.0, 5, 65536)
    assert limits.MOST_HEADERS == 1000
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


# who it is


async def test_a_late_answer_to_initialize_opens_no_session(monkeypatch):
    """Q35: what lost the race for the era changes nothing: its session id goes with no request, and is not ended."""
    monkeypatch.setattr(handshake, "PROBE_TIMEOUT", 0.1)
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
        assert (refused.slot.sent, refused.slot.delivery) == (False, Delivery.NOT_SENT)
        with trio.fail_after(20):
            assert isinstance(await other.slot.wait(), Loss)
        assert other.slot.delivery is Delivery.UNKNOWN


REFUSALS = {
    "401": response(401),
    "step-up": response(403, more=b'www-authenticate: Bearer error="insufficient_scope", scope="more"\r\n'),
}
refusals = pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)


@asynccontextmanager
async def refused_call(wire, refusal, error=None):
    """A call that was refused once, and waits for another token; what is answered to later ones may be set."""
    auth = RenewingAuth(error)
    async with connected(**wire, auth=auth) as (peer, connection):

        async def refuse(asked):
            peer.on_call = peer.answer
            await asked.send(refusal)

        peer.on_call = refuse
        sent = call(limited=True)
        connection.submit([sent])
        with trio.fail_after(20):
            await auth.waiting.wait()
        yield peer, connection, auth, sent


@anyhow
@refusals
async def test_a_call_that_waits_for_another_token_is_not_sent_until_it_is_sent_again(wire, refusal):
    """R2: nothing of it is with the server meanwhile."""
    async with refused_call(wire, refusal) as (peer, _, auth, waiting):
        assert waiting.slot.delivery is Delivery.NOT_SENT
        begun, end = trio.Event(), trio.Event()

        async def hold(asked):
            begun.set()
            await end.wait()
            await peer.answer(asked)

        peer.on_call = hold
        auth.ready.set()
        with trio.fail_after(20):
            await begun.wait()
            assert waiting.slot.delivery is Delivery.UNKNOWN
            end.set()
            assert isinstance(await waiting.slot.wait(), Answered)
    assert peer.ledger == ["once"]


@anyhow
@refusals
async def test_a_connection_that_is_lost_had_not_sent_who_waits_for_another_token(wire, refusal):
    """R2: whichever exchange meets the end of the tokens first, and whatever ends the connection."""
    async with refused_call(wire, refusal) as (peer, connection, _, waiting):

        async def hold(asked):
            asked.execute()
            await trio.sleep_forever()

        peer.on_call = hold
        connection.submit([begun := call("read")])
        await until(lambda: peer.ledger)
        connection._endpoint.lose(Loss("the network is down"))
        assert (await waiting.slot.wait(), waiting.slot.delivery) == (begun.slot.outcome, Delivery.NOT_SENT)
        assert begun.slot.delivery is Delivery.UNKNOWN
    assert peer.ledger == ["read"]


@anyhow
async def test_a_refused_call_that_is_given_up_is_not_cancelled_at_its_server(wire):
    """R2, R4: it knows of none."""
    async with refused_call(wire, REFUSALS["401"]) as (peer, connection, _, waiting):
        waiting.slot.expire()
        connection.cancel(waiting.slot)
        assert waiting.slot.delivery is Delivery.NOT_SENT
        assert isinstance(await outcome_of(connection, call()), Answered)
        assert (peer.ledger, peer.heard("notifications/cancelled")) == (["once"], [])


@anyhow
async def test_a_refused_call_whose_tokens_issuer_breaks_off_was_not_sent(wire):
    """R2: what authorisation sends by itself says nothing of the call."""
    async with refused_call(wire, REFUSALS["401"], httpx2.ReadError("gone")) as (peer, _, auth, waiting):
        auth.ready.set()
        with trio.fail_after(20):
            assert isinstance(await waiting.slot.wait(), Dropped)
        assert (waiting.slot.delivery, peer.ledger) == (Delivery.NOT_SENT, [])


@anyhow
async def test_a_wait_for_another_token_ends_with_the_time_of_the_post(wire, monkeypatch):
    """P6: the server has answered, so it is not mute, and not away either."""
    monkeypatch.setattr(limits, "POST_LIMIT", 0.3)
    auth = RenewingAuth()
    async with connected(**wire, auth=auth) as (peer, connection):

        async def refuse(asked):
            await asked.send(response(401))

        peer.on_call = refuse
        outcome = await outcome_of(connection, sent := call())
        host = peer.origin.removeprefix("http://")
        assert outcome.message == f"{host} wants another token, and the request was not sent again within 0.3 s"
        assert (sent.slot.delivery, outcome.needs_auth) == (Delivery.NOT_SENT, False)


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
            with pytest.raises(
                Exception,
                match=r"the proxy http://127\.0\.0\.1:\d+ \(https_proxy\) did not connect to far\.invalid: 403",
            ):
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


async def test_a_stream_without_authorisation():
    async with serving(sse=True) as peer:
        auth = Failing()
        auth.left = 0
        async with connector(peer, auth=auth).connect() as connection:
            with pytest.raises(HandshakeFailed) as caught:
                await connection.handshake(None)
            assert caught.value.loss == Loss("authorisation failed: no token", needs_auth=True)
        assert not peer.asked


# how a mute server is given up


@pytest.mark.slow
@bodies
async def test_a_mute_post_is_given_up_and_its_server_told(wire, monkeypatch):
    """P6, Q16: by the POST's own limit, unless the caller has set one."""
    async with connected(**wire) as (peer, connection):

        async def hold(asked):
            await asked.stream.receive_some(1)

        peer.on_call = hold
        monkeypatch.setattr(limits, "POST_LIMIT", 0.3)
        outcome = await outcome_of(connection, sent := call())
        problem = f"{peer.origin[7:]} did not answer within 0.3 s ({CALL_SETTINGS} gives calls more)"
        assert outcome == Dropped(problem, again=False)
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
        assert outcome == Dropped("the exchange ended with an unforeseen error, which the log has")
        assert isinstance(await outcome_of(connection, call()), Answered)
    assert "an HTTP exchange ended with an unforeseen error; please report it" in caplog.text


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
