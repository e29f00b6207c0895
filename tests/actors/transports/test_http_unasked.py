"""The stream for what a server says unasked over HTTP: a server is connected when it is open, or refused."""

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mcp_nursery.actors.callbacks import Callbacks, Host
from mcp_nursery.actors.http import limits
from mcp_nursery.actors.outcomes import Answered
from mcp_nursery.actors.transports.http import streamable
from mcp_nursery.actors.transports.http.exchange import MOST_RESPONSES

from ...lab.http_peer import (
    HANDSHAKE,
    STREAM,
    WIRES,
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


@asynccontextmanager
async def greeted(on_get, *host):
    """A peer that sees to the stream in its own way, a connection to it, and an event of the end of the handshake."""
    settled = trio.Event()

    async def see(asked):
        if asked.method == b"GET":
            await on_get(asked)
        return asked.method == b"GET"

    async with serving(HANDSHAKE) as peer, trio.open_nursery() as nursery:
        peer.on_other = see
        async with connector(peer).connect(*host) as connection:

            async def settle():
                with trio.fail_after(20):
                    await connection.handshake(None)
                settled.set()

            nursery.start_soon(settle)
            yield peer, connection, settled
            nursery.cancel_scope.cancel()


def hold(status):
    """See to the stream late: when `release` is set."""
    release = trio.Event()

    async def late(asked):
        await release.wait()
        if status is None:
            await asked.send(STREAM)
            await trio.sleep_forever()
        await asked.send(response(status))

    return late, release


@pytest.mark.parametrize("status", [None, 405, 404, 503], ids=["open", "405", "404", "503"])
async def test_a_server_is_connected_when_its_stream_is_open_or_refused(status, monkeypatch):
    monkeypatch.setattr(limits, "STREAM_LIMIT", 20.0)
    late, release = hold(status)
    async with greeted(late) as (peer, _, settled):
        await until(lambda: peer.heard("notifications/initialized"))
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert not settled.is_set()
        release.set()
        with trio.fail_after(10):
            await settled.wait()


async def test_a_stream_without_a_head_is_waited_for_within_a_limit(monkeypatch):
    """Some servers send it with the first thing that they say."""
    monkeypatch.setattr(limits, "STREAM_LIMIT", 0.2)
    late, release = hold(None)
    async with greeted(late) as (_, connection, settled):
        with trio.fail_after(10):
            await settled.wait()
        await connection.list_tools()
        release.set()
        assert isinstance(await outcome_of(connection, call()), Answered)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["closes", "says nothing", "ends"])
async def test_a_stream_that_breaks_is_opened_again_before_the_server_is_connected(way, monkeypatch):
    """Nobody hears what is said meanwhile."""
    monkeypatch.setattr(limits, "STREAM_LIMIT", 20.0)
    opened = []

    async def second(asked):
        opened.append(asked)
        if len(opened) == 1 and way != "ends":
            await (asked.stream.aclose() if way == "closes" else asked.send(b"HTTP/1.1 200 OK\r\n"))
            await asked.stream.aclose()
        else:
            await asked.send(STREAM + (b"0\r\n\r\n" if way == "ends" else b""))
            if way != "ends":
                await trio.sleep_forever()

    async with greeted(second) as (_, _, settled):
        with trio.fail_after(10):
            await settled.wait()
        assert len(opened) == (1 if way == "ends" else 2)


@pytest.mark.parametrize("status", [400, 404, 405, 406, 501])
async def test_a_stream_that_is_refused_is_not_asked_for_again(status, monkeypatch):
    """L6: most servers offer none, and each was asked once a second for ever."""
    monkeypatch.setattr(streamable, "_RESUME_PAUSE", 0.01)
    asked_for = []

    async def refuse(asked):
        asked_for.append(asked)
        await asked.send(response(status))

    async with greeted(refuse) as (_, connection, settled):
        await settled.wait()
        await connection.list_tools()
        await trio.testing.wait_all_tasks_blocked(0.3)
        assert len(asked_for) == 1


