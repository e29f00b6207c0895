"""Streams of events over HTTP that end before the answer, or that a server speaks on unasked: opened and resumed."""

import pytest
import trio

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.outcomes import Answered, Dropped
from mcp_nursery.actors.transports.http import streamable

from ...lab.http_peer import (
    HANDSHAKE,
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
    monkeypatch.setattr(streamable, "_RESUME_PAUSE", 0.05)
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
            await connection.watch_lists(lambda kinds: told.append(True), told.append)
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
