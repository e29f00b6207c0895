"""Servers that want authorisation: a person's affair, asked after now and then. The clock is virtual."""

from functools import partial

import pytest
import trio
from attrs import frozen

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import AuthorizationFailed, ConnectionLost, ServerDown
from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.cli.failures import message_of
from mcp_nursery.supervisor.cli.statuses import error_of, line_of_status, row
from mcp_nursery.supervisor.decisions.state_machine import LEFT_BY_NOBODY
from mcp_nursery.supervisor.events import StateChanged
from mcp_nursery.supervisor.gateway.client_request import to_client_error
from mcp_nursery.supervisor.servers import settings
from mcp_nursery.supervisor.testing import Life, ScriptedServer
from mcp_nursery.supervisor.tools.outcome import error_content

from ...lab.specs import live_events, spec, status

S = ServerState
REFUSED = Life(refuses="401 Unauthorized", needs_auth=True)
SAID = "401 Unauthorized; mcp-nursery login lab"
EXPIRES = Life(dies_after=10, needs_auth=True)


@pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
@pytest.mark.parametrize("revive", [None, 60, "on_call"])
async def test_it_is_asked_again_after_900_seconds_and_not_before(autojump_clock, restart, revive):
    """L12, P5: no delay consumed, no restart; `revive` ends `failed` and not this."""
    server = ScriptedServer(REFUSED)
    async with open_supervisor([spec(server, restart=restart, revive=revive)]) as supervisor:
        assert trio.current_time() == 0, "the gate waits for nothing"
        for at in (899, 1799, 2699):
            await trio.sleep_until(at)
            one = status(supervisor)
            assert (one.state, one.retry_in, one.attempt, one.error) == (S.NEEDS_AUTH, None, 1, SAID)
            assert server.starts == [start for start in (0, 900, 1800) if start < at]


async def test_no_delay_of_the_ladder_is_consumed(autojump_clock):
    """L12: a server that is refused on its third start, and authorised, has its whole ladder."""
    server = ScriptedServer(Life(refuses="down"), Life(refuses="down"), REFUSED, Life(refuses="down"))
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep_until(100)
        assert (status(supervisor).state, server.starts) == (S.NEEDS_AUTH, [0, 2, 7])
        with pytest.raises(ServerDown):
            await supervisor.reconnect("lab")
        await trio.sleep(100)
        assert server.starts[3:] == [100, 102, 107, 122]


@pytest.mark.parametrize("when_down", [None, "wait", "fail"])
async def test_calls_fail_at_once(autojump_clock, when_down):
    """R1: waiting for a person is vain, whatever the caller asked for: nobody is known to come."""
    server = ScriptedServer(EXPIRES)
    async with open_supervisor([spec(server, revive="on_call")]) as supervisor:
        await trio.sleep(20)
        for call in (
            partial(supervisor.call_tool, "mcp_lab_echo", when_down=when_down),
            partial(supervisor.call_tool, "echo", server="lab", when_down=when_down),
            partial(supervisor.wait_connected, "lab"),
            partial(supervisor.list_tools, "lab"),
        ):
            with pytest.raises(ServerDown, match=r"needs_auth \(401.*\); reconnect once it is authorised") as caught:
                await call()
            assert (caught.value.state, caught.value.retry_in) == (S.NEEDS_AUTH, None)
            assert caught.value.delivery == "not_sent"
        assert (trio.current_time(), server.starts, server.calls) == (20, [0], [])
    assert S.NEEDS_AUTH in LEFT_BY_NOBODY


async def test_whatever_is_said_names_the_command_that_helps(autojump_clock, caplog):
    """P5, P2: in every front, to a person and to a model; and behind what a callback says of its failure."""
    caplog.set_level("INFO")
    way = "mcp-nursery login 'my lab'"
    async with open_supervisor([spec(ScriptedServer(REFUSED), "my lab")]) as supervisor:
        with pytest.raises(ServerDown) as down:
            await supervisor.wait_connected("my lab")
        now = status(supervisor, "my lab")
    said = [now.error, line_of_status(now), row(now)[-1], error_of(now), message_of(down.value)]
    said += [str(down.value), error_content(down.value), to_client_error(down.value).message]
    said += [one.getMessage() for one in caplog.records if "-> needs_auth" in one.getMessage()]
    assert [text for text in said if text.count(way) != 1] == []
    assert len(said) == 9


async def test_the_tools_stay(autojump_clock):
    """G13: last known tools stay visible and routed, not available; back as soon as it is connected again."""
    server = ScriptedServer(EXPIRES, Life())
    async with open_supervisor([spec(server)]) as supervisor, live_events(supervisor) as events:
        await trio.sleep(20)
        (tool,) = supervisor.tools
        assert (tool.name, tool.available, status(supervisor).tool_count) == ("mcp_lab_echo", False, 1)
        assert supervisor.tool("mcp_lab_echo") is tool
        await supervisor.reconnect("lab")
        assert supervisor.tool("mcp_lab_echo").available
        assert (await supervisor.call_tool("mcp_lab_echo")).incarnation == 2
        states = []
        with trio.move_on_after(1):
            async for event in events:
                assert isinstance(event, StateChanged), "the tools never changed"
                states.append(event.new)
        assert states == ["needs_auth", "connecting", "connected"]


