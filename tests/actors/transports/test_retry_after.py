"""`Retry-After`, wherever an answer over HTTP decides when its server is asked again."""

import time
from email.utils import formatdate
from functools import partial

import pytest
import trio

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.errors import StartFailed
from mcp_nursery.actors.http.retry_after import rest_of
from mcp_nursery.actors.oauth import renewal
from mcp_nursery.actors.oauth.settings import OAuth
from mcp_nursery.actors.oauth.tokens import VAULT, MemoryVault, TokenKey, Tokens
from mcp_nursery.actors.outcomes import Dropped, Rejected
from mcp_nursery.actors.session.base import HandshakeFailed
from mcp_nursery.actors.transports.http import streamable
from mcp_nursery.actors.transports.websocket.connector import WebSocketConnector

from ...lab.http_peer import (
    HANDSHAKE,
    anyhow,
    call,
    connected,
    connector,
    outcome_of,
    response,
    serve_tcp,
    serving,
    until,
)

DAY = "Thu, 26 Nov 2026 10:00:00 GMT"
LATER = "Thu, 26 Nov 2026 10:01:30 GMT"


@pytest.mark.parametrize(
    ("said", "date", "rest"),
    [
        ("60", None, 60),
        (" 60 ", None, 60),
        ("1.5", None, 1.5),
        ("3601", None, 3600),
        ("999999999999", None, 3600),
        (LATER, DAY, 90),
        ("Thursday, 26-Nov-26 10:01:30 GMT", DAY, 90),
        ("Thu Nov 26 10:01:30 2026", DAY, 90),
        ("Fri, 26 Nov 2027 10:00:00 GMT", DAY, 3600),
        *((said, DAY, None) for said in ("0", "-5", "1e3", "inf", "nan", "٦٠", "60, 90", "soon", "", DAY, "9" * 5000)),
        ("Thu, 26 Nov 99999 10:00:00 GMT", DAY, None),
        (None, DAY, None),
    ],
)
def test_what_an_answer_says_about_time(said, date, rest):
    assert rest_of(429, said, date) == rest


def test_a_date_without_another_counts_from_the_clock_of_this_machine():
    for date in (None, "yesterday"):
        assert 0 < rest_of(503, formatdate(time.time() + 60, usegmt=True), date) <= 60


@pytest.mark.parametrize(("status", "rest"), [(400, None), (401, None), (404, None), (405, None), (403, 9), (500, 9)])
def test_only_some_refusals_ask_for_time(status, rest):
    """A server that refuses the probe of its era gets `initialize` at once, whatever a proxy adds."""
    assert rest_of(status, "9", None) == rest


def refuse(status=429, more=b"retry-after: 60\r\n", body=b"slow down", **only):
    """Refuse each request, or those of one method."""

    async def other(asked):
        if only.get("method") in (None, asked.message.get("method")):
            await asked.send(response(status, body, b"text/plain", more))
            return True
        return False

    return other


BUSY = "HTTP 429 Too Many Requests, not to be asked again for 60 s: slow down"


@anyhow
@pytest.mark.parametrize("method", [None, "tools/list"])
async def test_a_server_that_asks_for_time_at_a_connect_is_asked_nothing_else(wire, method):
    async with serving(**wire) as peer:
        peer.on_other = refuse(method=method)
        async with connector(peer).connect() as connection:
            if method is not None:
                await connection.handshake(None)
            step = connection.list_tools if method else partial(connection.handshake, None)
            with pytest.raises(HandshakeFailed) as failed, trio.fail_after(20):
                await step()
        assert (failed.value.loss.message, failed.value.loss.retry_in) == (BUSY, 60)
        assert not failed.value.loss.unusable
        if method is None:
            assert len(peer.asked) == 1
        else:
            assert peer.asked[-1].message["method"] == method


@pytest.mark.parametrize(
    ("status", "more", "rest"),
    [
        (429, b"", None),
        (503, b"retry-after: %s\r\ndate: %s\r\n" % (LATER.encode(), DAY.encode()), 90),
        (403, b"retry-after: 7\r\n", 7),
    ],
)
async def test_a_probe_that_is_refused_for_now_is_not_followed_by_initialize(status, more, rest):
    async with serving(HANDSHAKE) as peer:
        peer.on_other = refuse(status, more)
        async with connector(peer).connect() as connection:
            with pytest.raises(HandshakeFailed) as failed, trio.fail_after(20):
                await connection.handshake(None)
        assert failed.value.loss.retry_in == rest
        assert [asked.message["method"] for asked in peer.asked] == ["server/discover"]


