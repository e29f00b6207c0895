"""Servers that ask for time: when they are started again, and what of it is shown."""

from contextlib import asynccontextmanager

import pytest
import trio
from attrs import frozen

from mcp_nursery.actors.enums import Delivery, ServerState
from mcp_nursery.actors.errors import ServerDown, ServerError, StartFailed
from mcp_nursery.supervisor import HttpTransport, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.decisions.circuit_breaker import CircuitBreaker
from mcp_nursery.supervisor.testing import Life, ScriptedServer
from mcp_nursery.supervisor.tools.outcome import error_content

from ...lab.http_peer import HANDSHAKE, response, serving, until
from ...lab.specs import status

S = ServerState


@frozen
class Busy:
    """The transport of a server that asks for so many seconds at each of its first starts."""

    server: ScriptedServer
    rests: list[float]
    starts: list[float]
    kind = "busy"

    def connector(self, *, close_grace):
        return self

    @asynccontextmanager
    async def connect(self, host):
        self.starts.append(trio.current_time())
        if self.rests:
            raise StartFailed("slow down", retriable=True, retry_in=self.rests.pop(0))
        async with self.server.transport.connector(close_grace=1).connect(host) as connection:
            yield connection


def busy(*rests, server=None, **options):
    transport = Busy(server or ScriptedServer(), list(rests), [])
    return transport.starts, ServerSpec("lab", transport, **options)


async def test_a_server_that_asks_for_time_gets_it_and_keeps_its_place_on_the_ladder(autojump_clock):
    """L3: what it asks for counts where it is longer than the ladder's own wait; then the whole ladder is left."""
    starts, server = busy(60, 1, 3600, server=ScriptedServer(Life(refuses="down")))
    async with open_supervisor([server], gate=0) as supervisor:
        await trio.sleep(1)
        now = status(supervisor)
        assert (now.state, now.retry_in, now.error, now.attempt) == (S.WAITING, 59, "slow down", 1)
        with pytest.raises(ServerDown) as down:
            await supervisor.call_tool("echo", server="lab")
        assert down.value.retry_in == 59
        await trio.sleep_until(10_000)
        assert starts == [0, 60, 62, 3662, 3664, 3669, 3684]
        assert status(supervisor).state is S.FAILED


async def test_no_call_hastens_a_server_that_asks_for_time(autojump_clock):
    """R11: it begins the attempt that is due, and not before the server wants to be asked."""
    starts, server = busy(60, 5, policy=RestartPolicy(delays=(30,)))
    async with open_supervisor([server], gate=0) as supervisor:
        await trio.sleep(1)
        with pytest.raises(ServerDown):
            await supervisor.call_tool("echo", server="lab", when_down="reconnect")
        assert (starts, trio.current_time()) == ([0, 60], 60)
        await supervisor.call_tool("echo", server="lab", when_down="reconnect")
        assert (starts, trio.current_time()) == ([0, 60, 65], 65)


async def test_a_person_may_start_it_all_the_same(autojump_clock):
    starts, server = busy(60)
    async with open_supervisor([server], gate=0) as supervisor:
        await trio.sleep(1)
        await supervisor.reconnect("lab")
        assert starts == [0, 1]


def _refuse(method, status_code=429):
    async def refuse(asked):
        if asked.message.get("method") != method:
            return False
        await asked.send(response(status_code, b"slow down", b"text/plain", b"retry-after: 60\r\n"))
        return True

    return refuse


async def test_the_status_shows_for_how_long_a_remote_server_wants_rest():
    async with serving(HANDSHAKE) as peer:
        peer.on_other = _refuse("server/discover")
        async with open_supervisor([ServerSpec("far", HttpTransport(peer.url))]) as supervisor:
            await until(lambda: status(supervisor, "far").state is S.WAITING)
            now = status(supervisor, "far")
        assert now.error == "HTTP 429 Too Many Requests, not to be asked again for 60 s: slow down"
        assert now.state is S.WAITING
        assert 50 < now.retry_in <= 60
        assert len(peer.asked) == 1


@pytest.mark.parametrize(
    ("code", "delivery", "retryable"), [(429, Delivery.ANSWERED, "yes"), (503, Delivery.UNKNOWN, "no")]
)
async def test_the_error_of_a_call_carries_when_to_call_again(code, delivery, retryable):
    """A tool that may run twice is not sent again before. A breaker is open for as long, too."""
    async with serving() as peer:
        peer.on_other = _refuse("tools/call", code)
        spec = ServerSpec("far", HttpTransport(peer.url), breaker=CircuitBreaker(failures=1, open_for=5))
        async with open_supervisor([spec]) as supervisor:
            await supervisor.wait_connected("far")
            with pytest.raises(ServerError, match="slow down") as failed:
                await supervisor.call_tool("read", server="far")
            assert (failed.value.retry_in, failed.value.delivery) == (60, delivery)
            assert f"retryable: {retryable}" in error_content(failed.value)
            breaker = status(supervisor, "far").breaker
        assert len(peer.heard("tools/call")) == 1
        assert (breaker is None) == (code == 429)
        assert breaker is None or 50 < breaker.retry_in <= 60