async def test_calls_in_flight_when_the_authorisation_ends(autojump_clock):
    """R3, R2: they are lost at once, also those that could be sent again: there is nowhere to send them."""

    async def hang(arguments) -> object:
        await trio.sleep_forever()
        raise AssertionError

    server = ScriptedServer(EXPIRES, tools={"hang": hang, "read": hang}, annotations={"read": {"readOnlyHint": True}})
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:

        async def call(tool):
            with pytest.raises(ConnectionLost, match="401 Unauthorized"):
                await supervisor.call_tool(tool, server="lab")
            assert trio.current_time() == 10

        nursery.start_soon(call, "hang")
        nursery.start_soon(call, "read")


async def test_many_reconnects_share_one_attempt(autojump_clock):
    """L8."""
    server = ScriptedServer(REFUSED, Life(connects_after=2))
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(5)
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(supervisor.reconnect, "lab")
        assert (trio.current_time(), server.starts) == (7, [0, 5])


async def test_many_reconnects_share_one_refusal(autojump_clock):
    """L8: still not authorised: all of them learn it, and it is asked again after 900 s and not before."""
    server = ScriptedServer(REFUSED)
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:

        async def ask():
            with pytest.raises(ServerDown, match="needs_auth"):
                await supervisor.reconnect("lab")

        await trio.sleep(5)
        for _ in range(50):
            nursery.start_soon(ask)
        await trio.sleep(1000)
        assert server.starts == [0, 5, 905]


async def test_a_person_is_asked_once_and_again_when_somebody_wants_a_fresh_start(autojump_clock, monkeypatch):
    """A browser that opens every quarter of an hour is a nuisance."""
    asked = []

    def refused(spec, _settings):
        async def log_in():
            asked.append(trio.current_time())
            await trio.lowlevel.checkpoint()
            raise AuthorizationFailed(spec.name, "refused")

        return log_in

    monkeypatch.setattr(settings, "_login", refused)
    server = ScriptedServer(REFUSED)
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(2000)
        assert (server.starts, asked) == ([0, 900, 1800], [0])
        with pytest.raises(ServerDown):
            await supervisor.reconnect("lab")
        await trio.sleep(1)
        assert asked == [0, 2000]
        assert status(supervisor).error == "401 Unauthorized: lab: not authorised: refused; mcp-nursery login lab"


@pytest.mark.parametrize("how", ["stop_server", "remove_server"])
async def test_stopped_and_removed(autojump_clock, how):
    """L9: it stays stopped, and can be started again."""
    server = ScriptedServer(REFUSED, Life())
    async with open_supervisor([spec(server)]) as supervisor:
        await getattr(supervisor, how)("lab")
        await trio.sleep(10_000)
        assert server.starts == [0]
        if how == "stop_server":
            assert (status(supervisor).state, status(supervisor).error) == (S.STOPPED, None)
            await supervisor.start_server("lab")
            assert (await supervisor.wait_connected("lab")).attempt == 1


async def test_a_stop_is_not_undone_by_a_late_refusal(autojump_clock):
    """L9: the authorisation ends while it is being stopped."""
    server = ScriptedServer(Life(dies_after=2, needs_auth=True, closes_after=5))
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(1)
        await supervisor.stop_server("lab")
        await trio.sleep(100)
        assert status(supervisor).state is S.STOPPED


@frozen
class Guarded:
    """A transport that looks its token up for each connection."""

    server: ScriptedServer
    vault: dict

    kind = "http"

    def connector(self, *, close_grace):
        refused = self.vault["token"] != "right"
        self.server.lives = [REFUSED if refused else Life()]
        return self.server.transport.connector(close_grace=close_grace)


async def test_a_token_is_looked_up_at_each_connect_and_shown_nowhere(autojump_clock, caplog):
    """L17: what a person put right is used by the next start."""
    caplog.set_level(0)
    server, vault = ScriptedServer(), {"token": "hunter2"}
    specs = [ServerSpec("lab", Guarded(server, vault))]
    async with open_supervisor(specs) as supervisor, supervisor.events() as events:
        with pytest.raises(ServerDown) as caught:
            await supervisor.reconnect("lab")
        vault["token"] = "right"
        await supervisor.reconnect("lab")
        assert status(supervisor).state is S.CONNECTED
        told = [await events.receive() for _ in range(5)]
    assert len(server.starts) == 3
    assert "hunter2" not in f"{told}{caught.value!r}{caught.value}{caplog.text}{supervisor.status()}"
