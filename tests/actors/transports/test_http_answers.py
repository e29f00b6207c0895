"""Answers over HTTP and SSE: which of them count, how large they may be, and what an exchange without one means."""

import json
import zlib

import pytest
import trio

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.outcomes import Answered, Dropped, Loss, Malformed

from ...lab.http_peer import (
    STREAM,
    anyhow,
    bodies,
    call,
    chunk,
    connected,
    event,
    outcome_of,
    response,
    text,
    until,
)


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
async def test_an_answer_that_cannot_be_read_decides_no_call_but_that_of_its_own_exchange(wire):
    """Whatever id it names."""
    async with connected(**wire) as (peer, connection):
        held, end = [], trio.Event()

        async def answer(asked):
            if asked.message["params"]["name"] == "read":
                held.append(asked.message["id"])
                await end.wait()
                await peer.answer(asked)
            else:
                number, more = b"1" * 1001, b"x" * 70_000
                body = b'{"jsonrpc":"2.0","id":%d,"result":{"a":%s,"b":"%s"}}' % (held[0], number, more)
                await asked.send(response(200, body))

        peer.on_call = answer
        connection.submit([other := call("read")])
        await until(lambda: held)
        assert isinstance(await outcome_of(connection, call()), Dropped)
        assert not other.slot.decided
        end.set()
        with trio.fail_after(20):
            assert isinstance(await other.slot.wait(), Answered)


UNENDED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"


def _whole(asked):
    return json.dumps(text(asked.message, "done")).encode()


GARBLED = "an answer that is not valid JSON-RPC"
BROKEN_BODIES = {
    "cut, without a length": (lambda asked: UNENDED + _whole(asked)[:-1], GARBLED),
    "cut before its first byte, without a length": (lambda asked: UNENDED, GARBLED),
    "cut, with a length": (lambda asked: response(200, _whole(asked))[:-1], "broke"),
    "cut, in chunks": (lambda asked: STREAM.replace(b"text/event-stream", b"application/json") + b"9\r\n{", "broke"),
    "empty": (lambda asked: response(200), GARBLED),
    "empty, of no kind": (lambda asked: response(204, b"", b""), "HTTP 204 with no content type instead of an answer"),
    "accepted": (lambda asked: response(202), GARBLED),
    "accepted, of no kind": (lambda asked: response(202, b"", b""), "HTTP 202 with no content type instead"),
    "HTML as JSON": (lambda asked: response(200, b"<html>Sign in</html>"), GARBLED),
    "HTML": (lambda asked: response(200, b"<p>", b"text/html"), "HTTP 200 with text/html instead of an answer"),
    "two answers in one": (lambda asked: response(200, _whole(asked) * 2), GARBLED),
    "JSON with more behind it": (lambda asked: response(200, _whole(asked) + b"}"), GARBLED),
    "no stream": (lambda asked: STREAM + chunk(b": nothing\n\n") + chunk(b""), "closed the stream"),
    "another event": (lambda asked: STREAM + event(b"{}", b"other") + chunk(b""), "closed the stream"),
    "HTML in an event": (lambda asked: STREAM + event(b"<html>") + chunk(b""), "closed the stream"),
    "cut, in an event": (lambda asked: STREAM + event(_whole(asked)[:-1]) + chunk(b""), "closed the stream"),
    "an event that is cut": (lambda asked: STREAM + event(_whole(asked))[:-9], "broke"),
    "no HTTP": (lambda asked: b"SSH-2.0\r\n\r\n", "broke"),
}


@bodies
@pytest.mark.parametrize(("said", "told"), BROKEN_BODIES.values(), ids=BROKEN_BODIES)
async def test_only_a_response_with_its_id_answers_a_call(wire, said, told):
    """Its server has acted, and nobody knows with what outcome."""
    async with connected(**wire) as (peer, connection):

        async def answer(asked):
            asked.execute()
            await asked.send(said(asked))
            await asked.stream.aclose()

        peer.on_call = answer
        outcome = await outcome_of(connection, sent := call())
        assert isinstance(outcome, Dropped)
        assert told in outcome.problem
        assert (peer.ledger, sent.slot.delivery) == (["once"], Delivery.UNKNOWN)
        peer.on_call = peer.answer
        assert isinstance(await outcome_of(connection, call()), Answered)


@pytest.mark.parametrize("cut", [1, 9, None], ids=["in the data", "in the event", "another event"])
async def test_only_a_response_with_its_id_answers_a_call_over_sse(cut):
    """The stream ends with it, and the connection with the stream."""
    async with connected(sse=True) as (peer, connection):

        async def answer(asked):
            asked.execute()
            whole = _whole(asked)
            said = {1: event(whole[:-1]), 9: event(whole)[:-9], None: event(whole, b"other")}[cut]
            await asked.send(response(202))
            await peer.stream.send_all(said)
            await peer.stream.aclose()

        peer.on_call = answer
        assert isinstance(await outcome_of(connection, sent := call()), Loss)
        assert (peer.ledger, sent.slot.delivery) == (["once"], Delivery.UNKNOWN)


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
    """Q37: the error names the size and the limit; others on the connection notice nothing."""
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


_ODD_ERROR = b'{"error": {"code": "x", "message": 1}}'


@pytest.mark.parametrize(
    ("body", "words"),
    [
        *((body, "") for body in (b"", b"[]", b"null", b"{}", b"\xff", b"<html>No</html>")),
        *((body, f": {body.decode()}") for body in (b'{"error": 1}', _ODD_ERROR)),
        (b"Your trial ended\n on  Monday", ": Your trial ended on Monday"),
        (b'"Your trial ended"', ": Your trial ended"),
        (b'{"error": "trial", "error_description": "Your trial ended"}', ": Your trial ended"),
        (b'{"error": "trial"}', ": trial"),
        (b'{"error": {"message": "Your trial ended", "code": "trial"}}', ": Your trial ended"),
        (b'{"detail": "Your trial ended"}', ": Your trial ended"),
        (b'{"because": "trial"}', ': {"because": "trial"}'),
        (b"so " * 200, ": " + "so " * 99 + "so…"),
    ],
)
async def test_a_refusal_that_is_no_error_of_the_protocol(body, words):
    """What its body says to a person is part of the error."""
    async with connected() as (peer, connection):

        async def refuse(asked):
            await asked.send(response(499, body))

        peer.on_call = refuse
        outcome = await outcome_of(connection, call())
        assert (outcome.code, outcome.message, outcome.data) == (499, f"HTTP 499{words}", None)