@pytest.mark.slow
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
async def test_a_stream_that_is_refused_for_now_is_asked_for_again(status, monkeypatch):
    """L6: by 409 if its server has not yet seen the end of the last one, by a proxy while its server starts."""
    monkeypatch.setattr(streamable, "_RESUME_PAUSE", 0.01)
    asked_for, opened = [], trio.Event()

    async def refuse(asked):
        asked_for.append(asked)
        if len(asked_for) == 1:
            await asked.send(response(status))
        else:
            await asked.send(STREAM)
            opened.set()
            await trio.sleep_forever()

    async with greeted(refuse) as (_, _, settled):
        with trio.fail_after(10):
            await settled.wait()
            await opened.wait()


@pytest.mark.parametrize("retry", [b"", b"retry: 100\n"], ids=["no word", "retry"])
@pytest.mark.parametrize("says", [False, True], ids=["mute", "talks"])
async def test_a_stream_that_ends_at_once_is_asked_for_after_growing_pauses(retry, says, monkeypatch, caplog):
    """L6: whatever its events say about time; only one that brings a message begins the pauses anew."""
    monkeypatch.setattr(streamable, "_STREAM_PAUSES", (0.0, 0.02, 0.05, 0.07))
    monkeypatch.setattr(streamable, "_RESUME_PAUSE", 0.01)
    monkeypatch.setattr(streamable, "_SOONEST", 0.01)
    caplog.set_level("DEBUG", logger=streamable.__name__)
    word = event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}) if says else b""

    async def end(asked):
        await asked.send(STREAM + chunk(b"id: 1\n" + retry.replace(b"100", b"10") + b"data:\n\n") + word + chunk(b""))

    async with greeted(end) as (_, _, settled):
        await settled.wait()
        await until(lambda: caplog.text.count("asked for again") >= 5)
    paused = [record.args[0] for record in caplog.records if "asked for again" in record.msg][:5]
    assert paused == ([0.01] * 5 if says else [0.01, 0.02, 0.05, 0.07, 0.07])


async def _accept(_message):
    from mcp_types import ElicitResult

    return ElicitResult(action="accept", content={})


async def test_what_is_asked_on_it_during_the_first_call_is_heard():
    """P2: ten of ten such calls hung where the stream was opened a fifth of a second late."""
    question = {"message": "Well?", "requestedSchema": {"type": "object", "properties": {}}}
    streams, answered = [], trio.Event()

    async def late(asked):
        await trio.testing.wait_all_tasks_blocked(0.2)
        await asked.send(STREAM)
        streams.append(asked)
        await trio.sleep_forever()

    async def ask(asked):
        for stream in streams:
            await stream.send(event({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": question}))
        await answered.wait()
        await asked.say(asked.execute())

    async with greeted(late, Host("peer", Callbacks(elicit=_accept))) as (peer, connection, settled):
        peer.on_call = ask
        talk = peer._talk

        async def hear(asked):
            if asked.message.get("id") == "q":
                assert asked.message["result"]["action"] == "accept"
                answered.set()
            await talk(asked)

        peer._talk = hear
        await settled.wait()
        await connection.list_tools()
        assert isinstance(await outcome_of(connection, call()), Answered)


@pytest.mark.parametrize("wire", ["handshake", "sse"])
async def test_a_server_that_asks_without_end_gets_so_many_answers_at_once(wire):
    """Q19: each is a POST of its own; all of them together would hold up everybody, and take all connections. It is not
    heard until it has taken them, and none is lost."""
    released, taken = trio.Event(), []

    async def take(asked):
        if "result" not in asked.message:
            return False
        taken.append(asked.message["id"])
        await released.wait()
        await asked.send(response(202))
        return True

    async def ask(asked):
        ours = asked.stream if peer.stream is None else peer.stream
        await asked.send(STREAM if peer.stream is None else response(202))
        for number in range(500):
            await ours.send_all(event({"jsonrpc": "2.0", "id": number, "method": "ping"}))
        await ours.send_all(event(text(asked.message, "done")))
        if peer.stream is None:
            await ours.send_all(chunk(b""))

    async with connected(**WIRES[wire]) as (peer, connection):
        peer.on_other, peer.on_call = take, ask
        connection.submit([sent := call()])
        await until(lambda: len(taken) >= MOST_RESPONSES)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(taken) == MOST_RESPONSES
        assert trio.lowlevel.current_statistics().tasks_living < 200  # the others were not read yet
        released.set()
        with trio.fail_after(20):
            assert isinstance(await sent.slot.wait(), Answered)
        await until(lambda: len(taken) == 500)
        assert sorted(taken) == list(range(500))
