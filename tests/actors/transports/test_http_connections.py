"""The connections under the calls: what leaves on them, which are used again, and what counts as a sign of life."""

import contextlib
import errno
import json
import socket
from functools import partial

import httpx2
import pytest
import trio
import trio.testing

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.http import limits
from mcp_nursery.actors.outcomes import Answered, Dropped, Malformed, Rejected
from mcp_nursery.actors.transports.http import exchange

from ...lab.http_peer import (
    HANDSHAKE,
    MODERN,
    STREAM,
    anyhow,
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

bodies = pytest.mark.parametrize("era", [MODERN, HANDSHAKE])


class Deciding(httpx2.Auth):
    """Takes so long that the call is over before its request is written."""

    slot = None

    async def async_auth_flow(self, request):
        if self.slot is not None:
            self.slot.expire()
        yield request


@bodies
async def test_a_call_that_is_over_when_its_head_is_written_does_not_leave(era):
    """Its connection has begun to speak, and its body never follows: ledger 0, and `not_sent` is true."""
    auth = Deciding()
    async with connected(era, auth=auth) as (peer, connection):
        late = call()
        auth.slot = late.slot
        connection.submit([late])
        await until(lambda: connection.in_flight == 0 or not connection._carrier._exchanges)
        auth.slot = None
        assert isinstance(await outcome_of(connection, call()), Answered)
        assert (peer.ledger, len(peer.heard("tools/call"))) == (["once"], 1)
        assert late.slot.delivery is Delivery.NOT_SENT


@pytest.mark.parametrize("status", [200, 404, 307])
async def test_a_head_of_thousands_of_lines_is_refused(status):
    """Each layer makes something of each line, all in one turn of the loop: tens of thousands fit into what is read."""
    async with connected() as (peer, connection):
        many = b"".join(b"x-%d: y\r\n" % n for n in range(998))

        async def answer(asked, more=b""):
            body = json.dumps(asked.execute()).encode()
            await asked.send(response(status if more else 200, body, more=more))

        peer.on_call = partial(answer, more=many + b"location: /mcp\r\n")
        assert await outcome_of(connection, call()) == Malformed("an answer with 1,001 headers, and the limit is 1,000")
        peer.on_call = partial(answer, more=many)
        assert not isinstance(await outcome_of(connection, call()), Malformed)
        peer.on_call = answer
        assert isinstance(await outcome_of(connection, call()), Answered)


@bodies
async def test_a_connection_that_is_out_of_step_is_not_used_again(era):
    """It brought the answer to something else; whatever comes next on it could be taken for the next call's."""
    async with connected(era) as (peer, connection):
        used = []

        async def answer_another(asked):
            used.append(asked.stream)
            message = asked.execute()
            if len(used) == 1:
                message["id"] = 999
            await asked.say(message)

        peer.on_call = answer_another
        assert isinstance(await outcome_of(connection, call()), Dropped)
        for _ in range(3):
            assert isinstance(await outcome_of(connection, call()), Answered)
        assert used[0] not in used[1:]
        assert len(set(used)) == 2


def _whole(message, *, streamed):
    """An answer, with its head."""
    if streamed:
        return STREAM + event(message) + chunk(b"")
    return response(200, json.dumps(message).encode())


@bodies
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("ahead", [True, False])
async def test_what_stands_behind_an_answer_is_nobody_s(era, streamed, ahead):
    """Two answers in one send: the second waits where only the next call reads. Nobody knows the next one's id."""
    async with connected(era) as (peer, connection):

        async def answer_twice(asked):
            peer.on_call = peer.answer
            said = asked.execute()
            behind = {**text(said, "made up"), "id": said["id"] + ahead}
            await asked.send(_whole(said, streamed=streamed) + _whole(behind, streamed=streamed))

        peer.on_call = answer_twice
        assert isinstance(await outcome_of(connection, call()), Answered)
        assert isinstance(await outcome_of(connection, call()), Dropped)
        for _ in range(2):
            after = await outcome_of(connection, call())
            assert isinstance(after, Answered)
            assert after.result["content"][0]["text"] == "done"


@bodies
async def test_a_stream_that_stands_behind_an_answer_costs_one_call(era):
    """The answers that follow would each be read by the call after: the connection is not used again."""
    async with connected(era) as (peer, connection):
        used, held = [], []

        async def answer_late(asked):
            """The answer to a call is sent when the next one is read, on a connection where one was answered ahead."""
            said = _whole(asked.execute(), streamed=True)
            used.append(asked.stream)
            if len(used) == 1:
                await asked.send(said + STREAM + chunk(b""))
            elif asked.stream is used[0]:
                held.append(said)
                if len(held) > 1:
                    await asked.send(held.pop(0))
            else:
                await asked.send(said)

        peer.on_call = answer_late
        assert isinstance(await outcome_of(connection, call()), Answered)
        assert isinstance(await outcome_of(connection, call()), Dropped)
        for _ in range(3):
            assert isinstance(await outcome_of(connection, call()), Answered)
        assert used[0] is used[1]
        assert used[0] not in used[2:]


async def test_an_answer_ahead_of_its_call_is_nobody_s_over_sse():
    """So many at once that the next call is on its way while they are read."""
    async with connected(sse=True) as (peer, connection):

        async def answer_many(asked):
            said = asked.execute()
            ahead = event({**text(said, "made up"), "id": said["id"] + 1})
            await asked.send(response(202))
            await peer.stream.send_all(event(said) + 100 * ahead)

        peer.on_call = answer_many
        for _ in range(3):
            answer = await outcome_of(connection, call())
            assert isinstance(answer, Answered)
            assert answer.result["content"][0]["text"] == "done"


@bodies
async def test_a_stream_that_does_not_end_with_its_answer_is_closed(era):
    """One that does is used again; the other is let go soon, and with it its task."""
    async with connected(era) as (peer, connection):
        closed = trio.Event()
        used = []

        async def answer_on_a_stream(asked):
            used.append(asked.stream)
            await asked.send(STREAM + event(asked.execute()))
            if len(used) < 3:
                await asked.send(chunk(b""))
            else:
                assert not await asked.stream.receive_some(1)
                closed.set()

        peer.on_call = answer_on_a_stream
        for _ in range(3):
            assert isinstance(await outcome_of(connection, call()), Answered)
            await until(lambda: not connection._carrier._exchanges)
        with trio.fail_after(10):
            await closed.wait()
        assert used[0] is used[1]
        assert connection.in_flight == 0


@bodies
@pytest.mark.parametrize(("status", "is_life"), [(403, True), (500, False), (502, False), (503, False)])
async def test_a_gateway_s_word_is_no_sign_of_life(era, status, is_life):
    """It says nothing of the server behind it: a probe is due as if nothing had come."""
    async with connected(era) as (peer, connection):

        async def refuse(asked):
            await asked.send(response(status))

        peer.on_call = refuse
        before = connection.heard_at
        assert isinstance(await outcome_of(connection, call()), Dropped | Rejected)
        assert (connection.heard_at > before) is is_life


@bodies
async def test_who_is_told_that_a_call_was_given_up(era):
    """Since 2026-07-28 the end of the exchange says so, and nothing else is sent; before, a notification does."""
    async with connected(era) as (peer, connection):
        gone = trio.Event()

        async def hold(asked):
            assert not await asked.stream.receive_some(1)
            gone.set()

        peer.on_call = hold
        given_up = call()
        connection.submit([given_up])
        await until(lambda: peer.heard("tools/call"))
        peer.on_call = peer.answer
        given_up.slot.cancel()
        connection.cancel(given_up.slot)
        with trio.fail_after(10):
            await gone.wait()
        assert isinstance(await outcome_of(connection, call()), Answered)
        if era == HANDSHAKE:
            await until(lambda: peer.heard("notifications/cancelled"))
        told = [asked.message["params"]["requestId"] for asked in peer.heard("notifications/cancelled")]
        assert told == ([given_up.slot.request_id] if era == HANDSHAKE else [])


@pytest.mark.slow
@pytest.mark.parametrize("was_open", [True, False])
async def test_a_stream_that_its_session_had_and_that_is_not_found_any_more(was_open):
    """The server has forgotten the session, as one does that was started again: noticed at once, not by a probe. One
    that never offered the stream says the same, and goes on."""
    async with serving(HANDSHAKE) as peer:
        asked_for = []

        async def stream_once(asked):
            if asked.method != b"GET":
                return False
            asked_for.append(asked)
            if was_open and len(asked_for) == 1:
                await asked.send(STREAM + chunk(b""))
            else:
                await asked.send(response(404))
            return True

        peer.on_other = stream_once
        async with connector(peer).connect() as connection:
            await connection.handshake(None)
            await connection.list_tools()
            await until(lambda: len(asked_for) == 1 + was_open)
            if was_open:
                with trio.fail_after(10):
                    assert "404" in (await connection.lost()).message
            else:
                assert isinstance(await outcome_of(connection, call()), Answered)


def under_way(connection):
    return sum(pool.under_way for pool in connection._carrier.client._pools)


async def busy(peer, connection, count=3):
    """As many calls at once, each on a connection of its own, and all answered."""
    released, waiting, turn = trio.Event(), [], trio.Lock()

    async def hold(asked):
        waiting.append(asked)
        await released.wait()
        async with turn:
            await peer.answer(asked)

    peer.on_call = hold
    calls = [call() for _ in range(count)]
    connection.submit(calls)
    await until(lambda: len(waiting) == count)
    released.set()
    for each in calls:
        assert isinstance(await each.slot.wait(), Answered)
    peer.on_call = peer.answer


@pytest.mark.slow
@anyhow
async def test_connections_on_which_nothing_is_under_way_are_closed_by_time(wire, monkeypatch):
    """They stayed open until the next request, twenty for each server; only the stream of an SSE server stays."""
    monkeypatch.setattr(limits, "CONNECTION_IDLE_LIMIT", 0.3)
    async with connected(**wire) as (peer, connection):
        for _ in range(2):
            await busy(peer, connection)
            open_then = len(peer.streams)
            assert open_then >= 3  # they are there for the next ones
            await until(lambda: len(peer.streams) == int(peer.sse))
        made = peer.connections
        assert isinstance(await outcome_of(connection, call()), Answered)
        assert isinstance(await outcome_of(connection, call()), Answered)
        assert peer.connections == made + 1  # which was used again


@anyhow
async def test_as_many_calls_at_once_again_find_all_their_connections(wire, monkeypatch):
    """A pool that keeps fewer than there were opens the others anew each time, which takes longer than the calls."""
    monkeypatch.setattr(limits, "CONNECTION_IDLE_LIMIT", 60)  # on a busy machine as well
    async with connected(**wire, backlog=200) as (peer, connection):
        await busy(peer, connection, 100)
        made = peer.connections
        for _ in range(2):
            await busy(peer, connection, 100)
        assert peer.connections == made


class Reading(httpx2.Auth):
    """Reads each answer before anybody else does."""

    requires_response_body = True

    def auth_flow(self, request):
        yield request


async def test_answers_that_an_authorisation_has_read_leave_room_in_their_pool():
    async with connected(auth=Reading()) as (_, connection):
        for _ in range(20):
            assert isinstance(await outcome_of(connection, call()), Answered)
        assert [pool.under_way for pool in connection._carrier.client._pools] == [0]


class Renewing(httpx2.Auth):
    """Has another token when the first is refused."""

    async def async_auth_flow(self, request):
        request.headers["authorization"] = "Bearer old"
        refused = yield request
        if refused.status_code == 401:
            request.headers["authorization"] = "Bearer new"
            yield request


@bodies
@pytest.mark.parametrize("more", [b"", b"content-encoding: gzip\r\n"], ids=["plain", "encoded"])
async def test_the_body_of_a_refusal_is_read_within_bounds_before_another_token_is_sent(era, more):
    """A body without end held the call up and took all memory; a small one may decode to a large one."""
    async with connected(era, auth=Renewing()) as (peer, connection):

        async def refuse(asked):
            if asked.header(b"authorization") == b"Bearer new":
                await peer.answer(asked)
                return
            head = b"HTTP/1.1 401 No\r\nwww-authenticate: Bearer\r\n"
            await asked.send(head + more + b"transfer-encoding: chunked\r\n\r\n")
            with contextlib.suppress(trio.BrokenResourceError):  # its reader has closed it
                while True:
                    await asked.send(chunk(b"x" * (64 << 10)))

        peer.on_call = refuse
        with trio.fail_after(20):
            assert isinstance(await outcome_of(connection, call()), Answered)
        assert peer.ledger == ["once"]


async def test_cancellations_are_few_at_once_and_do_not_last(monkeypatch):
    """Of a server that hangs, the host's sockets were used up by calls that their callers had given up."""
    monkeypatch.setattr(exchange, "CANCELLATION_LIMIT", 3.0)
    async with connected(HANDSHAKE, backlog=200) as (peer, connection):

        async def hang(_asked):
            await trio.sleep_forever()

        async def take_no_cancellation(asked):
            if asked.message.get("method") == "notifications/cancelled":
                await trio.sleep_forever()

        peer.on_call, peer.on_other = hang, take_no_cancellation
        calls = [call() for _ in range(2 * exchange.MOST_CANCELLATIONS)]
        connection.submit(calls)
        await until(lambda: len(peer.heard("tools/call")) == len(calls))
        for each in calls:
            each.slot.cancel()
            connection.cancel(each.slot)
        await until(lambda: len(peer.heard("notifications/cancelled")) >= exchange.MOST_CANCELLATIONS)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(peer.heard("notifications/cancelled")) == exchange.MOST_CANCELLATIONS
        await until(lambda: not under_way(connection))
        peer.on_call = peer.answer
        assert isinstance(await outcome_of(connection, call()), Answered)


@pytest.mark.parametrize(("most", "told"), [(256, 48), (20, 20)])
async def test_a_server_that_is_slow_is_told_of_all_cancelled_calls_that_may_wait(most, told, monkeypatch):
    """Those that waited for a place had no time left when they had one."""
    monkeypatch.setattr(exchange, "CANCELLATION_LIMIT", 3.0)
    monkeypatch.setattr(exchange, "MOST_CANCELLATIONS_KEPT", most)
    async with connected(HANDSHAKE, backlog=200) as (peer, connection):

        async def hang(_asked):
            await trio.sleep_forever()

        async def take_cancellations_slowly(asked):
            if asked.message.get("method") == "notifications/cancelled":
                await trio.sleep(1.8)

        peer.on_call, peer.on_other = hang, take_cancellations_slowly
        for _ in range(2):  # there is as much room for them afterwards
            calls = [call() for _ in range(3 * exchange.MOST_CANCELLATIONS)]
            begun = len(peer.heard("tools/call"))
            connection.submit(calls)
            await until(lambda: len(peer.heard("tools/call")) == begun + len(calls))  # noqa: B023
            for each in calls:
                each.slot.cancel()
            connection.cancel(*(each.slot for each in calls))
            await until(lambda: not under_way(connection))
        assert len(peer.heard("notifications/cancelled")) == 2 * told


@bodies
@pytest.mark.parametrize("error", [errno.EMFILE, errno.EADDRNOTAVAIL])
async def test_a_host_without_room_for_a_connection_fails_that_call_alone(era, error, monkeypatch):
    """It says nothing of the server, whose other calls go on."""
    async with connected(era) as (peer, connection):
        release = trio.Event()

        async def hold(asked):
            await release.wait()
            await peer.answer(asked)

        peer.on_call = hold
        going_on = [call() for _ in range(5)]  # more than there are idle connections
        connection.submit(going_on)
        await until(lambda: len(peer.heard("tools/call")) == len(going_on))

        class NoRoom(socket.socket):
            def __init__(self, *_, **__):
                raise OSError(error, "no room")

        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", NoRoom)
            outcome = await outcome_of(connection, sent := call())
        assert "no room for a connection to 127.0.0.1" in outcome.problem
        assert sent.slot.delivery is Delivery.NOT_SENT
        release.set()
        for each in going_on:
            assert isinstance(await each.slot.wait(), Answered)
        assert isinstance(await outcome_of(connection, call()), Answered)


@bodies
@pytest.mark.parametrize("calls_go_on", [False, True])
async def test_idle_connections_beside_a_long_call_are_closed_by_time(era, calls_go_on, monkeypatch):
    """Whether anything else is sent or not; one that is in use goes on being used."""
    monkeypatch.setattr(limits, "CONNECTION_IDLE_LIMIT", 0.5)
    async with connected(era, backlog=200) as (peer, connection):
        held, release, last = [], trio.Event(), trio.Event()

        async def hold(asked):
            held.append(asked)
            await release.wait()
            if held.index(asked) >= 40:
                await last.wait()
            await peer.answer(asked)

        peer.on_call = hold
        calls = [call() for _ in range(48)]
        connection.submit(calls)
        await until(lambda: len(held) == 48)
        peer.on_call = peer.answer
        release.set()
        await until(lambda: under_way(connection) == 8)
        with trio.fail_after(20):
            while len(peer.streams) > 8 + calls_go_on:
                if calls_go_on:
                    assert isinstance(await outcome_of(connection, call()), Answered)
                await trio.testing.wait_all_tasks_blocked(0.005)
        made, end = peer.connections, trio.current_time() + 2.5
        while calls_go_on and trio.current_time() < end:
            assert isinstance(await outcome_of(connection, call()), Answered)
            await trio.testing.wait_all_tasks_blocked(0.005)
        assert peer.connections <= made + 2  # and not one whenever others have been idle for so long
        last.set()
        for each in calls:
            assert isinstance(await each.slot.wait(), Answered)


@anyhow
async def test_connections_of_a_burst_are_closed_by_time_while_calls_go_on(wire, monkeypatch):
    async with connected(**wire, backlog=200) as (peer, connection):
        await busy(peer, connection, 40)
        assert len(peer.streams) >= 40
        monkeypatch.setattr(limits, "CONNECTION_IDLE_LIMIT", 0.2)
        with trio.fail_after(20):
            while len(peer.streams) > 1 + peer.sse:
                assert isinstance(await outcome_of(connection, call()), Answered)
                await trio.testing.wait_all_tasks_blocked(0.005)


async def test_the_end_of_an_unused_session_that_is_not_answered_keeps_no_connections(monkeypatch):
    async with connected(HANDSHAKE, backlog=100) as (peer, connection):

        async def hang(asked):
            if asked.method == b"DELETE":
                await trio.sleep_forever()

        peer.on_other = hang
        await busy(peer, connection, 8)
        monkeypatch.setattr(limits, "CONNECTION_IDLE_LIMIT", 0.2)
        monkeypatch.setattr(limits, "POST_LIMIT", 3.0)
        connection._carrier.discard_session("other")
        await until(lambda: any(asked.method == b"DELETE" for asked in peer.asked))
        await until(lambda: len(peer.streams) == 1)  # that of the server that hangs
        await until(lambda: not under_way(connection))


@bodies
async def test_calls_that_were_given_up_leave_room_in_the_first_pool(era):
    async with connected(era, backlog=200) as (peer, connection):

        async def hold(_asked):
            await trio.sleep_forever()

        peer.on_call = hold
        calls = [call() for _ in range(40)]
        connection.submit(calls)
        await until(lambda: len(peer.heard("tools/call")) == 40)
        for each in calls:
            each.slot.expire()
            connection.cancel(each.slot)
        await until(lambda: connection.in_flight == 0)
        peer.on_call = peer.answer
        await busy(peer, connection, 16)
        client = connection._carrier.client
        assert [pool.under_way for pool in client._pools] == [0] * len(client._pools)


@anyhow
async def test_a_call_that_takes_longer_than_an_idle_connection_lasts_is_not_disturbed(wire, monkeypatch):
    monkeypatch.setattr(limits, "CONNECTION_IDLE_LIMIT", 0.1)
    async with connected(**wire) as (peer, connection):
        await busy(peer, connection)

        async def late(asked):
            await trio.testing.wait_all_tasks_blocked(0.3)
            await peer.answer(asked)

        peer.on_call = late
        assert isinstance(await outcome_of(connection, call()), Answered)
        await until(lambda: len(peer.streams) == int(peer.sse))


async def test_the_stream_for_what_is_said_unasked_outlasts_idle_connections(monkeypatch):
    monkeypatch.setattr(limits, "CONNECTION_IDLE_LIMIT", 0.1)
    async with serving(HANDSHAKE) as peer:
        streams = []

        async def stream(asked):
            if asked.method != b"GET":
                return False
            await asked.send(STREAM)
            streams.append(asked)
            return True

        peer.on_other = stream
        async with connector(peer).connect() as connection:
            await connection.handshake(None)
            await connection.list_tools()
            await until(lambda: peer.streams == {streams[0].stream})
            told = []
            await connection.watch_lists(told.append, told.append)
            await streams[0].send(event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
            await until(lambda: told)
            assert len(streams) == 1


async def test_what_a_balancer_asks_to_be_told_again_goes_with_all_requests(monkeypatch):
    """A session lives on one machine behind it, which it finds by a cookie: for the stream, and after a pause too."""
    monkeypatch.setattr(limits, "CONNECTION_IDLE_LIMIT", 0.1)
    async with serving(HANDSHAKE) as peer:
        result, cookie = peer._result, b"set-cookie: machine=7; Path=/\r\n"

        async def stick(asked, said, more=b""):
            await result(asked, said, more + (cookie if more else b""))

        peer._result = stick
        async with connector(peer).connect() as connection:
            await connection.handshake(None)
            await connection.list_tools()
            await until(lambda: not peer.streams)
            assert isinstance(await outcome_of(connection, call()), Answered)
        (began,) = [at for at, asked in enumerate(peer.asked) if asked.message.get("method") == "initialize"]
        told = {asked.method: asked.header(b"cookie") for asked in peer.asked[began + 1 :]}
        assert told == {b"POST": b"machine=7", b"GET": b"machine=7", b"DELETE": b"machine=7"}
