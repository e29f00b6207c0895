"""Headers resolved anew for a connector that takes them ready-made."""

from contextlib import asynccontextmanager

import pytest
import trio
from attrs import define, field

from mcp_nursery.actors.callbacks import NO_HOST
from mcp_nursery.actors.errors import ConfigError, StartFailed
from mcp_nursery.actors.transports.http.headers import WithHeaders, resolve
from mcp_nursery.supervisor import HttpTransport, SseTransport, WebSocketTransport


@define
class Connector:
    """Keeps what it was made of."""

    headers: dict
    hosts: list = field(factory=list)

    @asynccontextmanager
    async def connect(self, host=NO_HOST):
        self.hosts.append(host)
        yield self


async def test_each_connect_has_the_headers_of_its_moment():
    """P6."""
    moments = iter("ab")
    connector = WithHeaders(lambda: {"X-Key": next(moments)}, Connector)
    for moment in "ab":
        async with connector.connect(NO_HOST) as connection:
            assert (connection.headers, connection.hosts) == ({"X-Key": moment}, [NO_HOST])
    assert "X-Key" not in repr(connector)


@pytest.mark.parametrize("transport", [HttpTransport, SseTransport, WebSocketTransport])
async def test_fixed_headers_and_over_them_those_that_are_computed(transport):
    """P6: whatever the case of their names."""
    moments = iter("ab")

    async def compute():
        await trio.lowlevel.checkpoint()
        return {"x-key": next(moments)}

    fixed = {"X-Key": "fixed", "X-Team": "s3cret"}
    url = "wss://x" if transport is WebSocketTransport else "https://x"
    given = transport(url, headers=(fixed, compute))
    assert given == transport(url, headers=(dict(fixed), compute))
    assert "s3cret" not in repr(given)
    for moment in "ab":
        assert await resolve(given.headers) == {"X-Team": "s3cret", "x-key": moment}
    assert await resolve(transport(url, headers=({"A": "1"}, lambda: {"B": "2"})).headers) == {"A": "1", "B": "2"}
    with pytest.raises(StartFailed, match="the headers must be a mapping, not list"):
        await resolve(transport(url, headers=({"A": "1"}, list)).headers)


async def test_headers_that_are_none_open_nothing():
    """L12: not worth retrying."""
    with pytest.raises(StartFailed, match="the header X-Key must be text") as caught:
        async with WithHeaders({"X-Key": 1}, Connector).connect():
            raise AssertionError
    assert not caught.value.retriable


async def test_an_error_of_ours_keeps_its_words():
    """L17: any other may hold what was to become a header."""

    def unset():
        raise ConfigError("KEY is not set", field="headers")

    with pytest.raises(
        StartFailed, match="the headers could not be computed: field 'headers': KEY is not set"
    ) as caught:
        await resolve(unset)
    assert caught.value.retriable


async def test_a_websocket_is_opened_with_them():
    """K2: its own connector takes them ready-made."""
    pytest.importorskip("mcp_nursery.actors.transports.websocket.connector")
    connector = WebSocketTransport("ws://127.0.0.1:1/", headers={"X-Key": "5ecret"}).connector(close_grace=1)
    with pytest.raises(StartFailed) as caught:
        async with connector.connect(NO_HOST):
            raise AssertionError
    assert "5ecret" not in f"{caught.value} {connector!r}"
