"""Redirects over HTTP and SSE: what goes along them, what does not, and what is said of those that are not followed."""

import pytest
import trio

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.outcomes import Answered, Dropped
from mcp_nursery.actors.session.base import HandshakeFailed

from ...lab.http_peer import (
    HANDSHAKE,
    anyhow,
    call,
    connected,
    connector,
    outcome_of,
    response,
    serving,
    until,
)


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
