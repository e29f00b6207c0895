"""Two questions about the era on the way at once over HTTP: what the loser of them leaves behind, on a real server."""

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.http import limits
from mcp_nursery.actors.outcomes import Answered, Rejected
from mcp_nursery.actors.session import handshake

from ...lab.http_peer import HANDSHAKE, INFO, MODERN, STREAM, call, connector, outcome_of, response, serving, until

DISCOVERY = {
    "supportedVersions": [MODERN],
    "capabilities": {"tools": {}},
    "_meta": {"io.modelcontextprotocol/serverInfo": INFO},
}
GREETING = {"protocolVersion": HANDSHAKE, "serverInfo": INFO, "capabilities": {"tools": {}}}
SESSION = b"mcp-session-id: late\r\n"


@asynccontextmanager
async def raced(*, streamed=False):
    """A connection to a modern server whose probe was answered late, and `initialize` not yet; `release` has that
    answered. `streamed`: the head of that answer has come, and the session with it."""
    asked, release = trio.Event(), trio.Event()

    async def slow(request):
        match request.message.get("method"):
            case "server/discover":
                await asked.wait()
                await request.peer._result(request, DISCOVERY)
            case "initialize":
                if streamed:
                    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + SESSION
                    await request.send(head + b"transfer-encoding: chunked\r\n\r\n")
                asked.set()
                await release.wait()
                if not streamed:
                    await request.peer._result(request, GREETING, SESSION)
            case _:
                return False
        return True

    async with serving(MODERN) as peer:
        peer.on_other = slow
        async with connector(peer).connect() as connection:
            with trio.fail_after(20):
                said = await connection.handshake(None)
                await connection.list_tools()
            assert (said.era, said.era_answered) == (Era.MODERN, True)
            yield peer, connection, release


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """A probe is read and mute after a moment, and `initialize` is not waited for."""
    monkeypatch.setattr(limits, "READ_LIMIT", 0.05)
    monkeypatch.setattr(handshake, "PROBE_TIMEOUT", 0.05)
    monkeypatch.setattr(handshake, "PRECEDENCE", 0.05)


def deleted(peer):
    return [asked.header(b"mcp-session-id") for asked in peer.asked if asked.method == b"DELETE"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_session_of_an_initialize_that_came_too_late_is_ended(streamed):
    """P7: nobody else knows of it, and its server would keep it until it forgets it."""
    async with raced(streamed=streamed) as (peer, _, release):
        release.set()
        await until(lambda: deleted(peer))
        assert deleted(peer) == [b"late"]


async def test_a_late_session_goes_with_no_request_and_its_end_is_nobodys():
    """P7, R8: a modern request has no session, and a 404 to it is no end of one."""

    async def gone(asked):
        await asked.send(response(404, b"gone"))

    async with raced() as (peer, connection, release):
        release.set()
        await until(lambda: deleted(peer))
        before = len(peer.asked)
        assert isinstance(await outcome_of(connection, call()), Answered)
        peer.on_call = gone
        assert isinstance(await outcome_of(connection, call()), Rejected)
        assert [asked.header(b"mcp-session-id") for asked in peer.asked[before:]] == [None, None]
        peer.on_call = peer.answer
        assert isinstance(await outcome_of(connection, call()), Answered)


@pytest.mark.parametrize("status", [401, 404, 500, None])
async def test_a_late_refusal_of_initialize_is_nobodys(status):
    """P7: the conversation goes on, whatever the loser's answer is; None: the line is cut."""
    async with raced() as (peer, connection, release):
        (initialize,) = peer.heard("initialize")
        if status is None:
            await initialize.stream.aclose()
        else:
            await initialize.send(response(status, b"no"))
        await trio.testing.wait_all_tasks_blocked(0.05)  # it has come
        assert isinstance(await outcome_of(connection, call()), Answered)
        release.set()


@asynccontextmanager
async def opening(on_discover, era=MODERN, **settings):
    """A handshake under way with a peer that answers the probe in its own way, and an event of its end."""
    settled = trio.Event()

    async def answer(asked):
        if asked.message.get("method") != "server/discover":
            return False
        await on_discover(asked)
        return True

    async with serving(era) as peer, trio.open_nursery() as nursery:
        peer.on_other = answer
        async with connector(peer).connect() as connection:

            async def settle():
                with trio.move_on_after(settings.get("limit", 20)):
                    peer.said = await connection.handshake(None)
                settled.set()

            nursery.start_soon(settle)
            yield peer, settled
            nursery.cancel_scope.cancel()


async def test_a_server_that_may_not_have_read_the_probe_is_asked_nothing_else(monkeypatch):
    """P7: an `initialize` is no request of 2026-07-28, and a busy server of that version would see it beside others."""
    monkeypatch.setattr(limits, "READ_LIMIT", 20.0)
    release = trio.Event()

    async def slow(asked):
        await release.wait()
        await asked.peer._result(asked, DISCOVERY)

    async with opening(slow) as (peer, settled):
        await until(lambda: peer.heard("server/discover"))
        await trio.testing.wait_all_tasks_blocked(10 * handshake.PROBE_TIMEOUT)
        release.set()
        with trio.fail_after(20):
            await settled.wait()
        assert peer.said.era is Era.MODERN
        assert [asked.message.get("method") for asked in peer.asked] == ["server/discover"]


async def test_a_head_without_an_answer_shows_that_the_probe_was_read(monkeypatch):
    """P7: such a server of the handshake opens a stream for whatever it is asked."""
    monkeypatch.setattr(limits, "READ_LIMIT", 20.0)

    async def mute(asked):
        await asked.send(STREAM)
        await trio.sleep_forever()

    async with opening(mute, HANDSHAKE) as (peer, settled):
        with trio.fail_after(10):
            await settled.wait()
        assert (peer.said.era, peer.said.era_answered) == (Era.HANDSHAKE, False)


async def test_a_short_time_to_start_leaves_some_for_initialize(monkeypatch):
    """P7: of a mute server nothing shows what it has read, and it must connect within its connect timeout."""
    monkeypatch.setattr(limits, "READ_LIMIT", 20.0)

    async def mute(_asked):
        await trio.sleep_forever()

    async with opening(mute, HANDSHAKE, limit=3) as (peer, settled):
        await settled.wait()
        assert peer.said.era is Era.HANDSHAKE


@pytest.mark.parametrize(("method", "era"), [("server/discover", MODERN), ("initialize", HANDSHAKE)])
async def test_what_opens_a_conversation_may_take_longer_than_another_post(method, era, monkeypatch):
    """L2: whoever starts the server has a limit of his own, and may have raised it."""
    monkeypatch.setattr(limits, "READ_LIMIT", 20.0)
    monkeypatch.setattr(limits, "POST_LIMIT", 0.3)

    async def slow(asked):
        if asked.message.get("method") == method:
            await trio.testing.wait_all_tasks_blocked(0.6)
        return False

    async with serving(era) as peer:
        peer.on_other = slow
        async with connector(peer).connect() as connection:
            with trio.fail_after(20):
                said = await connection.handshake(None)
        assert said.era is (Era.MODERN if era == MODERN else Era.HANDSHAKE)
        assert len(peer.heard(method)) == 1