async def test_a_refusal_whose_body_is_cut_is_one():
    async with serving(HANDSHAKE) as peer:

        async def cut(asked):
            await asked.send(response(429, b"slow down", more=b"retry-after: 60\r\n")[:-3])
            await asked.stream.aclose()
            return True

        peer.on_other = cut
        async with connector(peer).connect() as connection:
            with pytest.raises(HandshakeFailed) as failed, trio.fail_after(20):
                await connection.handshake(None)
        assert (failed.value.loss.message, failed.value.loss.retry_in) == (BUSY.removesuffix(": slow down"), 60)
        assert len(peer.asked) == 1


@anyhow
@pytest.mark.parametrize(
    ("status", "kind", "delivery"),
    [(429, Rejected, Delivery.ANSWERED), (503, Dropped, Delivery.UNKNOWN), (500, Rejected, Delivery.ANSWERED)],
)
async def test_a_call_learns_when_the_server_may_be_asked_again(wire, status, kind, delivery):
    """It is not sent again before, by itself, even if it may run twice."""
    async with connected(**wire) as (peer, connection):

        async def busy(asked):
            await asked.send(response(status, b"slow down", more=b"retry-after: 60\r\n"))

        peer.on_call = busy
        outcome = await outcome_of(connection, sent := call("read"))
        assert isinstance(outcome, kind)
        assert outcome.retry_in == 60
        assert sent.slot.delivery is delivery
        assert not getattr(outcome, "again", False)


async def test_the_stream_for_what_is_said_unasked_waits_as_well(caplog):
    caplog.set_level("DEBUG", logger=streamable.__name__)
    async with serving(HANDSHAKE) as peer:

        async def busy(asked):
            if asked.method == b"GET":
                await asked.send(response(429, more=b"retry-after: 60\r\n"))
            return asked.method == b"GET"

        peer.on_other = busy
        async with connector(peer).connect() as connection:
            await connection.handshake(None)
            await until(lambda: "asked for again" in caplog.text)
    assert "a stream is asked for again in 60 s: HTTP 429 Too Many Requests" in caplog.text


async def test_a_websocket_that_is_refused_for_now():
    async def refuse_upgrade(stream):
        await stream.receive_some(1 << 16)
        await stream.send_all(response(403, b"no", more=b"retry-after: 60\r\n"))

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(serve_tcp, refuse_upgrade, 0)
        url = f"ws://127.0.0.1:{listener.socket.getsockname()[1]}/"
        said = "403 Forbidden and opened no WebSocket, not to be asked again for 60 s"
        with pytest.raises(StartFailed, match=said) as no:
            async with WebSocketConnector(url, {}, close_grace=1).open():
                pass
        nursery.cancel_scope.cancel()
    assert (no.value.retriable, no.value.retry_in) == (True, 60)


@pytest.mark.parametrize("grant", ["authorization_code", "client_credentials"])
@pytest.mark.parametrize("asks", [60, None])
async def test_an_issuer_that_asks_for_time_is_asked_nothing_else(grant, asks, monkeypatch):
    """The connection ends, and is opened again after that time. Without one it is tried for some seconds."""
    monkeypatch.setattr(renewal, "_RENEWAL_PAUSES", (0.01, 0.01))
    async with serving(HANDSHAKE) as peer:

        async def refuse_all(asked):
            if asked.path.startswith(b"/mcp"):
                await asked.send(response(401))
            else:
                await asked.send(response(429, b"secret words", more=b"retry-after: 60\r\n" if asks else b""))
            return True

        peer.on_other = refuse_all
        words = OAuth(grant=grant, client_id="me", client_secret="s3cret")
        vault = MemoryVault()
        await vault.store(TokenKey.of(peer.url, words)).write(
            Tokens("old", "again", token_endpoint=f"{peer.origin}/token", client={"client_id": "me"})
        )
        VAULT.set(vault)
        async with connector(peer, auth=words).connect() as connection:
            with pytest.raises(HandshakeFailed) as failed, trio.fail_after(20):
                await connection.handshake(None)
        said = "127.0.0.1 answered HTTP 429" + (", not to be asked again for 60 s" if asks else "")
        assert (failed.value.loss.message, failed.value.loss.retry_in) == (said, asks)
        assert not failed.value.loss.needs_auth
        assert len([asked for asked in peer.asked if asked.path.startswith(b"/mcp")]) == 1
        assert len(peer.asked) == (2 if asks else 4)
